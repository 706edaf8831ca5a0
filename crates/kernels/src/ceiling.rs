//! What this machine can do at most: the limits that kernels are measured against. Each function
//! does a known amount of work over all threads; the caller times it.

use crate::lanes::{Kernel, LANES, Lanes, Level};
use device::{Cpu, Replicas};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

/// Accumulators of the multiply-adds.
const SUMS: usize = 12;
/// As many of them at a time as hide how long one operation takes, where a vector is one register.
const MANY: usize = SUMS;
/// The same where a vector is several registers, which have to hold them.
const FEW: usize = 4;

/// Reads `buffer`, of `words` 8 bytes long, once, where weights would lie. Larger than the caches, it comes from
/// memory. The sum of its words keeps the reading from being left out.
///
/// # Panics
/// When the buffer is shorter.
pub fn read(cpu: &Cpu, buffer: &Replicas, words: usize) -> u64 {
    /// Words of a part.
    const PART: usize = 1 << 16;
    let total = AtomicU64::new(0);
    cpu.parallel_here(words.div_ceil(PART), &|here, part| {
        let (words, _) = buffer.on(here)[..8 * words].as_chunks();
        let words = &words[part * PART..words.len().min((part + 1) * PART)];
        let add = |sum: u64, word: &[u8; 8]| sum.wrapping_add(u64::from_le_bytes(*word));
        total.fetch_add(words.iter().fold(0, add), Ordering::Relaxed);
    });
    total.into_inner()
}

/// Fused multiply-adds of `f32`, `rounds` on each thread; how many operations that is, a
/// multiplication and an addition counted apart.
pub fn floats(cpu: &Cpu, rounds: usize) -> u64 {
    cpu.parallel(cpu.threads(), &|_| {
        black_box(Level::best().dispatch(Fma { rounds }));
    });
    (2 * SUMS * LANES * rounds * cpu.threads()) as u64
}

struct Fma {
    rounds: usize,
}

impl Kernel for Fma {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        if L::MANY_REGISTERS {
            (0..SUMS / MANY).map(|_| multiply_add::<L, MANY>(lanes, self.rounds)).sum()
        } else {
            (0..SUMS / FEW).map(|_| multiply_add::<L, FEW>(lanes, self.rounds)).sum()
        }
    }
}

/// `rounds` multiply-adds to each of `N` accumulators; the sum of them.
#[inline(always)] // so that it is compiled for the instruction set of its caller
fn multiply_add<L: Lanes, const N: usize>(lanes: L, rounds: usize) -> f32 {
    let (a, b) = (lanes.splat(black_box(0.5)), lanes.splat(black_box(0.25)));
    let mut sums = [lanes.splat(1.0); N];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = lanes.fma(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| lanes.sum(sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_once() {
        let cpu = Cpu::new(2);
        let count = |index: usize, word: &mut [u8]| word.copy_from_slice(&index.to_le_bytes());
        let buffer = cpu.replicated(200_001 * 8, 8, &count);
        assert_eq!(read(&cpu, &buffer, 200_001), 200_000 * 200_001 / 2);
        assert_eq!(read(&cpu, &buffer, 0), 0);
    }

    #[test]
    fn operations_are_counted_over_all_threads() {
        // s becomes s / 2 + 1 / 4, from 1 on towards 1 / 2.
        let after_two = 0.625 * (SUMS * LANES) as f32;
        for level in Level::available() {
            assert_eq!(level.dispatch(Fma { rounds: 2 }), after_two, "{level:?}");
        }
        assert_eq!(floats(&Cpu::new(2), 10), 2 * 10 * 2 * 12 * 16);
    }
}
