//! Grouped-query attention of ragged rows on a CUDA card.
//!
//! **Order.** Keys are cut into chunks of 64 positions, a block's own keys into further ones, and each
//! half of a chunk is 32 keys. Chunk `c` belongs to rank `c mod 8`. First halves of a rank's chunks follow
//! each other (online softmax), and so do second halves; then the two are merged, and the eight ranks one after
//! the other. Within a half, products are summed by tensor cores, weights by each lane of a quad
//! and at last across it. All of this follows from the positions of a row's keys alone: whether ranks
//! are blocks of threads of their own, which few tiles need, or take turns in one is free, and so is who merges
//! them.

use super::Sight;
use crate::cuda::{In, count, source, threads_for};
use crate::gemm::cuda::Layout;
use crate::rope::cuda::{DIMS, Heads, StepRows, of_dim};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("attention", "keys.cuh", "seen.cuh", "kernel.cu");

/// Positions of keys that the bound on a launch's context counts in.
pub const SPLIT: usize = 128;

/// Threads of a block for the vectors of a whole tile; as many a vector for one of [`MERGED`].
const THREADS: u32 = 256;
/// Threads of a block that merges.
const MERGING: u32 = 128;
/// Blocks of threads that share the keys of a tile.
const RANKS: usize = 8;
/// Keys that are fetched at a time.
const CHUNK: usize = 64;
/// Heads of rows that one tile holds.
const VECTORS: usize = 64;
/// The same of a narrow tile. Where a block of threads merges what its ranks found, fewer leave a lane registers for that.
const MERGED: usize = 32;
/// Of fewer, those of a tile where tiles are few: its warps have less to do one after the other.
const FEWER: [usize; 2] = [16, 32];
/// Blocks of threads that such tiles make at most: an H200 holds 15 clusters of eight that have a
/// multiprocessor for each block, and one more would wait for all of them.
const SPREAD: usize = 64;

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
    Writes<u16>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    f32,
);
type Combine = (In<f32>, Writes<u16>, u32, u32, u32);

/// Numbers that describe a tile.
pub const TILE: usize = 5;

/// How rows are cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tiling {
    /// Of any number of vectors that a tile may have.
    Any,
    /// Of so few that what ranks found of one may be merged where it was found, and half of the threads look at them.
    Narrow,
}

/// Cuts requests' rows (first row, rows, index of the request) into the tiles of a launch. Tiles of no
/// rows, of any request, may be put behind them. How rows are cut is free: their bits do not follow from it.
///
/// # Panics
/// When a group of query heads is larger than a tile.
pub fn tiles(heads: Heads, requests: &[(usize, usize, usize)]) -> (Vec<u32>, Tiling) {
    let group = heads.q / heads.kv;
    assert!(group <= VECTORS, "a group of at most {VECTORS} query heads");
    let rows_of = |vectors: usize| (vectors / group).max(1);
    let count_of = |vectors: usize| -> usize {
        requests.iter().map(|&(_, rows, _)| rows.div_ceil(rows_of(vectors))).sum()
    };
    let blocks = |vectors: usize| count_of(vectors) * heads.kv * RANKS;
    let fewer = FEWER.into_iter().find(|&vectors| blocks(vectors) <= SPREAD);
    // Keys are read once for each tile: where most requests have few rows, hardly more often.
    let narrow = group <= MERGED && 2 * count_of(MERGED) <= 3 * count_of(VECTORS);
    let most = rows_of(fewer.unwrap_or(if narrow { MERGED } else { VECTORS }));
    let mut tiles = Vec::new();
    for &(start, rows, request) in requests {
        for offset in (0..rows).step_by(most) {
            let tile = [start + offset, most.min(rows - offset), request, offset, rows];
            tiles.extend(tile.map(count));
        }
    }
    (tiles, if most * group <= MERGED { Tiling::Narrow } else { Tiling::Any })
}

/// What a row sees besides its request's context.
#[derive(Clone, Copy)]
pub enum Tail<'j> {
    /// The rows up to and including itself, whose keys are in the pages.
    Causal,
    /// Rows of its block, whose keys and values are `[rows, kv_heads, dim]`.
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
    /// How [`tiles`] made them.
    pub tiling: Tiling,
    /// The heads.
    pub heads: Heads,
    /// A bound on the context: so many times [`SPLIT`] tokens at most.
    pub splits: usize,
    /// Factor on `q · k`.
    pub scale: f32,
    /// Sliding window, as [`super::Launch::window`].
    pub window: Option<usize>,
}

/// Where rows of heads are written.
pub struct Out<'j> {
    /// Rows of `heads · dim`.
    pub to: CudaSliceMut<'j, u16>,
    /// Which of them is the launch's first.
    pub first: usize,
    /// How they lie.
    pub layout: Layout,
}

/// The kernels for heads of one size.
#[derive(Clone)]
struct Sized {
    /// Ranks are blocks of threads that merge what they found themselves: from Hopper on.
    together: Option<Kernel<Parts>>,
    /// The same of narrow tiles.
    narrow: Option<Kernel<Parts>>,
    /// A block of threads goes through all ranks of a narrow tile, and merges what it finds.
    whole: Option<Kernel<Parts>>,
    /// Ranks leave what they found.
    apart: Kernel<Parts>,
    combine: Kernel<Combine>,
}

/// Who goes through the ranks of a tile, and who merges what they found.
enum Way<'k> {
    /// One block of threads, or as many as ranks, which merge it.
    Merged(&'k Kernel<Parts>, Grid),
    /// Blocks of so many ranks, which leave it to others.
    Apart(usize),
}

/// The attention of a card.
#[derive(Clone)]
pub struct Attention {
    /// One for each of [`DIMS`].
    by_dim: [Sized; DIMS.len()],
    multiprocessors: usize,
}

impl Sized {
    /// # Safety
    /// As [`Module::early_kernel`].
    unsafe fn load(
        module: &Module,
        dim: usize,
        [together, narrow, whole]: [Option<&'static str>; 3],
        [apart, combine]: [&'static str; 2],
    ) -> Result<Sized, CudaError> {
        // Keys and values of two chunks and the tile's q, each row with what keeps lanes on different
        // banks.
        let shared = |vectors: usize| {
            count(2 * CHUNK * (dim * 2 + 64 + dim * 2 + 16) + vectors * (dim * 2 + 64))
        };
        // SAFETY: the caller's promise.
        unsafe {
            let some = |name: Option<&'static str>, vectors| {
                name.map(|name| module.early_kernel(name, shared(vectors))).transpose()
            };
            Ok(Sized {
                together: some(together, VECTORS)?,
                narrow: some(narrow, MERGED)?,
                whole: some(whole, MERGED)?,
                apart: module.early_kernel(apart, shared(VECTORS))?,
                combine: module.early_kernel(combine, 0)?,
            })
        }
    }
}

impl Attention {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Attention, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        let digits: String = cuda.target().chars().filter(char::is_ascii_digit).collect();
        let clusters = digits.parse().is_ok_and(|generation: u32| generation >= 90);
        let together = |name| clusters.then_some(name);
        let [of_64, of_128, of_256] = DIMS;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments or for what tiles and pages name, and waits before it reads what kernels write.
        unsafe {
            Ok(Attention {
                by_dim: [
                    Sized::load(
                        &module,
                        of_64,
                        [together("together_64"), together("narrow_64"), Some("whole_64")],
                        ["apart_64", "combine_64"],
                    )?,
                    Sized::load(
                        &module,
                        of_128,
                        [together("together_128"), None, Some("whole_128")],
                        ["apart_128", "combine_128"],
                    )?,
                    Sized::load(
                        &module,
                        of_256,
                        [together("together_256"), None, None],
                        ["apart_256", "combine_256"],
                    )?,
                ],
                multiprocessors: cuda.multiprocessors() as usize,
            })
        }
    }

    /// Floats of the parts of `rows` rows: what ranks leave, whatever the context.
    pub fn parts(heads: Heads, rows: usize) -> usize {
        rows * heads.q * RANKS * (heads.dim + 4)
    }

    /// `q` is `[rows, heads, dim]`, and so is `out`, in rows that lie as it says; `parts` is room for [`Attention::parts`] floats. Pages
    /// hold a power of two of tokens. A context of more than `splits` times [`SPLIT`] ends the device.
    ///
    /// # Panics
    /// When the shapes do not match, or heads are of none of [`DIMS`].
    pub fn launch(
        &self,
        queue: &Queue,
        attended: Attended<'_>,
        q: CudaSlice<'_, u16>,
        mut parts: CudaSliceMut<'_, f32>,
        Out { to: mut out, first, layout }: Out<'_>,
    ) {
        let Attended { keys, values, tail, step, tiles, tiling, heads, splits, scale, window } =
            attended;
        let rows = step.spans.len();
        let sized = of_dim(&self.by_dim, heads.dim);
        assert!(heads.kv > 0 && heads.q.is_multiple_of(heads.kv), "{heads:?}");
        assert!(step.page_size.is_power_of_two(), "pages of {} tokens", step.page_size);
        assert!(window != Some(0), "a window holds at least the row itself");
        let width = heads.q * heads.dim;
        assert!(
            q.len() >= rows * width && out.len() >= layout.elements(first + rows, width),
            "q and out are {rows} rows"
        );
        let first_and_tiles = count(first) * 2 + layout as u32;
        assert!(parts.len() >= Attention::parts(heads, rows), "the parts of {rows} rows");
        assert!(tiles.len().is_multiple_of(TILE), "whole tiles");
        let none = keys.range(0..0);
        let (tail_keys, tail_values, sight) = match tail {
            Tail::Causal => (none, none, 0),
            Tail::Block { keys, values, sight: Sight::BothWays } => (keys, values, 1),
            Tail::Block { keys, values, sight: Sight::Behind } => (keys, values, 2),
        };
        let places = tiles.len() / TILE * heads.kv;
        let way = self.way(sized, places, tiling);
        let each = match way {
            Way::Merged(..) => 1,
            Way::Apart(each) => each,
        };
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
            out.all(),
            count(heads.q),
            count(heads.kv),
            count(step.page_size),
            count(splits),
            count(each) * 4 + sight,
            window.map_or(u32::MAX, count),
            first_and_tiles,
            scale,
        );
        if let Way::Merged(kernel, grid) = way {
            return queue.launch(kernel, grid, given);
        }
        let grid = Grid { blocks: count(places * RANKS / each), threads: THREADS };
        queue.launch(&sized.apart, grid, given);
        let grid = threads_for(rows * heads.q * 32, MERGING);
        let given = (parts.read(), out, count(rows), count(heads.q), first_and_tiles);
        queue.launch(&sized.combine, grid, given);
    }

    /// The way that suits so many tiles and KV heads. Two blocks fit on a multiprocessor, of the largest heads one; when
    /// ranks alone are twice as many, what a block begins and ends with costs more than an idle multiprocessor.
    fn way<'k>(&self, sized: &'k Sized, places: usize, tiling: Tiling) -> Way<'k> {
        let grid = |blocks, threads| Grid { blocks: count(blocks), threads };
        let narrow = THREADS * MERGED as u32 / VECTORS as u32;
        let enough = |each: &usize| places * RANKS / each >= self.multiprocessors * 3 / 2;
        if places * RANKS <= 4 * self.multiprocessors {
            if let (Some(kernel), Tiling::Narrow) = (&sized.narrow, tiling) {
                return Way::Merged(kernel, grid(places * RANKS, narrow));
            }
            if let Some(together) = &sized.together {
                return Way::Merged(together, grid(places * RANKS, THREADS));
            }
        } else if let (Some(whole), Tiling::Narrow, true) = (&sized.whole, tiling, enough(&RANKS)) {
            return Way::Merged(whole, grid(places, narrow));
        }
        Way::Apart([8, 4, 2].into_iter().find(enough).unwrap_or(1))
    }
}
