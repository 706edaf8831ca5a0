//! Paged KV memory and the store into it. A token's *slot* is `page · page_size + offset`.

mod cpu;
#[cfg(test)]
mod test;

use crate::lanes::LANES;
use device::Cpu;

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

/// One layer's pages, laid out for [`crate::attention`]: a head's part of a page is contiguous.
pub struct KvLayer {
    /// Keys, rotated: `[pages, kv_heads, head_dim, page_size]`. Neighbouring tokens are
    /// neighbours in memory, so one vector holds one dimension of many keys.
    pub k: Vec<f32>,
    /// Values: `[pages, kv_heads, page_size, padded_dim]`, see [`KvPool::padded_dim`].
    pub v: Vec<f32>,
}

impl KvPool {
    /// A pool of zeroed pages; the system hands out their memory when it is first written.
    pub fn new(
        layers: usize,
        pages: usize,
        page_size: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> KvPool {
        let heads = pages * page_size * kv_heads;
        let layers = (0..layers)
            .map(|_| KvLayer {
                k: vec![0.0; heads * head_dim],
                v: vec![0.0; heads * padded(head_dim)],
            })
            .collect();
        KvPool { page_size, pages, kv_heads, head_dim, layers }
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> &KvLayer {
        &self.layers[layer]
    }

    /// Floats one head of one value takes: `head_dim` rounded up to whole vectors of 16.
    pub fn padded_dim(&self) -> usize {
        padded(self.head_dim)
    }

    /// Bytes one token takes over all layers.
    pub fn token_bytes(layers: usize, kv_heads: usize, head_dim: usize) -> usize {
        layers * kv_heads * (head_dim + padded(head_dim)) * size_of::<f32>()
    }

    /// Stores row `r` of `k` and `v` (`[rows, kv_heads · head_dim]`) at `slots[r]` of `layer`.
    ///
    /// # Panics
    /// When a slot lies outside the pool, or the shapes do not match.
    pub fn store(&mut self, cpu: &Cpu, layer: usize, slots: &[u32], k: &[f32], v: &[f32]) {
        let len = slots.len() * self.kv_heads * self.head_dim;
        assert_eq!((k.len(), v.len()), (len, len), "k and v have a row for each slot");
        if let Some(slot) = slots.iter().find(|&&s| s as usize >= self.pages * self.page_size) {
            panic!("slot {slot} in a pool of {} pages of {}", self.pages, self.page_size);
        }
        cpu::store(self, cpu, layer, slots, k, v);
    }
}

pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}
