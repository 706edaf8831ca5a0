//! Root-mean-square norm (Zhang & Sennrich 2019): `y = x / sqrt(mean(x²) + eps) · weight`.
//!
//! The squares of a row go to 64 partial sums (element `i` to sum `i mod 64`), added pairwise.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

use device::Cpu;

/// Norms each row of `x` (`[rows, weight.len()]`) into `out` (same shape).
///
/// # Panics
/// When the shapes do not match.
pub fn rms_norm(cpu: &Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out of a norm have one shape");
    cpu::rms_norm(cpu, x, weight, eps, out);
}

/// [`rms_norm`] in place: q/k norms, where a row is one head.
///
/// # Panics
/// When `x` is not whole rows.
pub fn rms_norm_in_place(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) {
    cpu::rms_norm_in_place(cpu, x, weight, eps);
}

/// `x += delta` (the residual stream), then `out = rms_norm(x)`. All `[rows, weight.len()]`.
///
/// # Panics
/// When the shapes do not match.
pub fn add_rms_norm(
    cpu: &Cpu,
    x: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    assert_eq!(x.len(), out.len(), "x and out of a norm have one shape");
    assert_eq!(x.len(), delta.len(), "x and delta of a norm have one shape");
    cpu::add_rms_norm(cpu, x, delta, weight, eps, out);
}
