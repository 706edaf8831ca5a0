//! The residual sum with the norm behind it on a CUDA card, and the copy of the residual stream that
//! a drafter reads.

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("norm");

/// Most threads of a row, four elements each.
const THREADS: usize = 1024;
/// Widest row.
pub const MOST_WIDTH: usize = 8192;

type AddNorm = (Writes<f32>, In<f32>, In<f32>, Writes<u16>, u32, u32, u32, f32);
type Take = (In<f32>, In<f32>, Writes<u16>, u32, u32, u32, u32, u32, u32);

/// The norms of a card.
#[derive(Clone)]
pub struct Norms {
    add_norm: Kernel<AddNorm>,
    take: Kernel<Take>,
}

/// The pieces to add, or an empty slice and no steps.
fn or_none<'j>(
    delta: Option<Pieces<'j>>,
    rows: usize,
    width: usize,
) -> (Option<CudaSlice<'j, f32>>, u32, u32) {
    let Some(pieces) = delta else { return (None, 0, 1) };
    let Pieces { at, shape, rows: its } = pieces;
    assert!(its as usize == rows && shape.n == width, "{rows} rows of {width} to add");
    pieces.check();
    (Some(at), shape.steps(), pieces.workers())
}

impl Norms {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Norms, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments, and waits before it reads what kernels write.
        unsafe {
            let add_norm = module.early_kernel("add_norm", 0)?;
            Ok(Norms { add_norm, take: module.early_kernel("take", 0)? })
        }
    }

    /// `x += delta`, then `out = rms_norm(x)`, narrowed: `x` and `out` are `[rows, weight.len()]`.
    ///
    /// # Panics
    /// When the shapes do not match, or the width is not a multiple of 4 up to [`MOST_WIDTH`].
    pub fn add_norm(
        &self,
        queue: &Queue,
        x: CudaSliceMut<'_, f32>,
        delta: Option<Pieces<'_>>,
        (weight, eps): (CudaSlice<'_, f32>, f32),
        out: CudaSliceMut<'_, u16>,
    ) {
        let width = weight.len();
        assert!(width.is_multiple_of(4) && (4..=MOST_WIDTH).contains(&width), "a norm of {width}");
        assert!(
            x.len().is_multiple_of(width) && out.len() >= x.len(),
            "x and out are rows of {width}"
        );
        let rows = x.len() / width;
        let (at, steps, workers) = or_none(delta, rows, width);
        let threads = count((width / 4).next_multiple_of(32).min(THREADS));
        let grid = Grid { blocks: count(rows), threads };
        let at = at.unwrap_or(weight.range(0..0));
        queue.launch(&self.add_norm, grid, (x, at, weight, out, steps, workers, count(rows), eps));
    }

    /// Writes `x + delta` (`[rows, width]`), narrowed, to the elements from `first` on of the rows of
    /// `to`, `[rows, stride]`. `x` stays as it is.
    ///
    /// # Panics
    /// When the shapes do not match, or the width is not a multiple of 4.
    pub fn take(
        &self,
        queue: &Queue,
        (x, width): (CudaSlice<'_, f32>, usize),
        delta: Option<Pieces<'_>>,
        to: CudaSliceMut<'_, u16>,
        (first, stride): (usize, usize),
    ) {
        assert!(width.is_multiple_of(4) && x.len().is_multiple_of(width), "rows of {width}");
        let rows = x.len() / width;
        assert!(first + width <= stride && to.len() >= rows * stride, "{rows} rows of {stride}");
        let (at, steps, workers) = or_none(delta, rows, width);
        let at = at.unwrap_or(x.range(0..0));
        let (first, stride) = (count(first), count(stride));
        let given = (x, at, to, steps, workers, count(rows), count(width), first, stride);
        queue.launch(&self.take, threads_for(rows * width / 4, 128), given);
    }
}
