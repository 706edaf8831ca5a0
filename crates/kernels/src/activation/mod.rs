//! SwiGLU (Shazeer 2020): `out = silu(gate) · up`.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

use device::Cpu;

/// Elementwise; all slices have one length. `silu(g) = g / (1 + e⁻ᵍ)`.
///
/// # Panics
/// When the lengths differ.
pub fn swiglu(cpu: &Cpu, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), out.len(), "gate and out of SwiGLU have one length");
    assert_eq!(up.len(), out.len(), "up and out of SwiGLU have one length");
    cpu::swiglu(cpu, gate, up, out);
}
