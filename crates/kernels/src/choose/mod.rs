//! The choice of a token from a row of logits.
//!
//! Every random draw is a pure function of (request seed, absolute position, token id): Philox
//! 4×32-10 (Salmon et al. 2011) makes a uniform number `u`, and the choice is
//! `argmax(logit / T + Gumbel)` over the allowed tokens (Gumbel-max), where `Gumbel` is
//! `-ln(-ln(1 - u))`, the smallest id among equals. The drafter proposes with the same noise, so
//! it is right whenever it agrees with the target. `T = 0` is greedy: the largest logit, the
//! smallest id among equals.
//!
//! The generator's key is the seed (low word first). Token `t` takes word `t / 16 mod 4` of the
//! counter `(t / 64 · 16 + t mod 16, position, 0, 0)`: 16 counters make the numbers of 64
//! neighbouring tokens, 16 neighbours a word.

mod confidence;
mod contest;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod filter;
mod head;
#[cfg(test)]
mod head_test;
mod noise;
mod shape;
#[cfg(test)]
mod shape_test;
#[cfg(test)]
mod test;

pub use head::{Asked, Choices, Confidence, Kept, Outputs};
pub use shape::{Counts, Penalties, Shape};

use crate::lanes::Level;
use crate::spread::spread;
use device::{Cpu, Disjoint};
use shape::Shaped;

/// How one row draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Absolute position of the token being chosen.
    pub position: u32,
}

impl Draw {
    /// Whether some of the tokens that may be chosen are kept from it.
    pub fn filters(&self) -> bool {
        self.top_k != 0 || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// Log-probabilities of one chosen token, natural log, of the unmodified logits: no temperature, no
/// filter and no [`Shape`] is in them.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LogProbs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, best first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// Chooses a token for each row of `logits` (`[draws.len(), vocab]`) among ids below `allowed`
/// (a tokenizer may have fewer tokens than the embedding has rows). `shapes` has one for each row,
/// or none at all; a row's own is applied first. Filters apply in the order temperature, top-k,
/// top-p, min-p; equal logits rank by id. NaN counts as −∞, the lowest logit. A temperature counts as one from 10⁻³⁸ to
/// 10³⁰, about.
///
/// A row whose largest logit is infinite has no probabilities: its choice is greedy. Where no logit
/// is above −∞ it is what [`Shape::allowed`] says.
///
/// # Panics
/// When the lengths do not match or `allowed` is not in `1 ..= vocab`.
pub fn choose(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    allowed: usize,
    draws: &[Draw],
    shapes: &[Shape<'_>],
    out: &mut [u32],
) {
    assert!((1..=vocab).contains(&allowed), "{allowed} allowed tokens of a vocabulary of {vocab}");
    assert_eq!(logits.len(), draws.len() * vocab, "a draw for each row of {vocab} logits");
    let rows = Rows { logits, vocab, allowed };
    cpu::choose(cpu, Level::best(), (&rows, None), draws, shapes, out);
}

/// Log-probabilities of `token` and of the `top` most likely ids below `allowed` in one row. Ids
/// whose logit is −∞ or NaN are not listed, so `top` may be short.
///
/// # Panics
/// When `token` is not below `allowed`, or `allowed` exceeds the row.
pub fn log_probs(logits: &[f32], allowed: usize, token: u32, top: usize) -> LogProbs {
    let row = &logits[..allowed];
    assert!((token as usize) < allowed, "token {token} of {allowed} allowed");
    let level = Level::best();
    let (_, largest) = level.dispatch(filter::Argmax::of(row));
    let sum = level.dispatch(filter::SumExp { row, largest, inverse_temperature: 1.0 });
    let log_sum = f64::from(largest) + sum.ln();
    let of = |logit: f32| (f64::from(logit) - log_sum) as f32;
    LogProbs {
        chosen: of(row[token as usize]),
        top: filter::largest(level, row, top).into_iter().map(|(id, x)| (id, of(x))).collect(),
    }
}

/// How likely each of `chosen` is by its row of `logits` (`[chosen.len(), vocab]`), at temperature 1
/// and without filters: its softmax probability, 0 where the logit is no number.
///
/// # Panics
/// When a slice does not have its shape, or an id is not below `vocab`.
pub fn confidences(cpu: &Cpu, logits: &[f32], vocab: usize, chosen: &[u32], out: &mut [f32]) {
    assert_eq!(logits.len(), chosen.len() * vocab, "a choice for each row of {vocab} logits");
    assert_eq!(out.len(), chosen.len(), "a place for each confidence");
    let (level, shared) = (Level::best(), Disjoint::new(out));
    spread(cpu, chosen.len(), logits.len(), &|row| {
        let logits = &logits[row * vocab..(row + 1) * vocab];
        let largest = logits[chosen[row] as usize];
        // SAFETY: each part writes its own element.
        let out = unsafe { shared.slice(row..row + 1) };
        let others = filter::SumExp { row: logits, largest, inverse_temperature: 1.0 };
        out[0] = if largest.is_finite() { (1.0 / level.dispatch(others)) as f32 } else { 0.0 };
    });
}

/// The uniform number in (0, 1) behind the noise of (seed, position, token).
pub fn uniform(seed: u64, position: u32, token: u32) -> f32 {
    noise::uniform(noise::word(seed, position, token))
}

/// The logits of a launch: `[rows, vocab]`, of which the first `allowed` of each row count.
struct Rows<'a> {
    logits: &'a [f32],
    vocab: usize,
    allowed: usize,
}

impl<'a> Rows<'a> {
    /// A row as the model made it.
    fn raw(&self, row: usize) -> &'a [f32] {
        &self.logits[row * self.vocab..][..self.allowed]
    }
}

/// The rows that are chosen from.
struct Ready<'a> {
    rows: &'a Rows<'a>,
    shaped: Shaped,
}

impl Ready<'_> {
    /// A row with what its shape does to it.
    fn row(&self, row: usize) -> &[f32] {
        self.shaped.row(row, self.rows.allowed).unwrap_or_else(|| self.rows.raw(row))
    }
}
