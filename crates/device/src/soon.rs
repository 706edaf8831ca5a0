//! What the region after the next one reads: threads that wait bring it nearer.
//!
//! Between two regions most threads wait, for the others or for what the caller does alone, while the memory
//! idles; and a region's first reads find nothing on its way. So a caller that knows says what will be
//! read, and threads ask for their share of it, a few lines between two looks at the gate. It changes no
//! bits and promises nothing: what is not asked for in time is read as ever.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Stretches that may be named at once.
const STRETCHES: usize = 3;
/// Bytes that a thread asks for at most, of each stretch: they stay in its second-level cache.
const SHARE: usize = 256 << 10;
/// Bytes between two looks at the gate.
const STEP: usize = 512;
const LINE: usize = 64;

/// Bytes that the threads read, each an equal share of what their group has: of its `total` bytes `before` stand
/// in front of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stretch {
    at: usize,
    len: usize,
    before: usize,
    total: usize,
}

/// What is read soon, as the caller of regions wants it published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Soon {
    stretches: [Stretch; STRETCHES],
}

impl Soon {
    /// Of groups of items, each a stretch that `read` finds. Those past [`STRETCHES`] are left out.
    pub(crate) fn of<T>(groups: &[&[T]], read: impl Fn(&T) -> &[u8]) -> Soon {
        let (mut soon, read) = (Soon::default(), &read);
        let all = groups.iter().flat_map(|group| {
            let total = group.iter().map(|item| read(item).len()).sum();
            group.iter().scan(0, move |before, item| {
                let (at, len) = (read(item).as_ptr().addr(), read(item).len());
                let stretch = Stretch { at, len, before: *before, total };
                *before += len;
                Some(stretch)
            })
        });
        soon.stretches.iter_mut().zip(all).for_each(|(to, stretch)| *to = stretch);
        soon
    }
}

/// Where it is published. Readers may see parts of two, and then ask for what nobody reads.
#[derive(Default)]
pub(crate) struct Board {
    turn: AtomicUsize,
    words: [AtomicUsize; 4 * STRETCHES],
}

impl Board {
    /// The caller of regions alone does this.
    pub(crate) fn publish(&self, soon: &Soon) {
        for (words, stretch) in self.words.chunks_exact(4).zip(soon.stretches) {
            let Stretch { at, len, before, total } = stretch;
            let values = [at, len, before, total];
            words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        }
        self.turn.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn read(&self) -> Soon {
        let word = |i: usize| self.words[i].load(Ordering::Relaxed);
        let stretch = |i: usize| Stretch {
            at: word(4 * i),
            len: word(4 * i + 1),
            before: word(4 * i + 2),
            total: word(4 * i + 3),
        };
        Soon { stretches: std::array::from_fn(stretch) }
    }
}

/// A thread's place in what is read soon.
#[derive(Default)]
pub(crate) struct Bringer {
    turn: usize,
    /// Addresses of what is left of its share.
    left: [(usize, usize); STRETCHES],
}

impl Bringer {
    /// Asks for a little of what the board says, for thread `thread` of `threads`; whether there was any left.
    pub(crate) fn step(&mut self, board: &Board, thread: usize, threads: usize) -> bool {
        let turn = board.turn.load(Ordering::Acquire);
        if turn != self.turn {
            self.turn = turn;
            self.left = board.read().stretches.map(|stretch| share(stretch, thread, threads));
        }
        let Some((from, to)) = self.left.iter_mut().find(|(from, to)| from < to) else {
            return false;
        };
        let end = (*from + STEP).min(*to);
        (*from..end).step_by(LINE).for_each(ask);
        *from = end;
        true
    }
}

/// A thread's addresses of a stretch.
fn share(stretch: Stretch, thread: usize, threads: usize) -> (usize, usize) {
    let Stretch { at, len, before, total } = stretch;
    let cut = |thread: usize| (total / threads * thread).saturating_sub(before).min(len);
    let from = cut(thread);
    let to = if thread + 1 == threads { len } else { cut(thread + 1) };
    (at.wrapping_add(from), at.wrapping_add(from + (to - from).min(SHARE)))
}

/// Asks for the line at an address, which need not be memory, to come into the second-level cache.
fn ask(at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(at));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: prefetching reads nothing.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread asks for of these groups.
    fn asked(groups: &[&[&[u8]]], thread: usize, threads: usize) -> Vec<(usize, usize)> {
        let shares = Soon::of(groups, |bytes| bytes)
            .stretches
            .map(|stretch| share(stretch, thread, threads));
        shares.into_iter().filter(|(from, to)| from < to).collect()
    }

    #[test]
    fn threads_share_what_a_group_has() {
        let memory = vec![0; 9 << 10];
        let at = memory.as_ptr().addr();
        let (a, rest) = memory.split_at(5 << 10);
        let (b, c) = rest.split_at(1 << 10);
        let together: &[&[&[u8]]] = &[&[a, b, c]];
        assert_eq!(asked(together, 0, 2), [(at, at + (9 << 9))]);
        let second = [
            (at + (9 << 9), at + (5 << 10)),
            (at + (5 << 10), at + (6 << 10)),
            (at + (6 << 10), at + (9 << 10)),
        ];
        assert_eq!(asked(together, 1, 2), second);
        let apart: &[&[&[u8]]] = &[&[a], &[c]];
        assert_eq!(asked(apart, 0, 2), [(at, at + (5 << 9)), (at + (6 << 10), at + (15 << 9))]);
        let whole: usize =
            (0..7).flat_map(|t| asked(together, t, 7)).map(|(from, to)| to - from).sum();
        assert_eq!(whole, 9 << 10, "nothing is left out, nothing is twice there");
    }

    #[test]
    fn a_bringer_asks_for_its_share_once_and_starts_anew_with_the_next() {
        let (first, second) = (vec![0; 4 * STEP], vec![0; 2 * SHARE + STEP]);
        let (board, mut bringer) = (Board::default(), Bringer::default());
        assert!(!bringer.step(&board, 0, 1), "nothing was said yet");
        let mut steps = |soon: Soon| {
            board.publish(&soon);
            std::iter::from_fn(|| bringer.step(&board, 0, 1).then_some(())).count()
        };
        let soon = |bytes: &[u8]| Soon::of(&[&[bytes]], |bytes| bytes);
        assert_eq!(steps(soon(&first)), 4);
        assert_eq!(steps(soon(&second)), SHARE / STEP, "no more than stays near");
        assert_eq!(steps(Soon::default()), 0);
    }
}
