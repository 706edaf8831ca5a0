//! The store on the CPU: a part is one head of every row, so rows that share a slot keep their
//! order.

use super::{Element, KvPool, Pages, padded};
use crate::spread::spread;
use device::{Cpu, Disjoint};

/// The shape of a pool's pages.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    page: usize,
    heads: usize,
    dim: usize,
}

impl Shape {
    pub(super) fn of(pool: &KvPool) -> Shape {
        Shape { page: pool.page_size, heads: pool.kv_heads, dim: pool.head_dim }
    }
}

pub(super) fn store<E: Element>(
    pages: &mut Pages<E>,
    cpu: &Cpu,
    Shape { page, heads, dim }: Shape,
    slots: &[u32],
    k: &[f32],
    v: &[f32],
) {
    let padded = padded(dim);
    let (all_k, all_v) = (Disjoint::new(&mut pages.k), Disjoint::new(&mut pages.v));
    let scales = [Disjoint::new(&mut pages.k_scales), Disjoint::new(&mut pages.v_scales)];
    spread(cpu, heads, k.len() + v.len(), &|head| {
        for (row, &slot) in slots.iter().enumerate() {
            let from = (row * heads + head) * dim;
            let (key, value) = (&k[from..from + dim], &v[from..from + dim]);
            let (id, offset) = (slot as usize / page, slot as usize % page);
            let block = id * heads + head;
            let at = block * page + offset;
            // SAFETY: the block of a page that belongs to `head` is this part's alone.
            let (keys, values) = unsafe {
                (
                    all_k.slice(block * dim * page..(block + 1) * dim * page),
                    all_v.slice(at * padded..at * padded + dim),
                )
            };
            let found = [E::scale(key), E::scale(value)];
            if E::SCALED {
                for (scales, found) in scales.iter().zip(found) {
                    // SAFETY: as above.
                    unsafe { scales.slice(at..at + 1)[0] = found };
                }
            }
            let inverses = found.map(inverse);
            for (to, x) in values.iter_mut().zip(value) {
                *to = E::encode(*x, inverses[1]);
            }
            for (to, x) in keys[offset..].iter_mut().step_by(page).zip(key) {
                *to = E::encode(*x, inverses[0]);
            }
        }
    });
}

/// What an element is multiplied by: nothing of a vector that is as good as zero.
fn inverse(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}
