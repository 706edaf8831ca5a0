//! Logits as the head makes them, which finds the largest of each row on its way: what one thread has just written is
//! in its own cache.

use super::Rows;
use super::filter::Argmax;
use crate::gemm::{Product, Scratch, Weight};
use crate::lanes::Level;
use crate::rows::Given;
use device::Cpu;

/// The largest logit of a row and the smallest id that has it.
pub(super) type Largest = (u32, f32);

/// What a row has that has no logit above −∞.
pub(super) const NOTHING: Largest = (0, f32::NEG_INFINITY);

/// Logits of some rows, `[rows, vocab]`, and the largest of each.
#[derive(Default)]
pub struct Logits {
    values: Vec<f32>,
    vocab: usize,
    allowed: usize,
    largest: Vec<Largest>,
    /// Of each stretch that a thread made, row after row.
    found: Vec<Largest>,
}

impl Logits {
    /// Becomes those of normed rows `x` (`[rows, k]`) for the first `vocab` rows of `weight`, of which ids below
    /// `allowed` may be chosen.
    ///
    /// # Panics
    /// When the weight has fewer rows, or `allowed` is not in `1 ..= vocab`.
    pub fn fill(
        &mut self,
        cpu: &Cpu,
        scratch: &mut Scratch,
        (x, rows): (&[f32], usize),
        weight: &Weight,
        (vocab, allowed): (usize, usize),
    ) {
        assert!((1..=vocab).contains(&allowed), "{allowed} allowed of {vocab} logits");
        (self.vocab, self.allowed) = (vocab, allowed);
        self.values.resize(rows * vocab, 0.0);
        let level = Level::best();
        let look = |first: usize, logits: &[f32]| {
            let row = &logits[..logits.len().min(allowed.saturating_sub(first))];
            let (id, logit) = level.dispatch(Argmax { row });
            (first as u32 + id, logit)
        };
        scratch.fill(cpu, &Given::new(x, rows), [weight]);
        let product = Product::first(vocab, weight, &mut self.values);
        scratch.multiply_and(cpu, product, (NOTHING, &mut self.found), &look);
        self.largest.clear();
        self.largest.resize(rows, NOTHING);
        for found in self.found.chunks_exact(rows.max(1)) {
            self.largest.iter_mut().zip(found).for_each(|(a, &b)| *a = larger(*a, b));
        }
    }

    /// The logits, `[rows, vocab]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The rows to choose from, and the largest logit of each.
    pub(super) fn parts(&self) -> (Rows<'_>, &[Largest]) {
        let Logits { values, vocab, allowed, largest, .. } = self;
        (Rows { logits: values, vocab: *vocab, allowed: *allowed }, largest)
    }

    /// For each row the smallest of the ids with the largest logit: the greedy choice of a row that nothing is done to.
    pub fn likeliest(&self) -> impl Iterator<Item = u32> {
        self.largest.iter().map(|&(id, _)| id)
    }
}

/// Of two stretches of a row, the earlier one first, the larger.
pub(super) fn larger(a: Largest, b: Largest) -> Largest {
    if b.1 > a.1 { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::{Draw, Shape, choose, choose_from};
    use crate::format::Format;
    use crate::gemm::RowOrder;
    use crate::random::Random;

    /// Every choice is that of the same logits without what is known of them.
    #[test]
    fn what_the_head_finds_changes_no_choice() {
        let mut random = Random::fresh();
        for round in 0..60 {
            let (vocab, k) = ([1, 17, 640, 9000][random.below(4)], 8);
            let allowed = 1 + random.below(vocab);
            let rows = 1 + random.below(9);
            // Of few values, so that many logits are equal.
            let whole = |x: Vec<f32>| x.into_iter().map(f32::round).collect::<Vec<f32>>();
            let stored = whole(random.floats(vocab * k, 1.5));
            let bytes: Vec<u8> = stored.into_iter().flat_map(f32::to_le_bytes).collect();
            let cpu = Cpu::new(1 + round % 3);
            let weight = Weight::pack(&cpu, Format::F32, vocab, k, RowOrder::Plain, &bytes);
            let mut x = whole(random.floats(rows * k, 1.5));
            if round % 4 == 0 {
                x[..k].fill(f32::NAN);
            }
            let mut logits = Logits::default();
            logits.fill(&cpu, &mut Scratch::default(), (&x, rows), &weight, (vocab, allowed));
            let draw = |_| Draw {
                temperature: [0.0, 0.0, 0.7][random.below(3)],
                top_k: 0,
                top_p: [1.0, 0.5][random.below(2)],
                min_p: 0.0,
                seed: random.bits(),
                position: 7,
            };
            let draws: Vec<Draw> = (0..rows).map(draw).collect();
            let additions = [(random.below(allowed) as u32, f32::NEG_INFINITY)];
            let mut shape = |_| match random.below(3) {
                0 => Shape { additions: &additions, ..Shape::default() },
                _ => Shape::default(),
            };
            let shapes: Vec<Shape<'_>> = (0..rows).map(&mut shape).collect();
            for shapes in [&shapes[..], &[]] {
                let (mut known, mut looked_at) = (vec![0; rows], vec![0; rows]);
                choose_from(&cpu, &logits, &draws, shapes, &mut known);
                choose(&cpu, logits.values(), vocab, allowed, &draws, shapes, &mut looked_at);
                assert_eq!(known, looked_at, "{vocab} ids, {allowed} allowed, {draws:?}");
            }
        }
    }
}
