//! One face for every checkpoint: a configuration, tensors by their Hugging Face names, and what
//! the tokenizer and the chat template are made from. Files are memory-mapped and checked before
//! use.

pub mod gguf;

use crate::config::ModelConfig;
use crate::error::LoadError;
use kernels::format::Format;
use kernels::gemm::RowOrder;
use std::path::Path;

/// An opened checkpoint.
pub struct Checkpoint {}

/// A tensor in a mapped file.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Outermost dimension first (Hugging Face's order; GGUF's is turned round).
    pub shape: Vec<usize>,
    /// Element format.
    pub format: Format,
    /// Order of the rows in the file.
    pub order: RowOrder,
    /// Exactly `format.bytes(product of shape)` bytes.
    pub data: &'a [u8],
}

impl Checkpoint {
    /// Opens a GGUF file (any part of a split one), a folder with `config.json` and safetensors,
    /// or a folder that holds exactly one GGUF model.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of an unknown architecture or type.
    pub fn open(path: &Path) -> Result<Checkpoint, LoadError> {
        let _ = path;
        unimplemented!()
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        unimplemented!()
    }

    /// The decoder's configuration.
    pub fn config(&self) -> &ModelConfig {
        unimplemented!()
    }

    /// The metadata of a GGUF checkpoint: tokenizer, chat template and all. `None` for safetensors.
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        unimplemented!()
    }

    /// The folder of a Hugging Face checkpoint, where `tokenizer.json`, `tokenizer_config.json`,
    /// `generation_config.json` and the chat template lie. `None` for GGUF.
    pub fn folder(&self) -> Option<&Path> {
        unimplemented!()
    }

    /// `config.json` as it is written, for fields outside [`ModelConfig`] (`eos_token_id`,
    /// `dflash_config`, …). `None` for GGUF.
    pub fn config_json(&self) -> Option<&serde_json::Value> {
        unimplemented!()
    }

    /// A tensor by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`), checked to
    /// have `shape`; remembered as used.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let _ = (name, shape);
        unimplemented!()
    }

    /// Whether the file has the tensor.
    pub fn has(&self, name: &str) -> bool {
        let _ = name;
        unimplemented!()
    }

    /// The tensors nobody asked for, sorted by name.
    pub fn unused(&self) -> Vec<String> {
        unimplemented!()
    }

    /// Tells the system that the pages of `tensor` will not be read again, so that a repacked
    /// weight and its file do not both count as resident memory.
    pub fn release(&self, tensor: &Tensor<'_>) {
        let _ = tensor;
    }
}
