//! SwiGLU on a CUDA card.

use crate::cuda::{In, Pieces, count, reader, source, threads_for};
use crate::gemm::cuda::Layout;
use crate::gemm::gated::WOVEN;
use device::cuda::{Cuda, CudaError, CudaSliceMut, Kernel, Module, Queue, Source, Writes};

/// The code of the card.
pub const SOURCE: Source = source!("activation");

type Swiglu = (In<f32>, Writes<u16>, u32, u32, u32, u32);

/// The activations of a card.
#[derive(Clone)]
pub struct Activations {
    /// By [`reader`].
    swiglu: [Kernel<Swiglu>; 3],
}

impl Activations {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Activations, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments, and waits before it reads what kernels write.
        unsafe {
            let swiglu = [
                module.early_kernel("swiglu", 0)?,
                module.early_kernel("swiglu_tiles", 0)?,
                module.early_kernel("swiglu_whole", 0)?,
            ];
            Ok(Activations { swiglu })
        }
    }

    /// `out = silu(gate) · up`, narrowed, rows of `width` that lie as `layout` says; the product's columns are
    /// `width` gates and as many ups, [`woven`](crate::gemm::gated::woven).
    ///
    /// # Panics
    /// When the shapes do not match, or the width is not a multiple of [`WOVEN`].
    pub fn swiglu(
        &self,
        queue: &Queue,
        both: Pieces<'_>,
        (out, layout): (CudaSliceMut<'_, u16>, Layout),
    ) {
        let Pieces { at, shape, rows } = both;
        both.check();
        let width = shape.n / 2;
        assert!(width.is_multiple_of(WOVEN), "{width} gates and ups are woven by {WOVEN}");
        assert!(out.len() >= layout.elements(rows as usize, width), "{rows} rows of {width}");
        let (steps, workers) = (shape.steps(), both.workers());
        let given = (at, out, steps, workers, rows, count(width));
        let threads = match layout {
            Layout::Rows => rows as usize * width / 4,
            Layout::Tiles => (rows as usize).div_ceil(8) * width,
        };
        let grid = threads_for(threads, 128);
        queue.launch(&self.swiglu[reader(layout, workers)], grid, given);
    }
}
