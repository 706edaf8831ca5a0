//! Paged KV memory and the store into it. A token's *slot* is `page · page_size + offset`.

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

/// One layer's pages: K and V, each `[pages · page_size, kv_heads, head_dim]`.
pub struct KvLayer {
    /// Keys, rotated.
    pub k: Vec<f32>,
    /// Values.
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
        let len = pages * page_size * kv_heads * head_dim;
        let layers =
            (0..layers).map(|_| KvLayer { k: vec![0.0; len], v: vec![0.0; len] }).collect();
        KvPool { page_size, pages, kv_heads, head_dim, layers }
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> &KvLayer {
        &self.layers[layer]
    }

    /// Bytes one token takes over all layers.
    pub fn token_bytes(layers: usize, kv_heads: usize, head_dim: usize) -> usize {
        layers * 2 * kv_heads * head_dim * size_of::<f32>()
    }

    /// Stores row `r` of `k` and `v` (`[rows, kv_heads · head_dim]`) at `slots[r]` of `layer`.
    ///
    /// # Panics
    /// When a slot lies outside the pool.
    pub fn store(&mut self, cpu: &Cpu, layer: usize, slots: &[u32], k: &[f32], v: &[f32]) {
        let _ = (cpu, layer, slots, k, v);
        unimplemented!()
    }
}
