//! Paged KV memory and the store into it. A token's *slot* is `page · page_size + offset`.

mod cpu;
mod element;
#[cfg(test)]
mod test;

use crate::lanes::LANES;
use crate::spread::spread;
pub(crate) use cpu::Writer;
use device::Cpu;
pub use element::KvFormat;
pub(crate) use element::{Bf16, Element};

/// The KV pages of every layer of one model. Target and drafter each have a pool; a token has
/// the same slot in both.
pub struct KvPool {
    /// Tokens a page holds.
    pub page_size: usize,
    /// Pages.
    pub pages: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements a head.
    pub head_dim: usize,
    layers: Vec<KvLayer>,
}

/// One layer's pages in one of the formats.
pub struct KvLayer(pub(crate) Stored);

/// [`KvLayer`] by its elements.
pub(crate) enum Stored {
    F32(Pages<f32>),
    Bf16(Pages<Bf16>),
    Int8(Pages<i8>),
}

/// One layer's pages, laid out for [`crate::attention`]: a head's part of a page is contiguous.
pub(crate) struct Pages<E> {
    /// Keys, rotated: `[pages, kv_heads, head_dim, page_size]`. Neighbouring tokens are
    /// neighbours in memory, so one vector holds one dimension of many keys.
    pub(crate) k: Vec<E>,
    /// Values: `[pages, kv_heads, page_size, padded_dim]`, see [`padded`].
    pub(crate) v: Vec<E>,
    /// What the elements of a key are multiplied by: `[pages, kv_heads, page_size]`; empty where the
    /// elements have no scales.
    pub(crate) k_scales: Vec<f32>,
    /// The same of the values.
    pub(crate) v_scales: Vec<f32>,
}

impl<E: Element> Pages<E> {
    /// Zeroed pages for so many keys, and values, of one head each.
    pub(crate) fn new(heads: usize, head_dim: usize) -> Pages<E> {
        let scales = if E::SCALED { heads } else { 0 };
        Pages {
            k: vec![E::default(); heads * head_dim],
            v: vec![E::default(); heads * padded(head_dim)],
            k_scales: vec![0.0; scales],
            v_scales: vec![0.0; scales],
        }
    }
}

/// Calls `$call` with `$pages` bound to the pages of a layer, whatever their elements are.
macro_rules! with_pages {
    ($layer:expr, $pages:ident => $call:expr) => {
        match $layer {
            $crate::kv_store::Stored::F32($pages) => $call,
            $crate::kv_store::Stored::Bf16($pages) => $call,
            $crate::kv_store::Stored::Int8($pages) => $call,
        }
    };
}
pub(crate) use with_pages;

impl KvPool {
    /// A pool of zeroed pages; the system hands out their memory when it is first written.
    pub fn new(
        format: KvFormat,
        layers: usize,
        pages: usize,
        page_size: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> KvPool {
        let heads = pages * page_size * kv_heads;
        let layer = |_| {
            KvLayer(match format {
                KvFormat::F32 => Stored::F32(Pages::new(heads, head_dim)),
                KvFormat::Bf16 => Stored::Bf16(Pages::new(heads, head_dim)),
                KvFormat::Int8 => Stored::Int8(Pages::new(heads, head_dim)),
            })
        };
        let layers = (0..layers).map(layer).collect();
        KvPool { page_size, pages, kv_heads, head_dim, layers }
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> &KvLayer {
        &self.layers[layer]
    }

    /// Bytes one token takes over all layers.
    pub fn token_bytes(format: KvFormat, layers: usize, kv_heads: usize, head_dim: usize) -> usize {
        let elements = (head_dim + padded(head_dim)) * format.element_bytes();
        layers * kv_heads * (elements + 2 * format.scale_bytes())
    }

    /// Stores row `r` of `k` and `v` (`[rows, kv_heads · head_dim]`) at `slots[r]` of `layer`.
    ///
    /// # Panics
    /// When a slot lies outside the pool, or the shapes do not match.
    pub fn store(&mut self, cpu: &Cpu, layer: usize, slots: &[u32], k: &[f32], v: &[f32]) {
        let (heads, dim) = (self.kv_heads, self.head_dim);
        let len = slots.len() * heads * dim;
        assert_eq!((k.len(), v.len()), (len, len), "k and v have a row for each slot");
        let writer = self.writer(layer, slots);
        spread(cpu, heads, 2 * len, &|head| {
            for (row, &slot) in slots.iter().enumerate() {
                let at = (row * heads + head) * dim;
                // SAFETY: a head is one part.
                unsafe { writer.put(head, slot, &k[at..at + dim], &v[at..at + dim]) };
            }
        });
    }

    /// For storing at `slots` of `layer`.
    ///
    /// # Panics
    /// When a slot lies outside the pool.
    pub(crate) fn writer(&mut self, layer: usize, slots: &[u32]) -> Writer<'_> {
        if let Some(slot) = slots.iter().find(|&&s| s as usize >= self.pages * self.page_size) {
            panic!("slot {slot} in a pool of {} pages of {}", self.pages, self.page_size);
        }
        let shape = cpu::Shape::of(self);
        Writer::new(shape, &mut self.layers[layer].0)
    }
}

/// Elements one head of one value takes: `head_dim` rounded up to whole vectors of 16.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}
