//! Products of gates and ups on a CUDA card.
//!
//! **Order of columns.** Gates and ups are woven: 64 columns are 32 elements, as [`woven`] says, so that whoever has a
//! gate's sum has its up's too. Of more than [`MOST_ROWS`](super::cuda::MOST_ROWS) rows SwiGLU is made where they are multiplied, if no band is shared
//! by more than two workers: the second leaves its piece and the first adds it, in the order in which readers add pieces,
//! so the bits are those of the product and of [`Activations`](crate::activation::cuda::Activations).

use super::cuda::{BLOCK, Layout, Lines, Packed, Products, Shape, Tiled};
use crate::cuda::{In, count};
use device::cuda::{CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Writes};

/// Elements that are woven together, as many gates and as many ups.
pub const WOVEN: usize = 32;
/// Warps of a block of threads that multiply.
const WARPS: usize = 8;

/// The row of gates above ups, `width` of each, that makes column `column` of a woven product.
pub const fn woven(column: usize, width: usize) -> usize {
    let (within, pair) = (column % (2 * WOVEN), column % 4);
    // Of each eight elements a group of 16 columns has two, each a gate and the up behind it.
    let element = within % 16 / 4 * 8 + within / 16 * 2 + pair / 2;
    pair % 2 * width + column / (2 * WOVEN) * WOVEN + element
}

/// Gates and ups on the card.
#[derive(Clone, Copy)]
pub struct Gates<'j> {
    /// Their weight, [`woven`].
    pub weight: Packed<'j>,
    /// What is added to each column, woven too.
    pub bias: Option<CudaSlice<'j, f32>>,
}

/// Where SwiGLU of gates and ups is made, and goes.
pub struct Gating<'j> {
    /// As [`Shape::pieces`] says.
    pub pieces: CudaSliceMut<'j, f32>,
    /// [`Shape::meetings`] words, zero before and after.
    pub there: CudaSliceMut<'j, u32>,
    /// Rows of half as many columns, in [tiles](Layout::Tiles).
    pub out: CudaSliceMut<'j, u16>,
}

pub(super) type Gated =
    (In<f32>, In<u16>, In<u16>, Writes<f32>, Writes<u32>, Writes<u16>, u32, u32, u32, u32, u32);

/// The kernels, by what they leave of the pieces of a product.
#[derive(Clone)]
pub(super) struct GatedKernels {
    low: Kernel<Gated>,
    pieces: Kernel<Gated>,
    whole: Kernel<Gated>,
}

impl GatedKernels {
    /// # Errors
    /// As [`Module::early_kernel`].
    ///
    /// # Safety
    /// `wide` is compiled from wide.cu.
    pub(super) unsafe fn load(wide: &Module, shared: u32) -> Result<GatedKernels, CudaError> {
        // SAFETY: wide.cu declares these parameters, stops when a slice is too short for the other arguments, and
        // waits before it reads activations or writes.
        unsafe {
            Ok(GatedKernels {
                low: wide.early_kernel("gated_low", shared)?,
                pieces: wide.early_kernel("gated_pieces", shared)?,
                whole: wide.early_kernel("gated_whole", shared)?,
            })
        }
    }
}

impl Shape {
    /// Words by which the workers of a band meet.
    pub fn meetings(&self) -> usize {
        self.bands() * 2 * WARPS
    }

    /// Floats that the second workers of bands leave of so many rows.
    pub(super) fn met(&self, rows: usize) -> usize {
        self.bands() * 2 * BLOCK * rows.next_multiple_of(8)
    }
}

impl Products {
    /// Whether SwiGLU of so many rows that lie so is made where gates and ups of this shape are multiplied, by
    /// [`Products::launch_gated`].
    pub fn gates(&self, shape: &Shape, rows: usize, layout: Layout) -> bool {
        let Tiled { height, .. } = self.tiled;
        let alone = match shape.workers_of(rows) as usize {
            0 => true,
            // Whoever waits for a worker of a later round would hold up a whole one.
            workers => workers <= shape.bands() && rows <= height,
        };
        layout == Layout::Tiles && shape.n.is_multiple_of(2 * WOVEN) && alone
    }

    /// `silu(gate) · up`, narrowed, of `x · weightᵀ + bias`, whose columns are [`woven`].
    ///
    /// # Panics
    /// When it is [not made here](Products::gates), or when a slice is shorter than its shape.
    pub fn launch_gated(
        &self,
        queue: &Queue,
        Gates { weight, bias }: Gates<'_>,
        lines: Lines<'_>,
        Gating { pieces, there, out }: Gating<'_>,
    ) {
        Products::check(weight, &lines, pieces.len());
        let Lines { x, rows, layout } = lines;
        let Packed { shape, at } = weight;
        let width = shape.n / 2;
        assert!(self.gates(&shape, rows, layout), "{rows} rows of {shape:?}, {layout:?}");
        assert!(bias.is_none_or(|bias| bias.len() == shape.n), "a bias for each column");
        assert!(out.len() >= Layout::Tiles.elements(rows, width), "{rows} rows of {width}");
        assert!(there.len() >= shape.meetings(), "a word for each that waits");
        let GatedKernels { low, pieces: by_pieces, whole } = &self.tiled.gated;
        let (kernel, pairs) = self.tiled.deal((low, by_pieces, whole), &shape, rows);
        let grid = Grid { blocks: 2 * count(pairs), threads: self.tiled.threads };
        let bias = bias.unwrap_or_else(|| at.range(0..0).numbers());
        let (blocks, steps, workers) = (count(shape.blocks()), shape.steps(), shape.workers());
        let (rows, width) = (count(rows), count(width));
        let given = (bias, at, x, pieces, there, out, blocks, steps, workers, rows, width);
        queue.launch(kernel, grid, given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each column is a gate or an up, an up stands behind its gate, and eight elements are two columns of a quad each.
    #[test]
    fn ups_stand_behind_their_gates() {
        let width = 96;
        let rows: Vec<usize> = (0..2 * width).map(|column| woven(column, width)).collect();
        for two in rows.chunks_exact(2) {
            assert_eq!(two[1], two[0] + width);
        }
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..2 * width));
        assert_eq!(rows[..16], [0, 96, 1, 97, 8, 104, 9, 105, 16, 112, 17, 113, 24, 120, 25, 121]);
        assert_eq!((rows[16], rows[64]), (2, 32));
    }
}
