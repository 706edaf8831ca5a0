//! Acceptance on a CUDA card, and what the next step finds of it.

use crate::cuda::{In, count, source};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("accept");

/// Most rows of all blocks together.
pub const MOST_ROWS: usize = 1024;

type Accept = (In<u32>, In<u32>, In<u32>, Writes<u32>, Writes<u32>);

/// What a step leaves of its blocks, an entry for each.
pub struct Accepted<'j> {
    /// Rows of the block that are not committed.
    pub refused: CudaSliceMut<'j, u32>,
    /// The last token known, which is in no KV yet: chosen behind the rows that are committed.
    pub anchors: CudaSliceMut<'j, u32>,
}

/// The acceptance of a card.
#[derive(Clone)]
pub struct Acceptance {
    accept: Kernel<Accept>,
}

impl Acceptance {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Acceptance, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments or for a block's number, and waits before it reads what kernels write.
        Ok(Acceptance { accept: unsafe { module.early_kernel("accept", 0) }? })
    }

    /// Accepts blocks of rows: `tokens` are the anchors and drafts that went in, `spans` the block of each row,
    /// whose rows stand together, and `choices` what the target chose for each row. A block outside of `accepted`
    /// ends the device.
    ///
    /// # Panics
    /// When there is no row or there are more than [`MOST_ROWS`], or one has no token or no choice.
    pub fn launch(
        &self,
        queue: &Queue,
        (tokens, spans): (CudaSlice<'_, u32>, CudaSlice<'_, u32>),
        choices: CudaSlice<'_, u32>,
        accepted: Accepted<'_>,
    ) {
        let rows = spans.len();
        assert!((1..=MOST_ROWS).contains(&rows), "blocks of {rows} rows");
        assert!(tokens.len() >= rows && choices.len() >= rows, "a token and a choice a row");
        let Accepted { refused, anchors } = accepted;
        let grid = Grid { blocks: 1, threads: count(rows.next_multiple_of(32)) };
        queue.launch(&self.accept, grid, (tokens, spans, choices, refused, anchors));
    }
}
