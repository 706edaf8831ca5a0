//! The norms on the CPU: a part is a run of whole rows.

use crate::lanes::{Kernel, LANES, Lanes, Level};
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Elements of a part: enough rows to be worth handing out.
const PART: usize = 1024;

/// Calls `body` with element ranges that cover `len` elements in whole rows of `width`.
fn rows(cpu: &Cpu, len: usize, width: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    assert!(width > 0 && len.is_multiple_of(width), "{len} elements are not rows of {width}");
    let step = (PART / width).max(1) * width;
    spread(cpu, len.div_ceil(step), len, &|part| body(part * step..((part + 1) * step).min(len)));
}

pub(super) fn rms_norm(cpu: &Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let shared = Disjoint::new(out);
    rows(cpu, x.len(), weight.len(), &|part| {
        // SAFETY: `rows` hands each element to one part.
        let out = unsafe { shared.slice(part.clone()) };
        Level::best().dispatch(Norm { x: &x[part], weight, eps, out });
    });
}

pub(super) fn rms_norm_in_place(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) {
    let len = x.len();
    let shared = Disjoint::new(x);
    rows(cpu, len, weight.len(), &|part| {
        // SAFETY: `rows` hands each element to one part.
        let x = unsafe { shared.slice(part) };
        Level::best().dispatch(NormInPlace { x, weight, eps });
    });
}

pub(super) fn add_rms_norm(
    cpu: &Cpu,
    x: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let len = x.len();
    let (shared_x, shared_out) = (Disjoint::new(x), Disjoint::new(out));
    rows(cpu, len, weight.len(), &|part| {
        // SAFETY: `rows` hands each element to one part.
        let (x, out) = unsafe { (shared_x.slice(part.clone()), shared_out.slice(part.clone())) };
        Level::best().dispatch(AddNorm { x, delta: &delta[part], weight, eps, out });
    });
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
