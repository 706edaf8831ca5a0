//! How likely a choice is by its row, which nobody keeps: what is known of a row in the end are sums of its units.

use crate::gemm::UNIT;
use crate::lanes::{Kernel, LANES, Lanes, Level};

/// What a unit of a row adds to the row's sum of exponentials: `sum · e^base`.
#[derive(Clone, Copy, Default)]
pub(super) struct Weight {
    /// The unit's largest logit; 0 when that is infinite.
    base: f32,
    /// `Σ e^(logit − base)`: sixteen lanes, then their sum. NaN adds nothing.
    sum: f32,
}

/// Weighs each unit of some logits; only the last may be short.
pub(super) struct Weigh<'a> {
    pub(super) logits: &'a [f32],
    pub(super) out: &'a mut [Weight],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        const VECTORS: usize = UNIT / LANES;
        let lowest = lanes.splat(f32::NEG_INFINITY);
        for (logits, out) in self.logits.chunks(UNIT).zip(self.out) {
            let mut padded = [f32::NEG_INFINITY; UNIT];
            let whole: &[f32; UNIT] = if let Ok(whole) = logits.try_into() {
                whole
            } else {
                padded[..logits.len()].copy_from_slice(logits);
                &padded
            };
            let (vectors, _) = whole.as_chunks::<LANES>();
            let (mut logits, mut most) = ([lowest; VECTORS], lowest);
            for i in 0..VECTORS {
                logits[i] = lanes.max(lanes.load(&vectors[i]), lowest);
                most = lanes.max(logits[i], most);
            }
            let largest = lanes.largest(most);
            let base = if largest.is_finite() { largest } else { 0.0 };
            let mut sum = lanes.splat(0.0);
            for logits in logits {
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
