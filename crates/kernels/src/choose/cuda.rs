//! The choice of a token on a CUDA card, from the pieces of the head's product: greedy, or with the
//! noise of the contract. Filters and shapes are not here: rows that have them are chosen on the host.

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("choose");

const THREADS: u32 = 256;
/// Tokens that a block of threads looks at.
const CHUNK: usize = 8192;

type Largest = (In<f32>, Writes<f32>, Writes<u32>, u32, u32, u32, u32, u32, u32, u32);
type Draw = (
    In<f32>,
    In<f32>,
    In<u32>,
    In<f32>,
    In<u64>,
    In<u32>,
    Writes<f64>,
    Writes<u32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
);
type Chosen = (In<f32>, In<u32>, In<f32>, In<f64>, In<u32>, Writes<u32>, u32, u32);

/// How the rows of a launch draw, an entry for each row of the product.
#[derive(Clone, Copy)]
pub struct Draws<'j> {
    /// 0 is greedy.
    pub temperatures: CudaSlice<'j, f32>,
    /// The request's seed.
    pub seeds: CudaSlice<'j, u64>,
    /// The row's position.
    pub positions: CudaSlice<'j, u32>,
    /// From the row's position to that of the token being chosen: 1 for a target, 0 for a drafter.
    pub shift: u32,
}

/// Room for the best of each chunk; each has [`Choices::chunks`] entries a row.
pub struct Room<'j> {
    /// The largest logit.
    pub largest: CudaSliceMut<'j, f32>,
    /// Its token.
    pub ids: CudaSliceMut<'j, u32>,
    /// The best score.
    pub scores: CudaSliceMut<'j, f64>,
    /// Its token.
    pub drawn: CudaSliceMut<'j, u32>,
}

/// The choices of a card.
#[derive(Clone)]
pub struct Choices {
    largest: Kernel<Largest>,
    draw: Kernel<Draw>,
    chosen: Kernel<Chosen>,
}

impl Choices {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Choices, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments, and waits before it reads what kernels write.
        unsafe {
            Ok(Choices {
                largest: module.early_kernel("largest", 0)?,
                draw: module.early_kernel("draw", 0)?,
                chosen: module.early_kernel("chosen", 0)?,
            })
        }
    }

    /// Chunks of a row.
    pub fn chunks(allowed: usize) -> usize {
        allowed.div_ceil(CHUNK).max(1)
    }

    /// Chooses a token below `allowed` for each row of the product from `first` on: `out` has an entry
    /// for each of them.
    ///
    /// # Panics
    /// When the lengths do not match, or `allowed` is not in `1 ..= n` of the product.
    pub fn launch(
        &self,
        queue: &Queue,
        (logits, allowed): (Pieces<'_>, usize),
        first: usize,
        draws: Draws<'_>,
        mut room: Room<'_>,
        out: CudaSliceMut<'_, u32>,
    ) {
        let Pieces { at, shape, rows } = logits;
        assert!((1..=shape.n).contains(&allowed), "{allowed} allowed tokens of {}", shape.n);
        assert_eq!(out.len() + first, rows as usize, "a place for each choice");
        assert!(at.len() >= shape.pieces(rows as usize), "the pieces of {rows} rows");
        let Draws { temperatures, seeds, positions, shift } = draws;
        let all = rows as usize;
        assert!(
            temperatures.len() >= all && seeds.len() >= all && positions.len() >= all,
            "a draw for each of {rows} rows"
        );
        let chunks = Choices::chunks(allowed);
        let wanted = chunks * out.len();
        assert!(
            [room.largest.len(), room.ids.len(), room.scores.len(), room.drawn.len()]
                .iter()
                .all(|len| *len >= wanted),
            "room for {chunks} chunks of each row"
        );
        let grid = Grid { blocks: count(wanted), threads: THREADS };
        let (steps, workers, columns) = (shape.steps(), shape.workers(), count(shape.n));
        let (allowed, first, chunks) = (count(allowed), count(first), count(chunks));
        let cut = (room.largest.all(), room.ids.all());
        let given = (at, cut.0, cut.1, steps, workers, rows, columns, allowed, first, chunks);
        queue.launch(&self.largest, grid, given);
        let given = (
            at,
            room.largest.read(),
            room.ids.read(),
            temperatures,
            seeds,
            positions,
            room.scores.all(),
            room.drawn.all(),
            steps,
            workers,
            rows,
            columns,
            allowed,
            first,
            chunks,
            shift,
        );
        queue.launch(&self.draw, grid, given);
        let rows = threads_for(out.len(), 32);
        let (scores, drawn) = (room.scores.read(), room.drawn.read());
        let (largest, ids) = (room.largest.read(), room.ids.read());
        let given = (largest, ids, temperatures, scores, drawn, out, first, chunks);
        queue.launch(&self.chosen, rows, given);
    }
}
