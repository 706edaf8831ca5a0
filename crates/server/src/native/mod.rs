//! The server's own endpoints: generation with token ids in and out, the tokenizer, and what
//! operators and routers ask.

pub(crate) mod generate;
pub(crate) mod info;
pub(crate) mod tokens;
