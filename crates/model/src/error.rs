//! Why a model could not be loaded: each error names the file, the field, and the remedy.

use std::path::PathBuf;

/// A checkpoint, tokenizer, template or pair that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {field}: {problem}", path.display())]
pub struct LoadError {
    /// The file or folder.
    pub path: PathBuf,
    /// The field, tensor or section at fault.
    pub field: String,
    /// What is wrong and, where there is one, the remedy.
    pub problem: String,
}

impl LoadError {
    /// An error about `field` of `path`.
    pub fn new(
        path: impl Into<PathBuf>,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> LoadError {
        LoadError { path: path.into(), field: field.into(), problem: problem.into() }
    }
}
