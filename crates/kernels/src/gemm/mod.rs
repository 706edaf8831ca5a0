//! Matrix product with a packed weight: `y[rows, n] = x[rows, k] · w[n, k]ᵀ`.
//!
//! Each `y[r, j]` is reduced over `k` in one fixed order per weight shape and format, whatever
//! `rows`, the other products of the launch, or the number of threads.

use crate::format::Format;
use device::Cpu;

/// The order in which a stored matrix keeps the rows of one attention head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As used: row `i` of the file is output `i`.
    Plain,
    /// llama.cpp's order for Llama-family Q and K: within each of `heads` heads of `d` rows, file
    /// row `2·i + h` holds output `i + h·d/2` (`h` 0 or 1), so that RoPE pairs are neighbours.
    Interleaved {
        /// Heads in the matrix.
        heads: usize,
    },
}

/// A weight matrix in the layout the CPU's kernels want: `[n, k]`, quantized as it was stored.
pub struct Weight {
    n: usize,
    k: usize,
}

/// One product of a launch: `y[rows, n] = x · weightᵀ`.
pub struct Product<'a> {
    /// `[n, k]`.
    pub weight: &'a Weight,
    /// `[rows, n]`, overwritten.
    pub y: &'a mut [f32],
}

/// Reusable memory of [`gemm`] (the quantized input).
#[derive(Default)]
pub struct Scratch {}

impl Weight {
    /// Repacks a stored `[n, k]` matrix.
    ///
    /// # Panics
    /// When `data` is not `format.bytes(n * k)` long or `k` is not whole blocks.
    pub fn pack(
        cpu: &Cpu,
        format: Format,
        n: usize,
        k: usize,
        order: RowOrder,
        data: &[u8],
    ) -> Weight {
        let _ = (cpu, format, order, data);
        Weight { n, k }
    }

    /// Output width.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input width.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held in memory.
    pub fn bytes(&self) -> usize {
        0
    }

    /// Expands row `i` (length `k`) to `f32`: an embedding lookup in a tied output head.
    pub fn row(&self, i: usize, out: &mut [f32]) {
        let _ = (i, out);
        unimplemented!()
    }
}

/// Computes every product of `x` (`[rows, k]`) in one launch. All weights share `k`.
pub fn gemm(
    cpu: &Cpu,
    scratch: &mut Scratch,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) {
    let _ = (cpu, scratch, x, rows, products);
    unimplemented!()
}

/// Adds `bias` (`[n]`) to every row of `y` (`[rows, n]`).
pub fn add_bias(cpu: &Cpu, y: &mut [f32], bias: &[f32]) {
    let _ = (cpu, y, bias);
    unimplemented!()
}
