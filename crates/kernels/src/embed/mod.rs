//! Embedding lookup.

#[cfg(feature = "cuda")]
pub mod cuda;

use crate::gemm::Weight;
use device::Cpu;

/// `out[r] = weight[ids[r]]`; `out` is `[ids.len(), k]`.
///
/// # Panics
/// When an id is not a row of `weight`: no such id may enter a forward pass. When `out` has
/// another length.
pub fn embed(cpu: &Cpu, weight: &Weight, ids: &[u32], out: &mut [f32]) {
    assert_eq!(out.len(), ids.len() * weight.k(), "one row of the weight for each id");
    if out.is_empty() {
        return;
    }
    cpu.chunks(out, weight.k(), &|r, row| weight.row(ids[r] as usize, row));
}
