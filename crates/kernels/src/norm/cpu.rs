//! The norms on the CPU: of a row by one thread.

use crate::lanes::{Kernel, LANES, Lanes, Level};

/// `out` becomes the norm of `x`.
pub(super) fn norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    Level::best().dispatch(Norm { x, weight, eps, out });
}

/// The norm of each row of `x` in its place: of q and k, where a row is one head.
pub(crate) fn norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    Level::best().dispatch(NormInPlace { x, weight, eps });
}

/// `x += delta`, and `out` becomes the norm of that.
pub(super) fn add_norm(x: &mut [f32], delta: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    Level::best().dispatch(AddNorm { x, delta, weight, eps, out });
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
fn inverse_rms<L: Lanes>(lanes: L, x: &[f32], eps: f32) -> f32 {
    let (groups, rest) = x.as_chunks::<{ 4 * LANES }>();
    let mut sums = [lanes.splat(0.0); 4];
    for group in groups {
        let (vectors, _) = group.as_chunks::<LANES>();
        for i in 0..4 {
            let v = lanes.load(&vectors[i]);
            sums[i] = lanes.fma(v, v, sums[i]);
        }
    }
    if !rest.is_empty() {
        let mut padded = [0.0; 4 * LANES];
        padded[..rest.len()].copy_from_slice(rest);
        let (vectors, _) = padded.as_chunks::<LANES>();
        for i in 0..4 {
            let v = lanes.load(&vectors[i]);
            sums[i] = lanes.fma(v, v, sums[i]);
        }
    }
    let sum = lanes.add(lanes.add(sums[0], sums[1]), lanes.add(sums[2], sums[3]));
    1.0 / (lanes.sum(sum) / x.len() as f32 + eps).sqrt()
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Norm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            let inverse = inverse_rms(lanes, x, self.eps);
            for ((out, x), w) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * inverse * w;
            }
        }
    }
}

struct NormInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormInPlace<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for x in self.x.chunks_exact_mut(self.weight.len()) {
            let inverse = inverse_rms(lanes, x, self.eps);
            for (x, w) in x.iter_mut().zip(self.weight) {
                *x = *x * inverse * w;
            }
        }
    }
}

struct AddNorm<'a> {
    x: &'a mut [f32],
    delta: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for AddNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for (x, delta) in self.x.iter_mut().zip(self.delta) {
            *x += delta;
        }
        Norm { x: self.x, weight: self.weight, eps: self.eps, out: self.out }.run(lanes);
    }
}
