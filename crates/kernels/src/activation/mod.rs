//! SwiGLU (Shazeer 2020): `out = silu(gate) · up`.

use device::Cpu;

/// Elementwise; all slices have one length.
pub fn swiglu(cpu: &Cpu, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let _ = (cpu, gate, up, out);
    unimplemented!()
}
