//! Hugging Face folders: `config.json` and safetensors, in one file or in shards.

mod header;
mod index;

pub use header::parse;
pub use index::{Index, parse as parse_index};

use super::config_json::{self, Body};
use super::store::{Bytes, Entry, Part, Store};
use super::{Checkpoint, Source, TensorEntry, head};
use crate::error::LoadError;
use kernels::gemm::RowOrder;
use std::path::{Path, PathBuf};

/// The weights of a model in one file.
const SINGLE: &str = "model.safetensors";
/// Larger JSON files are not what they claim to be.
const MAX_JSON: u64 = 100_000_000;

/// Whether `folder` holds safetensors weights.
pub(super) fn weights_in(folder: &Path) -> bool {
    folder.join(SINGLE).exists() || folder.join(index::NAME).exists()
}

/// Opens the folder. As in transformers, `model.safetensors` goes before an index.
pub(super) fn open(folder: &Path, body: Body) -> Result<Checkpoint, LoadError> {
    let config_path = folder.join("config.json");
    let json = read_json(&config_path)?;
    // The configuration is checked before gigabytes are mapped.
    let config = config_json::parse(&config_path, &json)?;
    let config = (config_json::read(&config_path, &config, body)?, config);
    let mut notes = Vec::new();
    let store = if folder.join(SINGLE).exists() {
        single(Part::open(&folder.join(SINGLE))?)?
    } else if folder.join(index::NAME).exists() {
        sharded(folder, &mut notes)?
    } else {
        return Err(LoadError::new(
            folder,
            SINGLE,
            format!("is missing, and so is {}; fetch the weights", index::NAME),
        ));
    };
    assemble(folder, Some(folder), config, store, notes, body)
}

/// The model of `config.json`'s bytes and one weight file's bytes.
pub(super) fn from_bytes(
    path: &Path,
    config: &[u8],
    weights: Vec<u8>,
    body: Body,
) -> Result<Checkpoint, LoadError> {
    let json = config_json::parse(path, config)?;
    let config = (config_json::read(path, &json, body)?, json);
    let store = single(Part { path: path.into(), bytes: Bytes::Memory(weights) })?;
    assemble(path, None, config, store, Vec::new(), body)
}

fn assemble(
    path: &Path,
    folder: Option<&Path>,
    (mut config, json): (crate::config::ModelConfig, serde_json::Value),
    store: Store,
    mut notes: Vec<String>,
    body: Body,
) -> Result<Checkpoint, LoadError> {
    if body == Body::Decoder {
        head::settle(path, &mut config, &store, &mut notes)?;
    }
    let source = Source::HuggingFace { folder: folder.map(PathBuf::from), config: json };
    Ok(Checkpoint { path: path.into(), source, config, notes, store })
}

fn single(part: Part) -> Result<Store, LoadError> {
    let tensors = parse(&part.path, part.bytes.as_slice())?;
    let mut store = Store::new(vec![part]);
    for tensor in tensors {
        insert(&mut store, 0, tensor)?;
    }
    Ok(store)
}

fn sharded(folder: &Path, notes: &mut Vec<String>) -> Result<Store, LoadError> {
    let index_path = folder.join(index::NAME);
    let index = parse_index(&index_path, &read_json(&index_path)?)?;
    // Every shard is known to lie in the folder before the first is opened.
    let mut paths = Vec::with_capacity(index.shards.len());
    for (shard, tensors) in &index.shards {
        paths.push(index::locate(folder, shard, &tensors[0])?);
    }
    let parts = paths.iter().map(|path| Part::open(path)).collect::<Result<Vec<_>, _>>()?;
    let tables = parts
        .iter()
        .map(|part| parse(&part.path, part.bytes.as_slice()))
        .collect::<Result<Vec<_>, _>>()?;
    let mut store = Store::new(parts);
    for (part, (table, (shard, listed))) in tables.into_iter().zip(&index.shards).enumerate() {
        for tensor in table {
            // The names of a shard are sorted, as the index's map is.
            if listed.binary_search(&tensor.name).is_ok() {
                insert(&mut store, part, tensor)?;
            } else {
                notes.push(format!("{shard}: {} is not in the index: ignored", tensor.name));
            }
        }
        for name in listed {
            if store.get(name).is_none() {
                return Err(LoadError::new(
                    folder.join(shard),
                    name,
                    format!("{} puts it into the shard `{shard}`, which lacks it", index::NAME),
                ));
            }
        }
    }
    Ok(store)
}

fn insert(store: &mut Store, part: usize, tensor: TensorEntry) -> Result<(), LoadError> {
    let TensorEntry { name, shape, format, range } = tensor;
    store.insert(name, Entry::new(part, range, shape, format, RowOrder::Plain))
}

pub(super) fn read_json(path: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |error: std::io::Error| LoadError::new(path, "file", error.to_string());
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() || about.len() > MAX_JSON {
        return Err(LoadError::new(path, "file", "is not a JSON file of a sane size"));
    }
    std::fs::read(path).map_err(unreadable)
}
