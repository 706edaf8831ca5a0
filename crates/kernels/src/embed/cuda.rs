//! Embedding lookup on a CUDA card.

use crate::cuda::{In, count, source};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("embed");

/// Most threads of a row.
const THREADS: usize = 1024;

type Embed = (In<u16>, In<u32>, Writes<f32>, u32);

/// The embedding of a card.
#[derive(Clone)]
pub struct Embedding {
    embed: Kernel<Embed>,
}

impl Embedding {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Embedding, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops at an id outside the table and when x is
        // too short, and waits before it reads what kernels write.
        Ok(Embedding { embed: unsafe { module.early_kernel("embed", 0) }? })
    }

    /// `x[row] = table[ids[row]]`: the table is `[tokens, width]`, not packed. An id outside it ends the
    /// device.
    ///
    /// # Panics
    /// When `x` is too short, or the width is not a multiple of 4.
    pub fn launch(
        &self,
        queue: &Queue,
        (table, width): (CudaSlice<'_, u16>, usize),
        ids: CudaSlice<'_, u32>,
        x: CudaSliceMut<'_, f32>,
    ) {
        assert!(x.len() >= ids.len() * width, "a row of {width} for each id");
        assert!(width.is_multiple_of(4), "rows of {width} are read in fours");
        let threads = (width / 4).next_multiple_of(32).clamp(32, THREADS);
        let grid = Grid { blocks: count(ids.len().max(1)), threads: count(threads) };
        queue.launch(&self.embed, grid, (table, ids, x, count(width)));
    }
}
