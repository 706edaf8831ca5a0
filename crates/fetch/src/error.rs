//! Why a model could not be had: what was tried, and what to do by hand.

use std::fmt;
use std::path::PathBuf;

/// A source that was asked and did not deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The source, for people.
    pub source: String,
    /// Why it did not deliver.
    pub problem: String,
}

impl Attempt {
    pub(crate) fn new(source: impl Into<String>, problem: impl fmt::Display) -> Attempt {
        Attempt { source: source.into(), problem: problem.to_string() }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.problem)
    }
}

/// A model that could not be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The name means nothing.
    #[error(
        "{name}: no such file or folder, and no model of that name; name a GGUF file, a model \
         folder, a Hugging Face repository (org/name, org/name:file.gguf, org/name@revision), or \
         one of: {known}"
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that are known, comma-separated.
        known: String,
    },
    /// Every source of a model failed.
    #[error("{name} could not be fetched. Tried:\n{}\nBy hand: {by_hand}", list(.tried))]
    Unavailable {
        /// The model.
        name: String,
        /// Each source and its problem, in the order they were asked.
        tried: Vec<Attempt>,
        /// What a person can do: which file, its checksum, and where to put it.
        by_hand: String,
    },
    /// The file system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

impl FetchError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> FetchError {
        let path = path.into();
        move |error| FetchError::Io { path, error }
    }
}

fn list(tried: &[Attempt]) -> String {
    tried.iter().map(|attempt| format!("  - {attempt}")).collect::<Vec<_>>().join("\n")
}
