//! Reductions over one row of logits: the largest, the sum of exponentials, the most likely few;
//! and the filters built on them.

use super::Draw;
use crate::lanes::{Kernel, LANES, Lanes, Level};
use std::cmp::Ordering;

/// Logits looked at before a maximum is compared, or a sum of floats is carried to `f64`.
const CHUNK: usize = 512;

/// The largest logit and the smallest id that has it; `(0, above)` when none exceeds `above`.
pub(super) struct Argmax<'a> {
    pub(super) row: &'a [f32],
    pub(super) above: f32,
}

impl<'a> Argmax<'a> {
    /// Of all that exceed −∞.
    pub(super) fn of(row: &'a [f32]) -> Argmax<'a> {
        Argmax { row, above: f32::NEG_INFINITY }
    }
}

impl Kernel for Argmax<'_> {
    type Output = (u32, f32);

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> (u32, f32) {
        let (mut best, mut best_chunk) = (self.above, None);
        for (index, chunk) in self.row.chunks(CHUNK).enumerate() {
            let (vectors, rest) = chunk.as_chunks::<LANES>();
            let mut most = [lanes.splat(f32::NEG_INFINITY); 4];
            for (i, v) in vectors.iter().enumerate() {
                most[i % 4] = lanes.max(lanes.load(v), most[i % 4]);
            }
            let most = lanes.max(lanes.max(most[0], most[1]), lanes.max(most[2], most[3]));
            let largest = rest.iter().fold(lanes.largest(most), |a, &b| a.max(b));
            if largest > best {
                (best, best_chunk) = (largest, Some((index * CHUNK, chunk)));
            }
        }
        let id = best_chunk.map_or(0, |(start, chunk)| {
            start + chunk.iter().position(|&x| x == best).expect("the chunk holds its largest")
        });
        (id as u32, best)
    }
}

/// `Σ e^((logit − largest) / T)` over a row. Sixteen lanes of `f32` a chunk, the chunks in order
/// in `f64`. NaN logits add nothing.
pub(super) struct SumExp<'a> {
    pub(super) row: &'a [f32],
    pub(super) largest: f32,
    pub(super) inverse_temperature: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f64 {
        let (largest, inverse) = (lanes.splat(self.largest), lanes.splat(self.inverse_temperature));
        let lowest = lanes.splat(f32::NEG_INFINITY);
        let mut total = 0.0;
        for chunk in self.row.chunks(CHUNK) {
            let (vectors, rest) = chunk.as_chunks::<LANES>();
            let mut last = [f32::NEG_INFINITY; LANES];
            last[..rest.len()].copy_from_slice(rest);
            let mut sum = lanes.splat(0.0);
            for v in vectors.iter().chain(std::iter::once(&last)) {
                let logit = lanes.max(lanes.load(v), lowest);
                let x = lanes.mul(lanes.sub(logit, largest), inverse);
                sum = lanes.add(sum, lanes.exp(x));
            }
            total += f64::from(lanes.sum(sum));
        }
        total
    }
}

/// A few logits, and −∞ behind them.
pub(super) fn filled_up<const N: usize>(logits: &[f32]) -> [f32; N] {
    let mut filled = [f32::NEG_INFINITY; N];
    filled[..logits.len()].copy_from_slice(logits);
    filled
}

/// Order of likelihood: larger logits first, then smaller ids.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The `count` most likely tokens of a row, likeliest first; those at −∞ or NaN never.
pub(super) fn largest(level: Level, row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut found = Vec::new();
    if count > 0 {
        level.dispatch(Largest { row, count, found: &mut found });
        found.sort_unstable_by(likelier);
        found.truncate(count);
    }
    found
}

/// Collects a superset of the `count` most likely tokens.
struct Largest<'a> {
    row: &'a [f32],
    count: usize,
    found: &'a mut Vec<(u32, f32)>,
}

impl Kernel for Largest<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let room = (2 * self.count).max(256);
        // What is found later than `count` tokens of this logit ranks behind them all.
        let mut limit = f32::NEG_INFINITY;
        let (vectors, rest) = self.row.as_chunks::<LANES>();
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for (index, logits) in vectors.iter().chain(std::iter::once(&last)).enumerate() {
            if lanes.ge(lanes.load(logits), lanes.splat(limit)) == 0 {
                continue;
            }
            for (i, &logit) in logits.iter().enumerate() {
                if logit > limit {
                    self.found.push(((index * LANES + i) as u32, logit + 0.0));
                }
            }
            if self.found.len() >= room {
                self.found.select_nth_unstable_by(self.count - 1, likelier);
                self.found.truncate(self.count);
                limit = self.found[self.count - 1].1;
            }
        }
    }
}

/// What the filters leave of a row: a beginning of its tokens in order of likelihood.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    /// The last token kept: its logit, and its id, which decides among equals.
    pub(super) logit: f32,
    pub(super) id: u32,
    /// The least `(logit − largest) / T` kept.
    pub(super) score: f32,
    /// The row's largest logit.
    pub(super) largest: f32,
}

impl Cut {
    /// Everything is left, whatever the largest logit.
    pub(super) const NONE: Cut =
        Cut { logit: f32::NEG_INFINITY, id: u32::MAX, score: f32::NEG_INFINITY, largest: 0.0 };

    /// The filters of `draw` on `row`, whose largest logit is `largest`.
    pub(super) fn new(level: Level, row: &[f32], largest: f32, draw: &Draw) -> Cut {
        let score = if draw.min_p > 0.0 { draw.min_p.min(1.0).ln() } else { f32::NEG_INFINITY };
        let last = match (draw.top_k as usize, draw.top_p < 1.0) {
            (k, false) if k == 0 || k >= row.len() => None,
            (k, false) => self::largest(level, row, k).pop(),
            (k, true) if k == 0 || k >= row.len() => top_p(level, row, largest, draw),
            (k, true) => {
                let kept = self::largest(level, row, k);
                let total = kept.iter().map(|token| weight(token, largest, draw)).sum();
                nucleus(&kept, largest, draw, total).or(kept.last().copied())
            }
        };
        let (id, logit) = last.unwrap_or((u32::MAX, f32::NEG_INFINITY));
        Cut { logit, id, score, largest }
    }

    /// Whether a token is left. `inverse` is the factor on logits.
    pub(super) fn keeps(&self, id: u32, logit: f32, inverse: f32) -> bool {
        (logit - self.largest) * inverse >= self.score
            && (logit > self.logit || (logit == self.logit && id <= self.id))
    }

    /// No token is left whose `(logit − largest) / T` is below.
    pub(super) fn floor(&self, inverse: f32) -> f32 {
        self.score.max((self.logit - self.largest) * inverse)
    }
}

/// Whether `draw` leaves every token of a row.
pub(super) fn leaves_all(draw: &Draw) -> bool {
    !ranks(draw) && draw.min_p <= 0.0
}

/// Whether the filters of `draw` need the row's tokens ranked.
pub(super) fn ranks(draw: &Draw) -> bool {
    draw.top_k > 0 || draw.top_p < 1.0
}

/// The factor on logits; a temperature too small for it is as good as greedy. Of one too large noise alone decides,
/// except between logits that are further apart than `f32` tells, which the factor keeps apart.
pub(super) fn inverse_temperature(draw: &Draw) -> f32 {
    (1.0 / draw.temperature).clamp(1e-30, f32::MAX)
}

/// A token's probability times the row's total.
fn weight(token: &(u32, f32), largest: f32, draw: &Draw) -> f64 {
    f64::from((token.1 - largest) * inverse_temperature(draw)).exp()
}

/// The last of the fewest leading tokens that reach `top_p` of `total`; `None` when all of `kept`
/// do not.
fn nucleus(kept: &[(u32, f32)], largest: f32, draw: &Draw, total: f64) -> Option<(u32, f32)> {
    let enough = f64::from(draw.top_p) * total;
    let mut sum = 0.0;
    kept.iter().copied().find(|token| {
        sum += weight(token, largest, draw);
        sum >= enough
    })
}

/// [`nucleus`] of a whole row: the few most likely tokens mostly do, so few are ranked at first.
fn top_p(level: Level, row: &[f32], largest: f32, draw: &Draw) -> Option<(u32, f32)> {
    let inverse_temperature = inverse_temperature(draw);
    let total = level.dispatch(SumExp { row, largest, inverse_temperature });
    let mut count = 256;
    loop {
        let kept = self::largest(level, row, count);
        let last = nucleus(&kept, largest, draw, total);
        if last.is_some() || kept.len() < count {
            return last;
        }
        count *= 8;
    }
}
