//! Grouped-query attention of ragged rows over paged KV.
//!
//! Keys are split at multiples of [`SPLIT`] token positions and the splits are merged in order
//! (online softmax, Milakov & Gimelshein 2018), never by batch, page size or threads: a row's
//! result depends on its own query and its own keys.

use crate::kv_store::{KvLayer, KvPool};
use device::Cpu;

/// Tokens of one split of the keys.
pub const SPLIT: usize = 256;

/// One request's rows in a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row of the request in `q`.
    pub start: usize,
    /// Rows.
    pub len: usize,
    /// Tokens of the request before the first row: its keys are positions `0 .. context`.
    pub context: usize,
    /// Where the request's page ids begin in the launch's `pages`. Token `t` lies in page
    /// `pages[first_page + t / page_size]`.
    pub first_page: usize,
}

/// What a row sees besides its request's context.
pub enum Tail<'a> {
    /// The rows up to and including itself, whose keys are already in the pool.
    Causal,
    /// All rows of its span, both ways (the DFlash block): their keys and values are `k` and
    /// `v`, `[rows, kv_heads · head_dim]`, and never enter the pool.
    Block {
        /// Keys, rotated.
        k: &'a [f32],
        /// Values.
        v: &'a [f32],
    },
}

/// What a launch attends to, besides the queries.
pub struct Launch<'a> {
    /// The shape of the pages.
    pub pool: &'a KvPool,
    /// The layer's pages.
    pub layer: &'a KvLayer,
    /// Page ids of all spans.
    pub pages: &'a [u32],
    /// The requests.
    pub spans: &'a [Span],
    /// What rows see of their own launch.
    pub tail: Tail<'a>,
    /// Query heads; a multiple of the pool's KV heads.
    pub heads: usize,
    /// Factor on `q·k`, usually `1/√head_dim`.
    pub scale: f32,
    /// Sliding window: a row at position `p` sees keys at positions `> p - window`.
    pub window: Option<usize>,
}

/// `out` and `q` are `[rows, heads · head_dim]`.
pub fn attention(cpu: &Cpu, launch: &Launch<'_>, q: &[f32], out: &mut [f32]) {
    let _ = (cpu, launch, q, out);
    unimplemented!()
}
