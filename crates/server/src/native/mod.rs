//! The server's own endpoints: generation with token ids in and out, the tokenizer, and what
//! operators and routers ask.

pub(crate) mod generate;
pub(crate) mod info;
mod origins;
pub(crate) mod tokens;
pub(crate) mod trace;
