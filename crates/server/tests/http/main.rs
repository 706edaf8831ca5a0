//! The server over real sockets: every endpoint, every refusal, and what happens to clients that
//! vanish, dawdle or come in crowds. Scripted targets and gates decide what happens when; no test
//! depends on how fast the machine is.

mod answers;
mod client;
mod clients;
mod document;
mod fields;
mod lifecycle;
mod refusals;
mod responses;
mod scripted;
mod site;
mod streams;
