//! GGUF files (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>), versions 2 and 3,
//! little endian, whole or split, of the Llama and Qwen families.

mod config;
mod metadata;
mod names;
mod parse;
mod reader;
mod split;

pub use metadata::{Array, Metadata, Value};
pub use parse::{File, parse};

use super::store::{Bytes, Entry, Part, Store};
use super::{Checkpoint, Source};
use crate::error::LoadError;
use config::Family;
use split::Place;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Opens the model that the file at `path` is, or is a part of.
pub(super) fn open(path: &Path) -> Result<Checkpoint, LoadError> {
    let part = Part::open(path)?;
    let file = parse(path, part.bytes.as_slice())?;
    let place = Place::of(&file.metadata)?;
    if place.count == 1 {
        return assemble(path, vec![part], vec![file]);
    }
    let paths = split::siblings(path, place)?;
    let mut parts = Vec::with_capacity(paths.len());
    let mut files = Vec::with_capacity(paths.len());
    for (index, sibling) in paths.iter().enumerate() {
        if !sibling.exists() {
            return Err(LoadError::new(
                sibling,
                "file",
                format!("part {} of {} is missing; fetch it too", index + 1, place.count),
            ));
        }
        let part = Part::open(sibling)?;
        let file = parse(sibling, part.bytes.as_slice())?;
        if Place::of(&file.metadata)? != (Place { index, count: place.count }) {
            return Err(LoadError::new(
                sibling,
                "split.no",
                "does not agree with the file's name: the parts are of different models",
            ));
        }
        parts.push(part);
        files.push(file);
    }
    assemble(path, parts, files)
}

/// The model of one whole file's bytes.
pub(super) fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Checkpoint, LoadError> {
    let file = parse(path, &bytes)?;
    let place = Place::of(&file.metadata)?;
    if place.count > 1 {
        return Err(LoadError::new(path, "split.count", "the bytes are one part of a split model"));
    }
    assemble(path, vec![Part { path: path.into(), bytes: Bytes::Memory(bytes) }], vec![file])
}

/// Whether `folder` holds GGUF models, by their file names.
///
/// # Errors
/// A folder that cannot be listed.
pub(super) fn models_in(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let unreadable = |error: std::io::Error| LoadError::new(folder, "folder", error.to_string());
    let mut seen = BTreeSet::new();
    let mut models = Vec::new();
    let mut names = std::fs::read_dir(folder)
        .and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>()
        })
        .map_err(unreadable)?;
    names.sort();
    for name in names {
        let Some(name) = name.to_str().filter(|name| name.ends_with(".gguf")) else { continue };
        // The parts of one split model count once.
        let model = match split::parse_name(name) {
            Some((prefix, place)) => format!("{prefix}-of-{:05}", place.count),
            None => name.to_owned(),
        };
        if seen.insert(model) {
            models.push(folder.join(name));
        }
    }
    Ok(models)
}

/// One checkpoint from the parsed parts, in order.
fn assemble(path: &Path, parts: Vec<Part>, files: Vec<File>) -> Result<Checkpoint, LoadError> {
    let first = &files[0].metadata;
    let found: usize = files.iter().map(|file| file.tensors.len()).sum();
    if let Some(expected) = first.u32("split.tensors.count")?
        && expected as usize != found
    {
        return Err(LoadError::new(
            first.path(),
            "split.tensors.count",
            format!("is {expected}, but the parts hold {found} tensors"),
        ));
    }
    let family = Family::of(first)?;
    let heads = config::heads(first, family)?;
    let mut store = Store::new(parts);
    for (part, file) in files.iter().enumerate() {
        for tensor in &file.tensors {
            let name = names::hugging_face(&tensor.name).unwrap_or_else(|| tensor.name.clone());
            let order = family.rows(&name, heads);
            let (range, shape) = (tensor.range.clone(), tensor.shape.clone());
            store.insert(name, Entry::new(part, range, shape, tensor.format, order))?;
        }
    }
    let config = config::read(first, family, heads, &store)?;
    let mut notes = Vec::new();
    if config.tied_embeddings {
        notes.push("no output.weight: the output head is the embedding".to_owned());
    }
    let metadata = files.into_iter().next().expect("a model has at least one part").metadata;
    Ok(Checkpoint { path: path.into(), source: Source::Gguf(metadata), config, notes, store })
}
