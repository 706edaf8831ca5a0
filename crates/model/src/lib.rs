//! Models: checkpoints (GGUF, safetensors), configuration, tokenizer and chat template, the one
//! decoder of the Llama and Qwen families, and the DFlash drafter.

pub mod chat;
pub mod checkpoint;
pub mod config;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod decoder;
pub mod dflash;
pub mod dflash_config;
pub mod error;
mod layer;
mod load;
pub mod pass;
pub mod proposals;
pub mod tokenizer;

pub use error::LoadError;
pub use load::Precision;
