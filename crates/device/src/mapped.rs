//! A file's bytes, mapped read-only into memory: weights are read straight from the page cache.

use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// A file mapped read-only. The bytes live as long as the map; threads may share it.
///
/// The file must not be made shorter while it is mapped: reading past its new end ends the
/// process (SIGBUS). Replacing the file by renaming another over it is fine.
pub struct Mapped {
    map: Mmap,
}

impl Mapped {
    /// Maps the file at `path`. An empty file gives no bytes.
    ///
    /// # Errors
    /// What the system says about opening or mapping it.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private. Nobody may change the file's bytes under the
        // slices handed out; as for every engine that maps weights, that is asked of whoever
        // owns the file (see the type's documentation).
        let map = unsafe { Mmap::map(&file)? };
        Ok(Mapped { map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Gives the pages that hold `range` (bytes of the file) back to the system. Reading them
    /// again is allowed and fetches them from the file. Advice: a system that cannot do it keeps
    /// the pages.
    ///
    /// # Panics
    /// When `range` does not lie inside the file.
    pub fn release(&self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.map.len(),
            "released range {range:?} must lie inside the {} mapped bytes",
            self.map.len()
        );
        #[cfg(unix)]
        if !range.is_empty() {
            // SAFETY: the map is private, read-only and backed by a file, so pages that are
            // dropped come back with the same bytes: no slice of it can see a change.
            let advised = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.len(),
                )
            };
            // Advice only: when it fails the pages stay resident, and nothing else changes.
            drop(advised);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert_eq!(mapped.bytes(), data);
        mapped.release(10..90_000);
        mapped.release(0..data.len());
        assert_eq!(mapped.bytes(), data);
    }

    #[test]
    fn an_empty_file_has_no_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty");
        std::fs::write(&path, b"").unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert_eq!(mapped.bytes(), b"");
        mapped.release(0..0);
    }

    #[test]
    #[should_panic(expected = "must lie inside")]
    fn a_range_past_the_file_panics() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"four").unwrap();
        Mapped::open(&path).unwrap().release(2..5);
    }
}
