//! The store on the CPU: a part is one head of every row, so rows that share a slot keep their
//! order.

use super::{KvPool, padded};
use crate::spread::spread;
use device::{Cpu, Disjoint};

pub(super) fn store(
    pool: &mut KvPool,
    cpu: &Cpu,
    layer: usize,
    slots: &[u32],
    k: &[f32],
    v: &[f32],
) {
    let (page, heads, dim) = (pool.page_size, pool.kv_heads, pool.head_dim);
    let padded = padded(dim);
    let layer = &mut pool.layers[layer];
    let (shared_k, shared_v) = (Disjoint::new(&mut layer.k), Disjoint::new(&mut layer.v));
    spread(cpu, heads, k.len() + v.len(), &|head| {
        for (row, &slot) in slots.iter().enumerate() {
            let from = (row * heads + head) * dim;
            let (id, offset) = (slot as usize / page, slot as usize % page);
            let block = id * heads + head;
            // SAFETY: the block of a page that belongs to `head` is this part's alone.
            let (keys, values) = unsafe {
                let value = (block * page + offset) * padded;
                (
                    shared_k.slice(block * dim * page..(block + 1) * dim * page),
                    shared_v.slice(value..value + dim),
                )
            };
            values.copy_from_slice(&v[from..from + dim]);
            for (to, x) in keys[offset..].iter_mut().step_by(page).zip(&k[from..from + dim]) {
                *to = *x;
            }
        }
    });
}
