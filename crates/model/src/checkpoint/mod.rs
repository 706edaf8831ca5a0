//! One face for every checkpoint: a configuration, tensors by their Hugging Face names, and what
//! the tokenizer and the chat template are made from. Files are memory-mapped and checked before
//! use.

mod config_json;
pub mod gguf;
mod head;
pub mod safetensors;
mod store;

use crate::config::ModelConfig;
use crate::error::LoadError;
use config_json::Body;
use kernels::format::Format;
use kernels::gemm::RowOrder;
use std::ops::Range;
use std::path::{Path, PathBuf};
use store::Store;

/// An opened checkpoint.
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    config: ModelConfig,
    notes: Vec<String>,
    store: Store,
}

/// Where everything but the tensors comes from.
enum Source {
    Gguf(gguf::Metadata),
    HuggingFace {
        /// `None` for a checkpoint made from bytes.
        folder: Option<PathBuf>,
        config: serde_json::Value,
    },
}

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

/// What a checkpoint says about one of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo<'a> {
    /// Hugging Face name; a GGUF name where there is none.
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Element format.
    pub format: Format,
    /// Bytes in the file.
    pub bytes: usize,
}

/// Where a tensor lies in a file, as [`gguf::parse`] and [`safetensors::parse`] find it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorEntry {
    /// Its name in the file.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Element format.
    pub format: Format,
    /// Bytes of the file.
    pub range: Range<usize>,
}

impl Checkpoint {
    /// Opens a GGUF file (any part of a split one), a folder with `config.json` and safetensors,
    /// or a folder that holds exactly one GGUF model.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of an unknown architecture or type.
    pub fn open(path: &Path) -> Result<Checkpoint, LoadError> {
        let about = std::fs::metadata(path)
            .map_err(|error| LoadError::new(path, "file", error.to_string()))?;
        if !about.is_dir() {
            return open_file(path);
        }
        let config = path.join("config.json").exists();
        if config && safetensors::weights_in(path) {
            return safetensors::open(path, Body::Decoder);
        }
        match gguf::models_in(path)?.as_slice() {
            [model] => gguf::open(model),
            // Says which of the two is missing.
            [] if config || safetensors::weights_in(path) => safetensors::open(path, Body::Decoder),
            [] => Err(LoadError::new(
                path,
                "folder",
                "holds no model: neither config.json with safetensors nor a GGUF file",
            )),
            models => Err(LoadError::new(
                path,
                "folder",
                format!("holds {} GGUF models; give the path of one of them", models.len()),
            )),
        }
    }

    /// Opens the folder of a DFlash drafter (`architectures: ["DFlashDraftModel"]`). The
    /// configuration is that of its decoder layers (qwen3 fields); tensors go by the names in its
    /// file, such as `layers.0.self_attn.q_proj.weight` and `fc.weight`. It has neither embedding
    /// nor head, and `dflash_config` is in [`Checkpoint::config_json`].
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; a folder that is no drafter.
    pub fn open_drafter(folder: &Path) -> Result<Checkpoint, LoadError> {
        safetensors::open(folder, Body::Drafter)
    }

    /// A checkpoint from a whole GGUF file's bytes; `path` is what errors will blame.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_gguf(path: &Path, bytes: Vec<u8>) -> Result<Checkpoint, LoadError> {
        gguf::from_bytes(path, bytes)
    }

    /// A checkpoint from the bytes of `config.json` and of one safetensors file; `path` is what
    /// errors will blame.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_safetensors(
        path: &Path,
        config: &[u8],
        weights: Vec<u8>,
    ) -> Result<Checkpoint, LoadError> {
        safetensors::from_bytes(path, config, weights, Body::Decoder)
    }

    /// A drafter from the bytes of its `config.json` and of its safetensors file; `path` is what
    /// errors will blame.
    ///
    /// # Errors
    /// As [`Checkpoint::open_drafter`].
    pub fn drafter_from_safetensors(
        path: &Path,
        config: &[u8],
        weights: Vec<u8>,
    ) -> Result<Checkpoint, LoadError> {
        safetensors::from_bytes(path, config, weights, Body::Drafter)
    }

    /// The path it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The decoder's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What a person should know about how the files were read, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The metadata of a GGUF checkpoint: tokenizer, chat template and all. `None` for safetensors.
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        match &self.source {
            Source::Gguf(metadata) => Some(metadata),
            Source::HuggingFace { .. } => None,
        }
    }

    /// The folder of a Hugging Face checkpoint, where `tokenizer.json`, `tokenizer_config.json`,
    /// `generation_config.json` and the chat template lie. `None` for GGUF and for bytes.
    pub fn folder(&self) -> Option<&Path> {
        match &self.source {
            Source::Gguf(_) => None,
            Source::HuggingFace { folder, .. } => folder.as_deref(),
        }
    }

    /// `config.json` as it is written, for fields outside [`ModelConfig`] (`eos_token_id`,
    /// `dflash_config`, …). `None` for GGUF.
    pub fn config_json(&self) -> Option<&serde_json::Value> {
        match &self.source {
            Source::Gguf(_) => None,
            Source::HuggingFace { config, .. } => Some(config),
        }
    }

    /// A tensor by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`), checked to
    /// have `shape`; remembered as used.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, LoadError> {
        let Some(entry) = self.store.get(name) else {
            return Err(LoadError::new(
                &self.path,
                name,
                format!("is missing from the weights, which {} needs", self.config.architecture),
            ));
        };
        if entry.shape != shape {
            return Err(LoadError::new(
                self.store.path_of(entry),
                name,
                format!(
                    "has shape {:?}, but the configuration asks for {shape:?}: they are of \
                     different models",
                    entry.shape
                ),
            ));
        }
        entry.mark_used();
        Ok(self.store.tensor(entry))
    }

    /// Whether the file has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.store.get(name).is_some()
    }

    /// Every tensor, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.store.tensors()
    }

    /// Bytes of all weight files together.
    pub fn file_bytes(&self) -> u64 {
        self.store.file_bytes()
    }

    /// The tensors nobody asked for, sorted by name.
    pub fn unused(&self) -> Vec<String> {
        self.store.unused()
    }

    /// Tells the system that the pages of `tensor` will not be read again, so that a repacked
    /// weight and its file do not both count as resident memory.
    pub fn release(&self, tensor: &Tensor<'_>) {
        self.store.release(tensor.data);
    }
}

/// The decoder's configuration in a `config.json` alone, without weights.
///
/// # Errors
/// As [`Checkpoint::open`].
pub fn read_config(path: &Path) -> Result<ModelConfig, LoadError> {
    let json = config_json::parse(path, &safetensors::read_json(path)?)?;
    config_json::read(path, &json, Body::Decoder)
}

/// A file by itself. A lone safetensors file lacks its configuration, which its error should say
/// rather than that its magic number is wrong.
fn open_file(path: &Path) -> Result<Checkpoint, LoadError> {
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        return Err(LoadError::new(
            path,
            "file",
            "is one safetensors file; give the folder that holds it and config.json",
        ));
    }
    gguf::open(path)
}
