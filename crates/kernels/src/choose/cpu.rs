//! The choice on the CPU: the largest logit of each row, then the filters, then the noise. A row
//! may be cut into segments for the threads; maxima merge to the same token however it is cut.

use super::filter::{self, Argmax, Cut, inverse_temperature};
use super::head::{Largest, NOTHING, larger};
use super::noise::{self, BLOCK};
use super::shape::{Shape, Shaped};
use super::{Draw, Ready, Rows};
use crate::lanes::{Kernel, LANES, Lanes, Level};
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Tokens that are worth a thread.
const SEGMENT: usize = 16 * 1024;

/// How the rows of a launch are cut for the threads.
struct Segments {
    a_row: usize,
    len: usize,
    allowed: usize,
}

impl Segments {
    fn new(cpu: &Cpu, rows: usize, allowed: usize) -> Segments {
        let wanted = cpu.threads().div_ceil(rows.max(1)).min(allowed.div_ceil(SEGMENT));
        let len = allowed.div_ceil(wanted).next_multiple_of(BLOCK);
        Segments { a_row: allowed.div_ceil(len), len, allowed }
    }

    /// The results of `body(row, tokens)` for every segment, those of row `i` of `rows` together.
    /// `elements` is the work in all.
    fn map<T: Copy + Send>(
        &self,
        cpu: &Cpu,
        rows: &[usize],
        elements: usize,
        empty: T,
        body: &(dyn Fn(usize, Range<usize>) -> T + Sync),
    ) -> Vec<T> {
        let mut results = vec![empty; rows.len() * self.a_row];
        let shared = Disjoint::new(&mut results);
        spread(cpu, rows.len() * self.a_row, elements, &|part| {
            let start = part % self.a_row * self.len;
            let tokens = start..(start + self.len).min(self.allowed);
            // SAFETY: each part writes its own result.
            let result = unsafe { shared.slice(part..part + 1) };
            result[0] = body(rows[part / self.a_row], tokens);
        });
        results
    }
}

/// A row to be sampled, and the best token so far.
struct Sampled<'a> {
    draw: &'a Draw,
    largest: f32,
    cut: Cut,
    best: Best,
}

/// A token and its score: `(logit − largest) / T` and the noise.
#[derive(Clone, Copy)]
struct Best {
    id: u32,
    score: f64,
}

impl Best {
    /// The better of two: the larger score, then the smaller id.
    #[inline(always)]
    fn or(self, other: Best) -> Best {
        let better = other.score > self.score || (other.score == self.score && other.id < self.id);
        if better { other } else { self }
    }
}

pub(super) fn choose(
    cpu: &Cpu,
    level: Level,
    (rows, known): (&Rows<'_>, Option<&[Largest]>),
    draws: &[Draw],
    shapes: &[Shape<'_>],
    out: &mut [u32],
) {
    assert_eq!(out.len(), draws.len(), "a place for each choice");
    assert!(shapes.is_empty() || shapes.len() == draws.len(), "a shape for each row, or none");
    let ready = Ready { rows, shaped: Shaped::new(cpu, rows, shapes) };
    let mut largest = known.map_or_else(|| vec![NOTHING; draws.len()], <[Largest]>::to_vec);
    let unknown = |&row: &usize| known.is_none() || ready.shaped.row(row, rows.allowed).is_some();
    let unknown: Vec<usize> = (0..draws.len()).filter(unknown).collect();
    let segments = Segments::new(cpu, unknown.len(), rows.allowed);
    let found =
        segments.map(cpu, &unknown, unknown.len() * rows.allowed, NOTHING, &|row, tokens| {
            let (id, logit) = level.dispatch(Argmax { row: &ready.row(row)[tokens.clone()] });
            (tokens.start as u32 + id, logit)
        });
    for (&row, segments) in unknown.iter().zip(found.chunks_exact(segments.a_row)) {
        largest[row] = segments.iter().copied().reduce(larger).expect("a segment");
    }
    let mut sampled = Vec::new();
    for (row, (id, logit)) in largest.into_iter().enumerate() {
        out[row] = match shapes.get(row) {
            Some(shape) if logit == f32::NEG_INFINITY => shape.last_resort(rows.allowed),
            _ => id,
        };
        if draws[row].temperature > 0.0 && logit.is_finite() {
            sampled.push((row, logit));
        }
    }
    if !sampled.is_empty() {
        sample(cpu, level, &ready, draws, &sampled, out);
    }
}

/// Chooses with noise for the rows `sampled` (row, largest logit); `out` holds the greedy choice.
fn sample(
    cpu: &Cpu,
    level: Level,
    ready: &Ready<'_>,
    draws: &[Draw],
    sampled: &[(usize, f32)],
    out: &mut [u32],
) {
    let allowed = ready.rows.allowed;
    let whole = Segments { a_row: 1, len: allowed, allowed };
    let indices: Vec<usize> = (0..sampled.len()).collect();
    let ranked = sampled.iter().filter(|(row, _)| filter::ranks(&draws[*row])).count();
    let cuts = whole.map(cpu, &indices, ranked * allowed, None, &|i, _| {
        let (row, largest) = sampled[i];
        Some(Cut::new(level, ready.row(row), largest, &draws[row]))
    });
    let plans: Vec<Sampled<'_>> = sampled
        .iter()
        .zip(cuts)
        .map(|(&(row, largest), cut)| {
            let (draw, id) = (&draws[row], out[row]);
            let score = noise::gumbel(noise::word(draw.seed, draw.position, id));
            let cut = cut.expect("every row has its cut");
            Sampled { draw, largest, cut, best: Best { id, score } }
        })
        .collect();
    let segments = Segments::new(cpu, sampled.len(), allowed);
    let nothing = Best { id: u32::MAX, score: f64::NEG_INFINITY };
    let bests = segments.map(cpu, &indices, sampled.len() * allowed, nothing, &|i, tokens| {
        let first = tokens.start;
        let logits = &ready.row(sampled[i].0)[tokens];
        level.dispatch(Scan { plan: &plans[i], logits, first })
    });
    for (&(row, _), bests) in sampled.iter().zip(bests.chunks_exact(segments.a_row)) {
        out[row] = bests.iter().copied().fold(nothing, Best::or).id;
    }
}

/// The best token of a segment, or the plan's when that is better.
///
/// The noise is bounded, so most tokens cannot win: 64 at a time are passed over without drawing
/// when even the largest noise would not lift one to the best so far; of the others, only those
/// whose number is small enough get the logarithms.
struct Scan<'a> {
    plan: &'a Sampled<'a>,
    logits: &'a [f32],
    /// The first token, a multiple of [`BLOCK`].
    first: usize,
}

impl Kernel for Scan<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Best {
        let mut best = self.plan.best;
        let inverse = inverse_temperature(self.plan.draw);
        let floor = self.plan.cut.score.max((self.plan.cut.logit - self.plan.largest) * inverse);
        let (largest, inverse) = (lanes.splat(self.plan.largest), lanes.splat(inverse));
        let lowest = lanes.splat(f32::NEG_INFINITY);
        for (index, chunk) in self.logits.chunks(BLOCK).enumerate() {
            let mut logits = [f32::NEG_INFINITY; BLOCK];
            let logits = if let Ok(whole) = chunk.try_into() {
                whole
            } else {
                logits[..chunk.len()].copy_from_slice(chunk);
                &logits
            };
            let (vectors, _) = logits.as_chunks::<LANES>();
            let mut scores = [lowest; 4];
            for i in 0..4 {
                let logit = lanes.max(lanes.load(&vectors[i]), lowest);
                scores[i] = lanes.mul(lanes.sub(logit, largest), inverse);
            }
            let most = lanes.max(lanes.max(scores[0], scores[1]), lanes.max(scores[2], scores[3]));
            let reach = floor.max(best.score as f32 - noise::MOST);
            if lanes.ge(most, lanes.splat(reach)) != 0 {
                best = self.draw(lanes, index * BLOCK, &scores, best);
            }
        }
        best
    }
}

impl Scan<'_> {
    /// The best of `best` and the tokens `at .. at + 64` of the segment, of these `scores`.
    #[inline(always)]
    fn draw<L: Lanes>(&self, lanes: L, at: usize, scores: &[L::F; 4], mut best: Best) -> Best {
        let Draw { seed, position, .. } = *self.plan.draw;
        let first = (self.first + at) as u32;
        let words = noise::words(seed, position, first / BLOCK as u32);
        for i in 0..4 {
            // A token wins when -ln(1 - u) ≤ e^(score − best), and -ln(1 - u) ≥ u. `low` is at
            // most u, and the factor outweighs the rounding of the right-hand side.
            let mut low = [0.0; LANES];
            for lane in 0..LANES {
                low[lane] = (words[i][lane] >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
            }
            let x = lanes.sub(scores[i], lanes.splat(best.score as f32));
            let limit = lanes.mul(lanes.exp(x), lanes.splat(1.0001));
            let mut candidates = lanes.ge(limit, lanes.load(&low));
            if candidates == 0 {
                continue;
            }
            let mut scores_of = [0.0; LANES];
            lanes.store(scores[i], &mut scores_of);
            while candidates != 0 {
                let lane = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                let within = i * LANES + lane;
                let (id, score) = (first + within as u32, scores_of[lane]);
                // Past the end of the segment the score is −∞, and no logit is needed.
                let logit = self.logits.get(at + within).copied().unwrap_or(f32::NEG_INFINITY);
                if self.plan.cut.keeps(id, logit, score) {
                    let score = f64::from(score) + noise::gumbel(words[i][lane]);
                    best = best.or(Best { id, score });
                }
            }
        }
        best
    }
}
