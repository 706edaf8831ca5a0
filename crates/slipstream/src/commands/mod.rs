//! One file a command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod models;
pub(crate) mod pull;
pub(crate) mod serve;
pub(crate) mod trace;
