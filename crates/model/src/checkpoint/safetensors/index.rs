//! `model.safetensors.index.json`: which shard holds which tensor.

use crate::error::LoadError;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file's name in its folder.
pub(super) const NAME: &str = "model.safetensors.index.json";

/// Tensor names by shard, both sorted.
#[derive(Debug, PartialEq)]
pub struct Index {
    /// Plain file names of the shards, each with the tensors it must hold.
    pub shards: BTreeMap<String, Vec<String>>,
}

/// Reads `bytes`, the contents of `path`.
///
/// # Errors
/// JSON of another form, no tensors, and shard names that are not plain file names.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Index, LoadError> {
    #[derive(serde::Deserialize)]
    struct Json {
        weight_map: BTreeMap<String, String>,
    }
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|e| LoadError::new(path, "weight_map", format!("cannot be read: {e}")))?;
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in json.weight_map {
        if !is_plain(&shard) {
            return Err(LoadError::new(
                path,
                tensor,
                format!("is mapped to `{shard}`, which is not a plain file name in the folder"),
            ));
        }
        shards.entry(shard).or_default().push(tensor);
    }
    if shards.is_empty() {
        return Err(LoadError::new(path, "weight_map", "lists no tensors"));
    }
    Ok(Index { shards })
}

/// A name of one component, on every system: no separators, drives, parents or NUL.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// The file of `shard`, which holds `tensor`, once it is known to lie in `folder`.
///
/// A link may lead out of the folder only where the Hugging Face cache lays its files: from
/// `snapshots/REVISION/` to `blobs/` of the same repository.
///
/// # Errors
/// A shard that is missing, or a link that leads elsewhere.
pub(super) fn locate(folder: &Path, shard: &str, tensor: &str) -> Result<PathBuf, LoadError> {
    let path = folder.join(shard);
    let error = |problem: String| LoadError::new(&path, tensor, problem);
    // Resolves links without opening the file they lead to.
    let real = path.canonicalize().map_err(|e| {
        error(format!("the index puts it into this shard, which is missing ({e}); fetch it too"))
    })?;
    let home = folder.canonicalize().map_err(|e| error(e.to_string()))?;
    if real.starts_with(&home) {
        return Ok(path);
    }
    let snapshots = home.parent().filter(|parent| parent.ends_with("snapshots"));
    if let Some(repository) = snapshots.and_then(Path::parent)
        && real.starts_with(repository.join("blobs"))
    {
        return Ok(path);
    }
    Err(error(format!(
        "the shard `{shard}` is a link out of the folder, to {}; put the file itself there",
        real.display()
    )))
}
