//! How likely a choice is by its row, which nobody keeps: what is known of a row in the end are sums of its units.

use super::filter::filled_up;
use crate::gemm::UNIT;
use crate::lanes::{Kernel, LANES, Lanes, Level};

/// What a unit of a row adds to the row's sum of exponentials: `sum · e^base`.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    /// 0 for most, see [`Weigh`].
    base: f32,
    /// `Σ e^(logit − base)`: sixteen lanes, then their sum. NaN adds nothing.
    sum: f32,
}

/// Weighs each unit of some logits; only the last may be short.
///
/// Where exponentials fit `f32` as they are, which those of most models do, their base is 0, and else the unit's largest
/// logit: its logits say which, so that nothing depends on who weighs it.
pub(super) struct Weigh<'a> {
    pub(super) logits: &'a [f32],
    pub(super) out: &'a mut [Weight],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        /// Sums are between e⁻⁴⁰ and 256 · e⁴⁰ then, and exponentials that are 0, below e⁻⁸⁷, are no part of them.
        const FITS: f32 = 40.0;
        let lowest = lanes.splat(f32::NEG_INFINITY);
        for (logits, out) in self.logits.chunks(UNIT).zip(self.out) {
            let padded;
            let whole: &[f32; UNIT] = if let Ok(whole) = logits.try_into() {
                whole
            } else {
                padded = filled_up(logits);
                &padded
            };
            let (vectors, _) = whole.as_chunks::<LANES>();
            let mut most = lowest;
            for vector in vectors {
                most = lanes.max(lanes.load(vector), most);
            }
            let low = lanes.ge(most, lanes.splat(-FITS)) == 0;
            let base = if low || lanes.ge(most, lanes.splat(FITS)) != 0 {
                Some(lanes.largest(most)).filter(|largest| largest.is_finite()).unwrap_or(0.0)
            } else {
                0.0
            };
            let mut sum = lanes.splat(0.0);
            for vector in vectors {
                let logits = lanes.max(lanes.load(vector), lowest);
                sum = lanes.add(sum, lanes.exp(lanes.sub(logits, lanes.splat(base))));
            }
            *out = Weight { base, sum: lanes.sum(sum) };
        }
    }
}

/// The softmax probability of a logit in a row of these weights, whose largest logit is `largest`; 0 where there are
/// no probabilities.
pub(super) fn share(level: Level, weights: &[Weight], largest: f32, logit: f32) -> f32 {
    if !largest.is_finite() || !logit.is_finite() {
        return 0.0;
    }
    let total = level.dispatch(Total { weights, largest });
    ((f64::from(logit) - f64::from(largest)).exp() / total) as f32
}

/// `Σ e^(logit − largest)` of a row, its units in order, in `f64`.
struct Total<'a> {
    weights: &'a [Weight],
    largest: f32,
}

impl Kernel for Total<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f64 {
        let mut total = 0.0;
        for weights in self.weights.chunks(LANES) {
            let mut factors = [f32::NEG_INFINITY; LANES];
            for (factor, weight) in factors.iter_mut().zip(weights) {
                *factor = weight.base - self.largest;
            }
            lanes.store(lanes.exp(lanes.load(&factors)), &mut factors);
            for (factor, weight) in factors.iter().zip(weights) {
                total += f64::from(*factor) * f64::from(weight.sum);
            }
        }
        total
    }
}
