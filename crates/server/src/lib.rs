//! The server: what stands between a client's JSON and the engine.

pub mod chat;
pub mod error;
