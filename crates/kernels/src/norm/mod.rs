//! Root-mean-square norm (Zhang & Sennrich 2019): `y = x / sqrt(mean(x²) + eps) · weight`.

use device::Cpu;

/// Norms each row of `x` (`[rows, weight.len()]`) into `out` (same shape).
pub fn rms_norm(cpu: &Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let _ = (cpu, x, weight, eps, out);
    unimplemented!()
}

/// [`rms_norm`] in place: q/k norms, where a row is one head.
pub fn rms_norm_in_place(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) {
    let _ = (cpu, x, weight, eps);
    unimplemented!()
}

/// `x += delta` (the residual stream), then `out = rms_norm(x)`. All `[rows, weight.len()]`.
pub fn add_rms_norm(
    cpu: &Cpu,
    x: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let _ = (cpu, x, delta, weight, eps, out);
    unimplemented!()
}
