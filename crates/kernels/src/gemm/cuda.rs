//! Skinny products on a CUDA card: `y = x · Wᵀ` for 1 to 64 rows, the weight read once.
//!
//! **Order.** The columns of `y` come in blocks of 128, k in steps of 32. All (block, step) pairs,
//! blocks outermost, are dealt out to the workers in equal runs; a worker's four phases take its steps
//! in turn and are added as (0 + 2) + (1 + 3); the pieces of the workers that share a block are added in order. Tensor
//! cores sum within a step. None of this depends on the number of rows, so neither do a row's bits.

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("gemm");

/// Columns whose sums are cut at the same places.
pub const BLOCK: usize = 128;
/// Elements of k that are multiplied at a time.
pub const STEP: usize = 32;
/// Most rows of a launch.
pub const MOST_ROWS: usize = 64;

const THREADS: u32 = 256;
/// Bytes of a weight that a block of threads holds in shared memory: 8 warps, 7 halves of a step of a
/// side each.
const HELD: u32 = 8 * 7 * 2048;
/// Fewest steps that make a worker: one for each of its phases.
const LEAST: usize = 4;

/// The shape of a weight `[n, k]`, and how its product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Columns of the product.
    pub n: usize,
    /// Elements of a row of x.
    pub k: usize,
    workers: u32,
}

impl Shape {
    /// For a card with so many multiprocessors, or any other number of workers at most.
    ///
    /// # Panics
    /// When `k` is not a multiple of [`STEP`], when there is no column, or when the weight has more
    /// than 2³² / `workers` blocks of steps.
    pub fn new(n: usize, k: usize, workers: u32) -> Shape {
        assert!(
            n > 0 && k > 0 && k.is_multiple_of(STEP),
            "a weight of {n} × {k} in steps of {STEP}"
        );
        let items = n.div_ceil(BLOCK) * (k / STEP);
        let workers = workers.min(count(items.div_ceil(LEAST)));
        assert!((items as u64 + 1) * u64::from(workers) <= 1 << 32, "{n} × {k} is too large");
        Shape { n, k, workers }
    }

    /// Pieces are made by so many.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Steps of k.
    pub fn steps(&self) -> u32 {
        count(self.k / STEP)
    }

    fn blocks(&self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    /// Elements of the packed weight.
    pub fn packed(&self) -> usize {
        self.blocks() * BLOCK * self.k
    }

    /// Elements of the pieces of a product of `rows` rows: `[piece][rows][BLOCK]`.
    pub fn pieces(&self, rows: usize) -> usize {
        (self.blocks() + self.workers as usize) * rows * BLOCK
    }

    /// Where element (`row`, `column`) of the weight lies in the packed weight.
    pub fn place(&self, row: usize, column: usize) -> usize {
        let (block, within) = (row / BLOCK, row % BLOCK);
        let (step, e) = (column / STEP, column % STEP);
        let (side, tile, group, high) = (within / 64, within / 16 % 4, within % 8, within / 8 % 2);
        // Lane `quad` of a group has elements 8 quad .. 8 quad + 8, four for each half of the step.
        let (quad, half, pair, odd) = (e / 8, e / 4 % 2, e / 2 % 2, e % 2);
        let lane = group * 4 + quad;
        let tiles = ((block * (self.k / STEP) + step) * 2 + side) * 4 + tile;
        ((tiles * 2 + half) * 32 + lane) * 8 + pair * 4 + high * 2 + odd
    }

    /// Packs `weight`, `[n, k]`; rows that fill the last block are zero.
    ///
    /// # Panics
    /// When `weight` has another shape.
    pub fn pack(&self, weight: &[u16]) -> Vec<u16> {
        assert_eq!(weight.len(), self.n * self.k, "the weight is {} × {}", self.n, self.k);
        let mut packed = vec![0; self.packed()];
        for (row, elements) in weight.chunks_exact(self.k).enumerate() {
            for (column, &element) in elements.iter().enumerate() {
                packed[self.place(row, column)] = element;
            }
        }
        packed
    }
}

type Product = (In<u16>, In<u16>, Writes<f32>, u32, u32, u32);
type Gather = (In<f32>, Writes<f32>, u32, u32, u32, u32);

/// The products of a card.
#[derive(Clone)]
pub struct Products {
    /// For at most 8, 16, 32 and 64 rows.
    by_rows: [Kernel<Product>; 4],
    gather: Kernel<Gather>,
}

impl Products {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Products, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // Behind the weight there is room for two of the four sums of a block.
        let shared = |rows: u32| HELD + 2 * rows * BLOCK as u32 * 4;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments, and waits before it reads activations or writes.
        unsafe {
            let by_rows = [
                module.early_kernel("product_8", shared(8))?,
                module.early_kernel("product_16", shared(16))?,
                module.early_kernel("product_32", shared(32))?,
                module.early_kernel("product_64", shared(64))?,
            ];
            Ok(Products { by_rows, gather: module.early_kernel("gather_pieces", 0)? })
        }
    }

    /// The pieces of `x · weightᵀ`: `x` is `[rows, k]`, `weight` is packed, `pieces` as
    /// [`Shape::pieces`] says.
    ///
    /// # Panics
    /// When there are no rows or more than [`MOST_ROWS`], or when a slice is shorter than its shape.
    pub fn launch(
        &self,
        queue: &Queue,
        shape: &Shape,
        weight: CudaSlice<'_, u16>,
        (x, rows): (CudaSlice<'_, u16>, usize),
        pieces: CudaSliceMut<'_, f32>,
    ) {
        assert!((1..=MOST_ROWS).contains(&rows), "{rows} rows of a product of 1 to {MOST_ROWS}");
        assert!(weight.len() >= shape.packed(), "a packed weight of {} × {}", shape.n, shape.k);
        assert!(x.len() >= rows * shape.k, "{rows} rows of {}", shape.k);
        assert!(pieces.len() >= shape.pieces(rows), "room for the pieces of {rows} rows");
        let kernel = [8, 16, 32].iter().filter(|&&most| rows > most).count();
        let grid = Grid { blocks: shape.workers, threads: THREADS };
        let given = (weight, x, pieces, count(shape.blocks()), shape.steps(), count(rows));
        queue.launch(&self.by_rows[kernel], grid, given);
    }

    /// Adds the pieces up: `to` is `[rows, n]`.
    ///
    /// # Panics
    /// When a slice is shorter than its shape.
    pub fn gather(&self, queue: &Queue, pieces: Pieces<'_>, to: CudaSliceMut<'_, f32>) {
        let Pieces { at, shape, rows } = pieces;
        let all = rows as usize * shape.n;
        assert!(at.len() >= shape.pieces(rows as usize) && to.len() >= all, "{rows} rows");
        let given = (at, to, shape.steps(), shape.workers, rows, count(shape.n));
        queue.launch(&self.gather, threads_for(all, THREADS), given);
    }
}
