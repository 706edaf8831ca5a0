//! The files of a checkpoint and where each tensor lies in them.

use super::{Tensor, TensorInfo};
use crate::error::LoadError;
use device::Mapped;
use kernels::format::Format;
use kernels::gemm::RowOrder;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A file's contents.
pub(super) enum Bytes {
    Mapped(Mapped),
    Memory(Vec<u8>),
}

impl Bytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map.bytes(),
            Bytes::Memory(bytes) => bytes,
        }
    }
}

/// One file.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) bytes: Bytes,
}

impl Part {
    /// Maps the regular file at `path`.
    ///
    /// # Errors
    /// A path that is no regular file, or that the system will not open.
    pub(super) fn open(path: &Path) -> Result<Part, LoadError> {
        let unreadable = |error: std::io::Error| LoadError::new(path, "file", error.to_string());
        // Opening a pipe or a device could block, so the kind is looked at first.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(LoadError::new(path, "file", "is not a regular file"));
        }
        let map = Mapped::open(path).map_err(unreadable)?;
        Ok(Part { path: path.into(), bytes: Bytes::Mapped(map) })
    }
}

/// A tensor's place.
pub(super) struct Entry {
    pub(super) part: usize,
    pub(super) range: Range<usize>,
    pub(super) shape: Vec<usize>,
    pub(super) format: Format,
    pub(super) order: RowOrder,
    used: AtomicBool,
}

impl Entry {
    pub(super) fn new(
        part: usize,
        range: Range<usize>,
        shape: Vec<usize>,
        format: Format,
        order: RowOrder,
    ) -> Entry {
        Entry { part, range, shape, format, order, used: AtomicBool::new(false) }
    }

    pub(super) fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }
}

/// All files and tensors of a checkpoint.
pub(super) struct Store {
    parts: Vec<Part>,
    entries: BTreeMap<String, Entry>,
}

impl Store {
    pub(super) fn new(parts: Vec<Part>) -> Store {
        Store { parts, entries: BTreeMap::new() }
    }

    /// Adds a tensor under the name it will be asked for.
    ///
    /// # Errors
    /// A name that is there already.
    pub(super) fn insert(&mut self, name: String, entry: Entry) -> Result<(), LoadError> {
        if let Some(other) = self.entries.get(&name) {
            let first = &self.parts[other.part].path;
            return Err(LoadError::new(
                &self.parts[entry.part].path,
                name,
                format!("is there twice (also in {})", first.display()),
            ));
        }
        self.entries.insert(name, entry);
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(super) fn path_of(&self, entry: &Entry) -> &Path {
        &self.parts[entry.part].path
    }

    pub(super) fn tensor(&self, entry: &Entry) -> Tensor<'_> {
        Tensor {
            shape: entry.shape.clone(),
            format: entry.format,
            order: entry.order,
            data: &self.parts[entry.part].bytes.as_slice()[entry.range.clone()],
        }
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.entries.iter().map(|(name, entry)| TensorInfo {
            name,
            shape: &entry.shape,
            format: entry.format,
            bytes: entry.range.len(),
        })
    }

    pub(super) fn unused(&self) -> Vec<String> {
        self.entries
            .iter()
            .filter(|(_, entry)| !entry.used.load(Ordering::Relaxed))
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.as_slice().len() as u64).sum()
    }

    /// Gives the pages of `data`, a slice of one of the files, back to the system.
    pub(super) fn release(&self, data: &[u8]) {
        let wanted = data.as_ptr_range();
        for part in &self.parts {
            let Bytes::Mapped(map) = &part.bytes else { continue };
            let file = map.bytes().as_ptr_range();
            if file.start <= wanted.start && wanted.end <= file.end {
                let start = wanted.start as usize - file.start as usize;
                map.release(start..start + data.len());
                return;
            }
        }
    }
}
