//! Memory for what stays as long as a model: pieces cut one after another from large slabs, which the
//! system is asked to keep in huge pages.
//!
//! A step reads every weight once. In pages of 4 KiB that is an address to look up every 64 cache
//! lines, and under a hypervisor each look-up walks two tables; in pages of 2 MiB it is one in 32,768. A
//! matrix of a small model is itself shorter than such a page, which is why matrices share slabs.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

/// Bytes of a huge page, on the systems that have them.
const HUGE: usize = 2 << 20;
/// Bytes of a slab. The system gives a page when it is first written, so a slab that is never filled costs
/// addresses only.
const SLAB: usize = 64 << 20;
/// Every piece starts on a cache line.
const LINE: usize = 64;

/// Zeroed bytes in a slab that they share with others; they start on a cache line. The slab goes back to
/// the system with the last of its pieces.
pub(crate) struct Lasting {
    slab: Arc<Slab>,
    start: usize,
    len: usize,
}

/// One mapping. Its bytes are reached through its pieces, which do not overlap.
struct Slab {
    /// The first huge page's first byte, inside `_map`.
    base: *mut u8,
    len: usize,
    /// Held for its end.
    _map: MmapMut,
}

// SAFETY: the pointer leads into the mapping that the slab owns, and the bytes are plain. Who may read or
// write which of them is a matter of the pieces: each byte belongs to one at most.
unsafe impl Send for Slab {}
// SAFETY: as above; a shared slab is only ever asked where its bytes are.
unsafe impl Sync for Slab {}

/// Cuts pieces from slabs.
#[derive(Default)]
pub(crate) struct Slabs {
    /// The slab that pieces are cut from, as long as one of them lives.
    open: Weak<Slab>,
    /// Bytes of it that are taken.
    used: usize,
}

impl Slabs {
    /// The next `len` bytes, zeroed.
    ///
    /// # Panics
    /// When the system has no addresses left.
    pub(crate) fn cut(&mut self, len: usize) -> Lasting {
        if len > SLAB / 2 {
            return Lasting { slab: Arc::new(Slab::new(len)), start: 0, len };
        }
        let open = self.open.upgrade().filter(|slab| self.used + len <= slab.len);
        let slab = open.unwrap_or_else(|| {
            self.used = 0;
            Arc::new(Slab::new(SLAB))
        });
        let start = self.used;
        self.used = (start + len).next_multiple_of(LINE);
        self.open = Arc::downgrade(&slab);
        Lasting { slab, start, len }
    }
}

impl Slab {
    /// A slab of at least `len` bytes, whole huge pages.
    fn new(len: usize) -> Slab {
        let len = len.next_multiple_of(HUGE);
        // One huge page more than is used: the mapping may begin between two.
        let mut map = MmapMut::map_anon(len + HUGE)
            .unwrap_or_else(|error| panic!("no {len} bytes of memory for weights: {error}"));
        // Advice only: without huge pages the slab is as good as any memory.
        #[cfg(target_os = "linux")]
        drop(map.advise(memmap2::Advice::HugePage));
        let start = map.as_ptr().align_offset(HUGE);
        let base = map[start..start + len].as_mut_ptr();
        Slab { base, len, _map: map }
    }
}

impl Deref for Lasting {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `cut` gave these bytes, which lie inside the slab, to this piece alone, and the slab lives
        // as long as the piece. The mapping is zeroed at first, so they are initialized.
        unsafe { std::slice::from_raw_parts(self.slab.base.add(self.start), self.len) }
    }
}

impl DerefMut for Lasting {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; whoever has the piece mutably has its bytes to himself.
        unsafe { std::slice::from_raw_parts_mut(self.slab.base.add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeroed_apart_and_aligned() {
        let mut slabs = Slabs::default();
        let lengths = [1, 64, 0, 65, 4096, HUGE + 1, SLAB / 2, SLAB / 2, SLAB + 3, 7];
        let mut pieces: Vec<Lasting> = lengths.iter().map(|&len| slabs.cut(len)).collect();
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert_eq!(piece.len(), lengths[i]);
            assert_eq!(piece.as_ptr().align_offset(LINE), 0);
            assert!(piece.iter().all(|&byte| byte == 0), "piece {i} is not zeroed");
            piece.fill(i as u8 + 1);
        }
        for (i, piece) in pieces.iter().enumerate() {
            assert!(
                piece.iter().all(|&byte| byte == i as u8 + 1),
                "piece {i} was written by another"
            );
        }
    }

    #[test]
    fn what_is_given_back_is_never_cut_again() {
        let mut slabs = Slabs::default();
        let (mut first, second) = (slabs.cut(100), slabs.cut(100));
        first.fill(9);
        drop(first);
        // The slab lives in `second`; a new piece comes from behind it.
        assert!(slabs.cut(100).iter().all(|&byte| byte == 0));
        drop(second);
        assert_eq!(slabs.open.strong_count(), 0, "the slab outlives its pieces");
        assert!(slabs.cut(100).iter().all(|&byte| byte == 0));
    }
}
