//! Grouped-query attention of ragged rows on a CUDA card.
//!
//! **Order.** Keys are split at multiples of [`SPLIT`] positions, a block's own keys are one split
//! more, and splits are merged in order. Within a split 16 keys follow another (online softmax): their
//! products are summed by tensor cores, their weights by each lane of a quad and at last across it.

use super::Sight;
use crate::cuda::{In, count, source, threads_for};
use crate::rope::cuda::{Heads, StepRows};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("attention");

/// Tokens of one split of the keys.
pub const SPLIT: usize = 128;

const THREADS: u32 = 128;
/// Heads of rows that one tile holds.
const VECTORS: usize = 64;

type Parts = (
    In<u16>,
    In<u16>,
    In<u16>,
    In<u16>,
    In<u16>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    Writes<f32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    f32,
);
type Combine = (In<f32>, In<u32>, In<u32>, In<u32>, Writes<u16>, u32, u32, u32);

/// Numbers that describe a tile.
pub const TILE: usize = 5;

/// Cuts requests' rows (first row, rows, index of the request) into the tiles of a launch.
///
/// # Panics
/// When a group of query heads is larger than a tile.
pub fn tiles(heads: Heads, requests: &[(usize, usize, usize)]) -> Vec<u32> {
    let most = VECTORS / (heads.q / heads.kv);
    assert!(most > 0, "a group of at most {VECTORS} query heads");
    let mut tiles = Vec::new();
    for &(start, rows, request) in requests {
        for offset in (0..rows).step_by(most) {
            let tile = [start + offset, most.min(rows - offset), request, offset, rows];
            tiles.extend(tile.map(count));
        }
    }
    tiles
}

/// What a row sees besides its request's context.
#[derive(Clone, Copy)]
pub enum Tail<'j> {
    /// The rows up to and including itself, whose keys are in the pages.
    Causal,
    /// Rows of its block, at most [`SPLIT`], whose keys and values are `[rows, kv_heads, dim]`.
    Block {
        /// Keys, rotated.
        keys: CudaSlice<'j, u16>,
        /// Values.
        values: CudaSlice<'j, u16>,
        /// Which of them a row sees.
        sight: Sight,
    },
}

/// What a launch attends to.
#[derive(Clone, Copy)]
pub struct Attended<'j> {
    /// The layer's pages, `[pages, kv_heads, page_size, dim]`.
    pub keys: CudaSlice<'j, u16>,
    /// As `keys`.
    pub values: CudaSlice<'j, u16>,
    /// What rows see of their own launch.
    pub tail: Tail<'j>,
    /// The rows; offsets of a request count from 0.
    pub step: StepRows<'j>,
    /// As [`tiles`] makes them, of rows that `step` describes.
    pub tiles: CudaSlice<'j, u32>,
    /// The heads.
    pub heads: Heads,
    /// Most splits of a row: those of its context, and one of its block.
    pub splits: usize,
    /// Factor on `q · k`.
    pub scale: f32,
    /// Sliding window, as [`super::Launch::window`].
    pub window: Option<usize>,
}

/// The attention of a card.
#[derive(Clone)]
pub struct Attention {
    parts_64: Kernel<Parts>,
    parts_128: Kernel<Parts>,
    combine_64: Kernel<Combine>,
    combine_128: Kernel<Combine>,
}

impl Attention {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Attention, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // Keys and values of a split, each row with what keeps lanes on different banks.
        let shared = |dim: usize| count(SPLIT * (dim * 2 + 64 + dim * 2 + 16));
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments or for what tiles and pages name, and waits before it reads what kernels write.
        unsafe {
            Ok(Attention {
                parts_64: module.early_kernel("attention_64", shared(64))?,
                parts_128: module.early_kernel("attention_128", shared(128))?,
                combine_64: module.early_kernel("combine_64", 0)?,
                combine_128: module.early_kernel("combine_128", 0)?,
            })
        }
    }

    /// Floats of the parts of `rows` rows.
    pub fn parts(heads: Heads, rows: usize, splits: usize) -> usize {
        rows * heads.q * splits * (heads.dim + 4)
    }

    /// `out` and `q` are `[rows, heads, dim]`; `parts` is room for [`Attention::parts`] floats. A
    /// context of more than `splits` splits ends the device.
    ///
    /// # Panics
    /// When the shapes do not match, or heads are not of 64 or 128 elements.
    pub fn launch(
        &self,
        queue: &Queue,
        attended: Attended<'_>,
        q: CudaSlice<'_, u16>,
        mut parts: CudaSliceMut<'_, f32>,
        out: CudaSliceMut<'_, u16>,
    ) {
        let Attended { keys, values, tail, step, tiles, heads, splits, scale, window } = attended;
        let rows = step.spans.len();
        let (first, second) = match heads.dim {
            64 => (&self.parts_64, &self.combine_64),
            128 => (&self.parts_128, &self.combine_128),
            dim => panic!("heads of {dim} elements; 64 and 128 are known"),
        };
        assert!(heads.kv > 0 && heads.q.is_multiple_of(heads.kv), "{heads:?}");
        assert!(window != Some(0), "a window holds at least the row itself");
        let elements = rows * heads.q * heads.dim;
        assert!(q.len() >= elements && out.len() >= elements, "q and out are {rows} rows");
        assert!(parts.len() >= Attention::parts(heads, rows, splits), "the parts of {rows} rows");
        assert!(tiles.len().is_multiple_of(TILE), "whole tiles");
        let none = keys.range(0..0);
        let (tail_keys, tail_values, sight) = match tail {
            Tail::Causal => (none, none, 0),
            Tail::Block { keys, values, sight: Sight::BothWays } => (keys, values, 1),
            Tail::Block { keys, values, sight: Sight::Behind } => (keys, values, 2),
        };
        let blocks = count(tiles.len() / TILE * heads.kv * splits);
        let (wide, splits) = (count(heads.q), count(splits));
        let given = (
            q,
            keys,
            values,
            tail_keys,
            tail_values,
            step.pages,
            step.firsts,
            step.lengths,
            tiles,
            parts.all(),
            wide,
            count(heads.kv),
            count(step.page_size),
            splits,
            sight,
            window.map_or(u32::MAX, count),
            scale,
        );
        queue.launch(first, Grid { blocks, threads: THREADS }, given);
        let given =
            (parts.read(), step.lengths, step.spans, step.offsets, out, wide, splits, sight);
        queue.launch(second, threads_for(rows * heads.q * 32, THREADS), given);
    }
}
