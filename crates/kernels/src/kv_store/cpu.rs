//! The store on the CPU: a part is one head of every row, so rows that share a slot keep their
//! order, and no two threads write the same line of a page.

use super::{Bf16, Element, KvPool, Pages, Stored, padded};
use device::Disjoint;

/// A layer's pages while they are written.
pub(crate) enum Writer<'a> {
    F32(Open<'a, f32>),
    Bf16(Open<'a, Bf16>),
    Int8(Open<'a, i8>),
}

impl<'a> Writer<'a> {
    pub(super) fn new(shape: Shape, layer: &'a mut Stored) -> Writer<'a> {
        match layer {
            Stored::F32(pages) => Writer::F32(Open::new(shape, pages)),
            Stored::Bf16(pages) => Writer::Bf16(Open::new(shape, pages)),
            Stored::Int8(pages) => Writer::Int8(Open::new(shape, pages)),
        }
    }

    /// Stores a key and a value of `head` at `slot`.
    ///
    /// # Safety
    /// Nobody else stores anything of this head meanwhile.
    pub(crate) unsafe fn put(&self, head: usize, slot: u32, key: &[f32], value: &[f32]) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Writer::F32(open) => open.put(head, slot as usize, key, value),
                Writer::Bf16(open) => open.put(head, slot as usize, key, value),
                Writer::Int8(open) => open.put(head, slot as usize, key, value),
            }
        }
    }
}

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

/// [`Pages`] while they are written.
pub(crate) struct Open<'a, E> {
    shape: Shape,
    k: Disjoint<'a, E>,
    v: Disjoint<'a, E>,
    k_scales: Disjoint<'a, f32>,
    v_scales: Disjoint<'a, f32>,
}

impl<'a, E: Element> Open<'a, E> {
    fn new(shape: Shape, pages: &'a mut Pages<E>) -> Open<'a, E> {
        let Pages { k, v, k_scales, v_scales } = pages;
        Open {
            shape,
            k: Disjoint::new(k),
            v: Disjoint::new(v),
            k_scales: Disjoint::new(k_scales),
            v_scales: Disjoint::new(v_scales),
        }
    }

    /// See [`Writer::put`].
    ///
    /// # Safety
    /// As there.
    unsafe fn put(&self, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        let Shape { page, heads, dim } = self.shape;
        let padded = padded(dim);
        let (block, offset) = (slot / page * heads + head, slot % page);
        let at = block * page + offset;
        // SAFETY: the block of a page that belongs to `head` is the caller's alone.
        let (keys, values) = unsafe {
            (
                self.k.slice(block * dim * page..(block + 1) * dim * page),
                self.v.slice(at * padded..at * padded + dim),
            )
        };
        let found = [E::scale(key), E::scale(value)];
        if E::SCALED {
            for (scales, found) in [&self.k_scales, &self.v_scales].into_iter().zip(found) {
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
}

/// What an element is multiplied by: nothing of a vector that is as good as zero.
fn inverse(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { 1.0 / scale }
}
