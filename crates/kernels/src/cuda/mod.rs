//! What the kernels of CUDA cards have in common. Each operation's own are in its folder: `kernel.cu`
//! is the code of the card, `cuda.rs` launches it.
//!
//! On a card, weights, activations and KV are `bf16`, given as their bits in `u16`; the residual
//! stream and every sum are `f32`. **Batch invariance** holds as on the CPU: products cut k at places
//! that follow from the weight's shape and the number of workers alone, attention splits keys at
//! fixed positions, norms reduce in an order that follows from the width.
//!
//! Kernels start early ([`device::cuda::Module::early_kernel`]): while the one before still runs, a
//! product already fetches weights, which no kernel writes.

use crate::gemm::cuda::Layout;
use device::cuda::{CudaSlice, Grid, Reads, Source};

/// The source of an operation: what all begin with, and its own files.
macro_rules! source {
    ($operation:literal) => {
        $crate::cuda::source!($operation, "kernel.cu")
    };
    ($operation:literal, $file:literal $(, $more:literal)*) => {
        ::device::cuda::Source {
            name: concat!($operation, "/", $file),
            text: concat!(
                include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/common.cuh")),
                $crate::cuda::source!(@file $operation, $file),
                $($crate::cuda::source!(@file $operation, $more),)*
            ),
        }
    };
    (@file $operation:literal, $file:literal) => {
        concat!(
            "#line 1 \"",
            $operation,
            "/",
            $file,
            "\"\n",
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/", $operation, "/", $file)),
        )
    };
}
pub(crate) use source;

/// Every source, for those that compile them without a card.
pub const SOURCES: [Source; 11] = [
    crate::accept::cuda::SOURCE,
    crate::activation::cuda::SOURCE,
    crate::attention::cuda::SOURCE,
    crate::bias::cuda::SOURCE,
    crate::choose::cuda::SOURCE,
    crate::gather::cuda::SOURCE,
    crate::gemm::cuda::SOURCE,
    crate::gemm::cuda::WIDE_SOURCE,
    crate::gemm::short::SOURCE,
    crate::norm::cuda::SOURCE,
    crate::rope::cuda::SOURCE,
];

/// Elements that a kernel reads.
pub(crate) type In<T> = Reads<T>;

/// What a product left: its sums, in pieces that whoever reads them adds up in order.
#[derive(Clone, Copy)]
pub struct Pieces<'j> {
    /// As [`crate::gemm::cuda::Shape::pieces`] says.
    pub at: CudaSlice<'j, f32>,
    /// Of the product.
    pub shape: crate::gemm::cuda::Shape,
    /// Rows of the product.
    pub rows: u32,
}

impl Pieces<'_> {
    /// Workers whose pieces a reader adds up; none where the product added them up itself, which leaves
    /// one piece for each band of columns.
    pub fn workers(&self) -> u32 {
        self.shape.workers_of(self.rows as usize)
    }

    /// # Panics
    /// When there are fewer than the product has.
    pub(crate) fn check(&self) {
        let rows = self.rows as usize;
        let wanted = self.shape.sums(rows);
        assert!(self.at.len() >= wanted, "the pieces of {rows} rows are {wanted} floats");
    }
}

/// Which of three kernels leaves rows that lie so of what a product left: one for rows, one for tiles, and one
/// for tiles where the product has no workers, that is, left its sums whole.
pub(crate) fn reader(layout: Layout, workers: u32) -> usize {
    match (layout, workers) {
        (Layout::Rows, _) => 0,
        (Layout::Tiles, 1..) => 1,
        (Layout::Tiles, 0) => 2,
    }
}

/// One thread for each of `units` units of work, `threads` to a block.
pub(crate) fn threads_for(units: usize, threads: u32) -> Grid {
    let blocks = units.div_ceil(threads as usize).max(1);
    Grid { blocks: u32::try_from(blocks).expect("fewer blocks than 2³²"), threads }
}

/// A count as kernels take it.
///
/// # Panics
/// When it does not fit.
pub(crate) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or_else(|_| panic!("{n} is more than a kernel counts"))
}
