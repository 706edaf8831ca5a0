//! The launch of the biases.

use crate::cuda::{In, count, source, threads_for};
use crate::gemm::cuda::Shape;
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("bias");

type AddBias = (Writes<f32>, In<f32>, u32, u32, u32);

/// The biases of a card.
#[derive(Clone)]
pub struct Biases {
    add: Kernel<AddBias>,
}

impl Biases {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Biases, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when the pieces are too short for the
        // other arguments, and waits before it reads what kernels write.
        Ok(Biases { add: unsafe { module.early_kernel("add_bias", 0) }? })
    }

    /// Adds `bias` (`[n]`) to each of the `rows` rows of a product that left its sums in `pieces`.
    ///
    /// # Panics
    /// When a slice is shorter than its shape.
    pub fn add(
        &self,
        queue: &Queue,
        (pieces, shape, rows): (CudaSliceMut<'_, f32>, &Shape, usize),
        bias: CudaSlice<'_, f32>,
    ) {
        assert!(pieces.len() >= shape.pieces(rows), "the pieces of {rows} rows");
        assert_eq!(bias.len(), shape.n, "a bias for each column");
        let given = (pieces, bias, shape.steps(), shape.workers(), count(rows));
        queue.launch(&self.add, threads_for(rows * shape.n, 128), given);
    }
}
