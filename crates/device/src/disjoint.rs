//! One slice, many writers: what a parallel region needs when its parts write pieces that are
//! not one contiguous chunk each (columns of a matrix, slots of a pool).

use std::marker::PhantomData;
use std::ops::Range;

/// A borrowed slice that several threads may write at once, each its own elements.
///
/// When every part writes one contiguous chunk, [`crate::Cpu::chunks`] does it safely.
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the wrapper only hands out `&mut` to elements through `slice`, whose caller promises
// that no two of them overlap; sending those across threads needs `T: Send` and nothing more.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows `slice` until the wrapper is gone.
    pub fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of `range`, writable.
    ///
    /// # Panics
    /// When `range` does not lie within the slice.
    ///
    /// # Safety
    /// While the result lives, no other result of this method may share an element with it, on
    /// any thread.
    #[allow(clippy::mut_from_ref)] // the point of the type; see the obligation above
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} lies outside a slice of {} elements",
            self.len
        );
        // SAFETY: the range is in bounds (checked above) of a slice borrowed mutably for 'a, and
        // the caller promises that nothing else reaches these elements meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_their_own_elements() {
        let mut data = vec![0u32; 64];
        let shared = Disjoint::new(&mut data);
        std::thread::scope(|scope| {
            for t in 0..4usize {
                let shared = &shared;
                scope.spawn(move || {
                    for i in (t..64).step_by(4) {
                        // SAFETY: thread `t` takes the elements congruent to `t` modulo 4.
                        let own = unsafe { shared.slice(i..i + 1) };
                        own[0] = i as u32 + 1;
                    }
                });
            }
        });
        assert!(data.iter().enumerate().all(|(i, &v)| v == i as u32 + 1));
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn a_range_outside_the_slice_panics() {
        let mut data = [0u8; 4];
        let shared = Disjoint::new(&mut data);
        // SAFETY: the only slice taken.
        unsafe { shared.slice(2..5) };
    }
}
