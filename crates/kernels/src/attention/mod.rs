//! Grouped-query attention of ragged rows over paged KV.
//!
//! Keys are split at multiples of [`SPLIT`] token positions and the splits are merged in order
//! (online softmax, Milakov & Gimelshein 2018), never by batch, page size or threads: a row's
//! result depends on its own query and its own keys.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;
mod tile;

use crate::kv_store::{KvLayer, KvPool};
use crate::lanes::Level;
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
    /// Rows of its span (the DFlash block), as `sight` says: their keys and values are `k` and
    /// `v`, `[rows, kv_heads · head_dim]`, and never enter the pool.
    Block {
        /// Keys, rotated.
        k: &'a [f32],
        /// Values.
        v: &'a [f32],
        /// Which of them a row sees.
        sight: Sight,
    },
}

/// Which rows of its own block a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// All of them.
    BothWays,
    /// Those up to and including itself.
    Behind,
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
    /// Sliding window: a row sees keys whose position differs from its own by less than this.
    pub window: Option<usize>,
}

/// `out` and `q` are `[rows, heads · head_dim]`. Rows of no span keep what they had.
///
/// The keys of a [`Tail::Block`] are splits of their own, counted from the block's first row, and
/// come after those of the context.
///
/// # Panics
/// When the shapes do not match, a span reaches past the rows or the pages, or the window is 0.
pub fn attention(cpu: &Cpu, launch: &Launch<'_>, q: &[f32], out: &mut [f32]) {
    launch.check(q.len(), out.len());
    cpu::attention(cpu, Level::best(), launch, q, out);
}

impl Launch<'_> {
    fn check(&self, q: usize, out: usize) {
        let width = self.heads * self.pool.head_dim;
        assert!(
            self.heads > 0 && self.heads.is_multiple_of(self.pool.kv_heads),
            "{} query heads over {} KV heads",
            self.heads,
            self.pool.kv_heads
        );
        assert!(self.window != Some(0), "a window holds at least the row itself");
        assert!(q == out && q.is_multiple_of(width), "q and out are rows of {width}");
        let rows = q / width;
        if let Tail::Block { k, v, .. } = &self.tail {
            let len = rows * self.pool.kv_heads * self.pool.head_dim;
            assert_eq!((k.len(), v.len()), (len, len), "the block's k and v have a row for each q");
        }
        for span in self.spans {
            assert!(span.start + span.len <= rows, "{span:?} reaches past {rows} rows");
            let tokens = match self.tail {
                Tail::Causal => span.context + span.len,
                Tail::Block { .. } => span.context,
            };
            let end = span.first_page + tokens.div_ceil(self.pool.page_size);
            let pages = self.pages.get(span.first_page..end);
            assert!(
                pages.is_some_and(|ids| ids.iter().all(|&id| (id as usize) < self.pool.pages)),
                "{span:?} needs {tokens} tokens' pages of the pool's {}",
                self.pool.pages
            );
        }
    }
}
