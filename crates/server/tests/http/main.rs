//! The server over real sockets: every endpoint, every refusal, and what happens to clients that
//! vanish, dawdle or come in crowds. Scripted targets and gates decide what happens when; no test
//! depends on how fast the machine is.

mod answers;
mod client;
mod clients;
mod dashboard;
mod document;
mod drafting;
mod fields;
mod formats;
mod lifecycle;
mod page;
mod prompts;
mod refusals;
mod responses;
mod scripted;
mod shaping;
mod site;
mod streams;
