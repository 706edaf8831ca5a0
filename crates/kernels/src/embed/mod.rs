//! Embedding lookup.

use crate::gemm::Weight;
use device::{Cpu, Disjoint};

/// `out[r] = weight[ids[r]]`; `out` is `[ids.len(), k]`.
///
/// # Panics
/// When an id is not a row of `weight`: no such id may enter a forward pass. When `out` has
/// another length.
pub fn embed(cpu: &Cpu, weight: &Weight, ids: &[u32], out: &mut [f32]) {
    let k = weight.k();
    assert_eq!(out.len(), ids.len() * k, "one row of the weight for each id");
    let out = Disjoint::new(out);
    cpu.parallel_here(ids.len(), &|here, r| {
        // SAFETY: each row is one part's.
        weight.row(here, ids[r] as usize, unsafe { out.slice(r * k..(r + 1) * k) });
    });
}
