//! Matrix product with a packed weight: `y[rows, n] = x[rows, k] · w[n, k]ᵀ`.
//!
//! Each `y[r, j]` is reduced over `k` in one fixed order per weight shape and format, whatever
//! `rows`, the other products of the launch, or the number of threads.
//!
//! - Plain floats: `f32` sums over `k` in ascending order, fused multiply-add where the CPU has
//!   it. `BF16` on a CPU that has dot products of it: the input is rounded to `bf16`, and two elements of
//!   `k` are added at a time.
//! - Block formats: the input is quantized to signed bytes per 32 elements (one `f32` scale,
//!   largest magnitude 127), dot products of 32 elements are exact integers, and the blocks'
//!   contributions are summed in `f32` in ascending order: of each block its scale by what the input is
//!   scaled by and the dot product, then its min by the input's sum, each by a fused multiply-add.
//!
//! Files: `panel` is the packed layout, `input` what becomes of `x`, `cpu` the launch, and
//! one file an instruction set holds the inner loops.

/// Runs `$body` for row `$r` of a tile of `$rows`, up to eight, written out: of a loop over rows the
/// compiler unrolls some and keeps the sums of others in memory.
#[cfg(target_arch = "x86_64")]
macro_rules! each_row {
    ($rows:expr, $r:ident, $body:block) => {
        each_row!(@ $rows, $r, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $rows:expr, $r:ident, $body:block, $($index:literal)*) => {
        const { assert!($rows <= 8, "as many rows as are written out") };
        $(if $index < $rows {
            let $r = $index;
            $body
        })*
    };
}

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod gated;
mod input;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod nodes_test;
mod panel;
mod portable;
#[cfg(feature = "cuda")]
pub mod short;
#[cfg(test)]
mod test;

use crate::format::Format;
use crate::rows::{Given, Rows};
use device::{Cpu, Here};
use std::ops::Range;

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

impl RowOrder {
    /// The file row that holds output `i` of `n`.
    pub fn file_row(self, i: usize, n: usize) -> usize {
        match self {
            RowOrder::Plain => i,
            RowOrder::Interleaved { heads } => {
                let (d, half) = (n / heads, n / heads / 2);
                let (head, at) = (i / d, i % d);
                head * d + 2 * (at % half) + at / half
            }
        }
    }
}

/// A weight matrix in the layout the CPU's kernels want: `[n, k]`, quantized as it was stored. Each memory node on which
/// threads are has a copy.
pub struct Weight {
    n: usize,
    k: usize,
    format: Format,
    panels: panel::Panels,
}

/// One product of a launch: `y[rows, n] = x · weightᵀ`.
pub struct Product<'a> {
    /// `[n, k]`.
    weight: &'a Weight,
    /// `[rows, n]`, overwritten.
    y: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// Of `weight` (`[n, k]`); `y` is `[rows, n]` and will be overwritten.
    pub fn new(weight: &'a Weight, y: &'a mut [f32]) -> Product<'a> {
        Product { weight, y }
    }
}

/// Outputs that are looked at by one thread.
pub(crate) const UNIT: usize = 256;

/// Some columns of a product, while they are there.
pub(crate) struct Stretch<'a> {
    /// Which.
    pub(crate) columns: Range<usize>,
    /// `[rows, columns.len()]`.
    y: &'a [f32],
}

impl Stretch<'_> {
    /// Row after row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.y.chunks_exact(self.columns.len())
    }
}

/// A gated half layer: `silu(gate) · up` ([`crate::activation`]) of two products of one input, whose
/// weights are `[n, k]`.
pub struct Gated<'a> {
    /// Of gate and up.
    pub weights: [&'a Weight; 2],
    /// What is added to either product, `[n]`.
    pub biases: [Option<&'a [f32]>; 2],
    /// The products with their biases, `[rows, n]` each, overwritten.
    pub products: [&'a mut [f32]; 2],
    /// What becomes of them, `[rows, n]`, overwritten.
    pub activated: &'a mut [f32],
}

/// Says that the launch behind the next one multiplies with `weights`, so that threads that wait meanwhile
/// [bring](Cpu::soon) them nearer.
pub fn soon(cpu: &Cpu, weights: &[&Weight]) {
    cpu.soon(&[weights], |weight| weight.panels.memory());
}

/// The same of a launch of [`Scratch::gate`].
pub fn soon_gate(cpu: &Cpu, weights: [&Weight; 2]) {
    let [gate, up] = weights;
    cpu.soon(&[&[gate], &[up]], |weight| weight.panels.memory());
}

/// What products multiply, and its memory, reused from launch to launch.
#[derive(Default)]
pub struct Scratch {
    input: input::Input,
}

impl Scratch {
    /// Computes `rows`, in the forms that `weights` will take them in. With no weights the rows are
    /// computed and nothing else.
    ///
    /// # Panics
    /// When a block format's weight takes rows that are not whole blocks.
    pub fn fill<'w>(
        &mut self,
        cpu: &Cpu,
        rows: &dyn Rows,
        weights: impl IntoIterator<Item = &'w Weight>,
    ) {
        self.input.fill(cpu, rows, input::Forms::of(cpu::Isa::detect(), weights));
    }

    /// Computes every product of the rows that [`Scratch::fill`] was given, in one launch.
    ///
    /// # Panics
    /// When a length does not match its shape, or a weight is of a kind that the rows were not filled
    /// for.
    pub fn multiply(&self, cpu: &Cpu, products: &mut [Product<'_>]) {
        cpu::multiply(cpu::Isa::detect(), cpu, &self.input, products);
    }

    /// Computes the first `n` outputs of `weight` for the rows that [`Scratch::fill`] was given, in one launch, and keeps
    /// none: a thread makes a stretch of columns in its part of `room`, which is memory that comes back from one
    /// call to the next, looks at it and forgets it. The columns are cut
    /// into parts, for each of which `look` fills an element of the result, stretch by stretch in order; parts are in
    /// the order of their columns, and begin, as stretches do, at multiples of [`UNIT`].
    ///
    /// # Panics
    /// As [`Scratch::multiply`].
    pub(crate) fn stretches<T: Default + Send>(
        &self,
        cpu: &Cpu,
        (n, weight): (usize, &Weight),
        room: &mut Vec<f32>,
        look: &(dyn Fn(&mut T, Stretch<'_>) + Sync),
    ) -> Vec<T> {
        cpu::stretches(cpu::Isa::detect(), cpu, &self.input, (n, weight), room, look)
    }

    /// Computes `gated` of the rows that [`Scratch::fill`] was given, in one launch, and fills `next` with
    /// what becomes of them for `weight`.
    ///
    /// # Panics
    /// As [`Scratch::multiply`] and [`Scratch::fill`].
    pub fn gate(&self, cpu: &Cpu, gated: Gated<'_>, next: &mut Scratch, weight: &Weight) {
        let isa = cpu::Isa::detect();
        let forms = input::Forms::of(isa, [weight]);
        cpu::gate(isa, cpu, &self.input, gated, (&mut next.input, forms));
    }
}

impl Weight {
    /// Repacks a stored `[n, k]` matrix.
    ///
    /// # Panics
    /// When `data` is not `format.bytes(n * k)` long or `k` is not whole blocks; when `order`
    /// does not cut `n` into heads of an even number of rows.
    pub fn pack(
        cpu: &Cpu,
        format: Format,
        n: usize,
        k: usize,
        order: RowOrder,
        data: &[u8],
    ) -> Weight {
        let name = format.name();
        let row_bytes = format.bytes(k);
        let row_bytes = row_bytes.unwrap_or_else(|| panic!("{k} is not whole blocks of {name}"));
        assert_eq!(data.len(), row_bytes * n, "bytes of a {name} matrix [{n}, {k}]");
        if let RowOrder::Interleaved { heads } = order {
            assert!(heads > 0 && n.is_multiple_of(2 * heads), "{n} rows are not {heads} heads");
        }
        let row = |i: usize| &data[order.file_row(i, n) * row_bytes..][..row_bytes];
        Weight { n, k, format, panels: panel::Panels::pack(cpu, format, n, k, &row) }
    }

    /// Output width.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input width.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that a product reads, and that each memory node holds.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Expands row `i` (length `k`) to `f32`, from the copy on the caller's node: an embedding lookup in a tied output
    /// head. The values are those of [`Format::dequantize`].
    ///
    /// # Panics
    /// When `i` is no row or `out` is not `k` long.
    pub fn row(&self, here: Here, i: usize, out: &mut [f32]) {
        assert!(i < self.n, "row {i} of a weight of {} rows", self.n);
        assert_eq!(out.len(), self.k, "one row of the weight");
        self.panels.own(here).row(self.format, i, out);
    }
}

/// Computes every product of `x` (`[rows, k]`) in one launch. All weights share `k`.
///
/// # Panics
/// When a length does not match its shape.
pub fn gemm(
    cpu: &Cpu,
    scratch: &mut Scratch,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) {
    scratch.fill(cpu, &Given::new(x, rows), products.iter().map(|product| product.weight));
    scratch.multiply(cpu, products);
}

/// The most that the inner loops for block formats could reach: integer products of the vectors
/// they use and nothing else, `rounds` on each thread. How many operations that is, a
/// multiplication and an addition counted apart. AMX multiplies several times as much, but what scales
/// take is done by vectors there too.
pub fn integer_products(cpu: &Cpu, rounds: usize) -> u64 {
    let isa = cpu::Isa::detect();
    cpu.parallel(cpu.threads(), &|_| {
        std::hint::black_box(isa.products(rounds));
    });
    (cpu::PRODUCTS * rounds * cpu.threads()) as u64
}

/// Adds `bias` (`[n]`) to every row of `y` (`[rows, n]`).
///
/// # Panics
/// When `y` is not whole rows.
pub fn add_bias(cpu: &Cpu, y: &mut [f32], bias: &[f32]) {
    /// Elements that are worth a thread's while.
    const CHUNK: usize = 1 << 14;
    let n = bias.len();
    assert!(n > 0 && y.len().is_multiple_of(n), "{} elements in rows of {n}", y.len());
    cpu.chunks(y, CHUNK.div_ceil(n) * n, &|_, rows| {
        for row in rows.chunks_exact_mut(n) {
            for (y, b) in row.iter_mut().zip(bias) {
                *y += b;
            }
        }
    });
}
