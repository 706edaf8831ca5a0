//! Models: checkpoints (GGUF, safetensors), configuration, tokenizer and chat template, the one
//! decoder of the Llama and Qwen families, and the DFlash drafter.

pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod error;
pub mod tokenizer;

pub use error::LoadError;
