//! Disjoint writes: one slice of which several threads each fill their own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that the parts of [`crate::Cpu::parallel`] share. Each part takes the ranges
/// that are its own; nothing checks at run time that two parts never take the same element.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is reached through `range` only, whose caller promises that no element is in
// two live ranges; moving `&mut T` between threads needs `T: Send` and nothing more.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above; the wrapper is the exclusive borrow of the slice.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Wraps `slice` for as long as the parts run.
    pub fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements in the whole slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// When `range` does not lie inside the slice.
    ///
    /// # Safety
    /// While the returned borrow lives, no other borrow from this value may hold an element of
    /// `range`, on any thread.
    #[allow(clippy::mut_from_ref)] // the point of the type; the obligation is the caller's
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "a part took {range:?} of a slice of {}",
            self.len
        );
        // SAFETY: the range is inside the slice (asserted), the slice is exclusively borrowed for
        // 'a by this value, and the caller promises that no other borrow overlaps.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_fill_their_own_ranges() {
        let mut filled = vec![0u32; 103];
        let parts = Disjoint::new(&mut filled);
        std::thread::scope(|scope| {
            for (part, start) in (0..103).step_by(10).enumerate() {
                let parts = &parts;
                scope.spawn(move || {
                    // SAFETY: each thread takes its own ten elements (the last one three).
                    let own = unsafe { parts.range(start..(start + 10).min(103)) };
                    own.fill(part as u32 + 1);
                });
            }
        });
        assert!(filled.iter().enumerate().all(|(i, &x)| x == i as u32 / 10 + 1));
    }

    #[test]
    #[should_panic(expected = "a part took 2..4 of a slice of 3")]
    fn a_range_past_the_end_panics() {
        let mut slice = [0u8; 3];
        let parts = Disjoint::new(&mut slice);
        // SAFETY: the only borrow there is.
        unsafe { parts.range(2..4) };
    }
}
