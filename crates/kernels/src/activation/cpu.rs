//! SwiGLU on the CPU.

use crate::lanes::{Kernel, LANES, Lanes, Level};

/// `out = silu(gate) · up`. All slices have one length.
pub(crate) fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    Level::best().dispatch(SwiGlu { gate, up, out });
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (gates, gate_rest) = self.gate.as_chunks::<LANES>();
        let (ups, up_rest) = self.up.as_chunks::<LANES>();
        let (outs, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            vector(lanes, gate, up, out);
        }
        let rest = out_rest.len();
        if rest > 0 {
            let (mut gate, mut up, mut out) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            gate[..rest].copy_from_slice(gate_rest);
            up[..rest].copy_from_slice(up_rest);
            vector(lanes, &gate, &up, &mut out);
            out_rest.copy_from_slice(&out[..rest]);
        }
    }
}

#[inline(always)]
fn vector<L: Lanes>(lanes: L, gate: &[f32; LANES], up: &[f32; LANES], out: &mut [f32; LANES]) {
    let g = lanes.load(gate);
    let e = lanes.exp(lanes.sub(lanes.splat(0.0), g));
    let silu = lanes.div(g, lanes.add(lanes.splat(1.0), e));
    // Below -87 silu is smaller than 10⁻³⁵, but e⁻ᵍ is about to leave the range of `exp`.
    let silu = lanes.zero_below(silu, g, lanes.splat(-87.0));
    lanes.store(lanes.mul(silu, lanes.load(up)), out);
}
