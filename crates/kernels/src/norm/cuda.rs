//! The residual sum with the norm behind it on a CUDA card, with a copy of the sum for a drafter.

use crate::cuda::{In, Pieces, count, reader, source};
use crate::gemm::cuda::Layout;
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("norm");

/// Most threads of a row, four elements each.
const THREADS: usize = 1024;
/// Widest row.
pub const MOST_WIDTH: usize = 8192;

type AddNorm =
    (Writes<f32>, In<f32>, In<f32>, Writes<u16>, Writes<u16>, u32, u32, u32, u32, u32, f32);

/// The norms of a card.
#[derive(Clone)]
pub struct Norms {
    /// By [`reader`].
    add_norm: [Kernel<AddNorm>; 3],
}

/// Where the residual stream is copied, narrowed: to the elements from `first` on of the rows of `to`,
/// `[rows, stride]`. Both are multiples of 4.
pub struct Kept<'j> {
    /// The rows.
    pub to: CudaSliceMut<'j, u16>,
    /// Where a row of the stream begins in one of `to`.
    pub first: usize,
    /// Elements of a row of `to`.
    pub stride: usize,
}

impl Kept<'_> {
    /// # Panics
    /// When `rows` rows of `width` elements do not fit there.
    pub(crate) fn check(&self, rows: usize, width: usize) {
        let Kept { to, first, stride } = self;
        assert!(first.is_multiple_of(4) && stride.is_multiple_of(4), "rows are kept in fours");
        assert!(
            *stride == 0 || first + width <= *stride && to.len() >= rows * stride,
            "{rows} rows of {stride}"
        );
    }
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
            let add_norm = [
                module.early_kernel("add_norm", 0)?,
                module.early_kernel("add_norm_tiles", 0)?,
                module.early_kernel("add_norm_whole", 0)?,
            ];
            Ok(Norms { add_norm })
        }
    }

    /// `x += delta`, then `out = rms_norm(x)`, narrowed: `x` and `out` have rows of `weight.len()`, those of
    /// `out` lie as `layout` says. `kept`, where it is wanted, becomes a copy of `x`.
    ///
    /// # Panics
    /// When the shapes do not match, or the width is not a multiple of 4 up to [`MOST_WIDTH`].
    pub fn add_norm(
        &self,
        queue: &Queue,
        x: CudaSliceMut<'_, f32>,
        delta: Option<Pieces<'_>>,
        (weight, eps): (CudaSlice<'_, f32>, f32),
        (out, layout): (CudaSliceMut<'_, u16>, Layout),
        kept: Option<Kept<'_>>,
    ) {
        let width = weight.len();
        assert!(width.is_multiple_of(4) && (4..=MOST_WIDTH).contains(&width), "a norm of {width}");
        let rows = x.len() / width;
        assert!(
            x.len().is_multiple_of(width) && out.len() >= layout.elements(rows, width),
            "x and out are rows of {width}"
        );
        let (none, out) = out.split(0);
        let kept = kept.unwrap_or(Kept { to: none, first: 0, stride: 0 });
        kept.check(rows, width);
        let Kept { to, first, stride } = kept;
        let (at, steps, workers) = or_none(delta, rows, width);
        let threads = count((width / 4).next_multiple_of(32).min(THREADS));
        let grid = Grid { blocks: count(rows), threads };
        let at = at.unwrap_or(weight.range(0..0));
        let (rows, first, stride) = (count(rows), count(first), count(stride));
        let given = (x, at, weight, out, to, steps, workers, rows, first, stride, eps);
        queue.launch(&self.add_norm[reader(layout, workers)], grid, given);
    }
}
