//! Acceptance on a CUDA card, and the length and anchor that the next step finds.

use crate::cuda::{In, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("accept");

type Accept = (In<u32>, In<u32>, In<u32>, Writes<u32>, Writes<u32>, Writes<u32>, u32);

/// What a step publishes, an entry for each request.
pub struct Published<'j> {
    /// Tokens of the request in KV; grows by what was kept.
    pub lengths: CudaSliceMut<'j, u32>,
    /// The last token known, which is in no KV yet.
    pub anchors: CudaSliceMut<'j, u32>,
    /// Tokens that the step commits: accepted drafts and the bonus token.
    pub kept: CudaSliceMut<'j, u32>,
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
        // arguments, and waits before it reads what kernels write.
        Ok(Acceptance { accept: unsafe { module.early_kernel("accept", 0) }? })
    }

    /// Accepts blocks of `width` rows, one a request, that begin at the rows `starts`: `tokens` are the
    /// anchors and drafts that went in, `choices` what the target chose for each row.
    ///
    /// # Panics
    /// When a block has no rows, or `published` has not an entry for each request.
    pub fn launch(
        &self,
        queue: &Queue,
        tokens: CudaSlice<'_, u32>,
        choices: CudaSlice<'_, u32>,
        (starts, width): (CudaSlice<'_, u32>, usize),
        published: Published<'_>,
    ) {
        let Published { lengths, anchors, kept } = published;
        let requests = starts.len();
        assert!(width > 0, "a block has its anchor at least");
        assert!(
            [lengths.len(), anchors.len(), kept.len()].iter().all(|len| *len >= requests),
            "an entry for each of {requests} requests"
        );
        let given = (tokens, choices, starts, lengths, anchors, kept, count(width));
        queue.launch(&self.accept, threads_for(requests, 32), given);
    }
}
