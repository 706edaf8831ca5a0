//! The server: what stands between a client's JSON and the engine.
//!
//! ```text
//! connection ─> http: id, key ─> openai | native: fields ─> chat, tokenizer ─> generation ─> engine
//! connection <─ sse | json <──────── chat: content, reasoning, calls <──────── generation <─ engine
//! ```
//!
//! [`Server::start`] takes an engine, a [`Model`] and a [`Config`]. The engine has a thread of its
//! own and is never waited for under a lock, nor does it wait for a client: what it tells goes into
//! a bounded buffer, and a client that does not read it is cut off.

mod app;
pub mod chat;
mod config;
pub mod error;
mod fields;
mod generation;
mod grammars;
mod http;
mod ids;
mod metrics;
mod native;
mod openai;
mod openapi;
mod page;
pub mod record;
mod server;
mod sse;

pub use app::Model;
pub use config::{ApiKey, BadKey, Config, Limits};
pub use constrain::Grammar;
pub use grammars::Grammars;
pub use openapi::document;
pub use server::{Control, Server, StartError};
