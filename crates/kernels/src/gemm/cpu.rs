//! The launch: which inner loop runs, and how panels are spread over the threads.
//!
//! An inner loop multiplies one panel (16 outputs) with one tile of rows. Every output of every
//! row is one lane's sum over the whole of `k`, so neither the tiling nor the split over threads
//! can change a bit of it.

use super::input::{Input, Quantized, TILE, Tiles};
use super::panel::LANES;
use super::{Product, Weight, portable};
use crate::format::{Coding, Format};
use device::{Cpu, Disjoint};
use std::ops::Range;

#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// An instruction set with inner loops of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// AVX-512 F, BW, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with the dot-product instructions.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Whatever the compiler makes of plain Rust.
    Portable,
}

impl Isa {
    /// Everything this machine can run, best first.
    pub(super) fn available() -> impl Iterator<Item = Isa> {
        #[cfg(target_arch = "x86_64")]
        let vector = {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni");
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            avx512.then_some(Isa::Avx512).into_iter().chain(avx2.then_some(Isa::Avx2))
        };
        #[cfg(target_arch = "aarch64")]
        let vector = {
            let neon = std::arch::is_aarch64_feature_detected!("neon");
            let dot = neon && std::arch::is_aarch64_feature_detected!("dotprod");
            dot.then_some(Isa::NeonDot).into_iter().chain(neon.then_some(Isa::Neon))
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let vector = std::iter::empty();
        vector.chain([Isa::Portable])
    }

    /// The best this machine can run.
    pub(super) fn detect() -> Isa {
        Isa::available().next().expect("Portable is always available")
    }
}

/// Accumulators of [`Isa::products`]: enough to hide how long one product takes.
pub(super) const SUMS: usize = 12;
/// Operations of a round of [`Isa::products`]: quads of bytes in every lane of every accumulator.
pub(super) const PRODUCTS: usize = 2 * SUMS * LANES * 4;

impl Isa {
    /// Dot products of quads of bytes, 1 · 2 each, one a round added to each accumulator. The sum of
    /// all of them.
    pub(super) fn products(self, rounds: usize) -> i32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Isa::available` found the instruction set.
            Isa::Avx512 => unsafe { avx512::products(rounds) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { avx2::products(rounds) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::NeonDot => unsafe { neon::products::<neon::Dot>(rounds) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Isa::Neon => unsafe { neon::products::<neon::Widen>(rounds) },
            Isa::Portable => portable::products(rounds),
        }
    }
}

/// A storage format as a type, so that an inner loop is compiled for it.
pub(super) trait Stored {
    const FORMAT: Format;
    /// The parameters of a block format; evaluated only by loops for block formats.
    const CODING: Coding = Self::FORMAT.coding().expect("a block format");
}

/// Calls `$callee::<T> $args` with `T` the type of one of the listed formats.
macro_rules! with_format {
    ($format:expr, [$($name:ident),*], $callee:ident $args:tt) => {
        match $format {
            $(Format::$name => {
                struct T;
                impl Stored for T {
                    const FORMAT: Format = Format::$name;
                }
                $callee::<T> $args
            })*
            other => unreachable!("{} takes the other kind of loop", other.name()),
        }
    };
}

/// An inner loop: `out[r][lane] = Σ panel[lane] · x[r]` for a tile of `out.len()` rows; `out` is
/// overwritten.
///
/// # Safety
/// The CPU must have the instruction set the loop was chosen for.
type Loop<T> = unsafe fn(panel: &[u8], x: &[T], out: &mut [[f32; LANES]]);

/// The loop of one module for a tile of `$width` rows.
macro_rules! of_width {
    ($module:ident::$function:ident::<$($t:ty),*>, $width:expr) => {
        match $width {
            1 => $module::$function::<$($t,)* 1>,
            2 => $module::$function::<$($t,)* 2>,
            4 => $module::$function::<$($t,)* 4>,
            8 => $module::$function::<$($t,)* 8>,
            other => unreachable!("a tile of {other} rows"),
        }
    };
}

fn block_loop<T: Stored>(isa: Isa, width: usize) -> Loop<Quantized> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => of_width!(avx512::blocks::<T>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => of_width!(avx2::blocks::<T>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => of_width!(neon::blocks::<T, neon::Dot>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => of_width!(neon::blocks::<T, neon::Widen>, width),
        Isa::Portable => of_width!(portable::blocks::<T>, width),
    }
}

fn float_loop<T: Stored>(isa: Isa, width: usize) -> Loop<f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => of_width!(avx512::floats::<T>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => of_width!(avx2::floats::<T>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot | Isa::Neon => of_width!(neon::floats::<T>, width),
        Isa::Portable => of_width!(portable::floats::<T>, width),
    }
}

/// See [`super::gemm`].
pub(super) fn gemm(
    isa: Isa,
    cpu: &Cpu,
    input: &mut Input,
    x: &[f32],
    rows: usize,
    products: &mut [Product<'_>],
) {
    /// Products of one region: as many as fit a table on the stack.
    const GROUP: usize = 8;
    let Some(k) = products.first().map(|p| p.weight.k) else { return };
    assert_eq!(x.len(), rows * k, "an input of [{rows}, {k}]");
    for Product { weight, n, y } in products.iter() {
        assert_eq!(weight.k, k, "the products of a launch share k");
        assert_eq!(y.len(), rows * n, "an output of [{rows}, {n}]");
    }
    if rows == 0 || k == 0 {
        products.iter_mut().for_each(|p| p.y.fill(0.0));
        return;
    }
    if products.iter().any(|p| p.weight.format.coding().is_some()) {
        input.quantize(cpu, x, rows, k);
    }
    if products.iter().any(|p| p.weight.format.coding().is_none()) {
        input.transpose(cpu, x, rows, k);
    }
    for group in products.chunks_mut(GROUP) {
        let mut outputs: [Option<Output<'_>>; GROUP] = [const { None }; GROUP];
        for (output, product) in outputs.iter_mut().zip(group) {
            let Product { weight, n, y } = product;
            *output = Some(Output { weight, n: *n, y: Disjoint::new(y) });
        }
        launch(isa, cpu, input, rows, &outputs);
    }
}

/// A product whose output several threads write.
struct Output<'a> {
    weight: &'a Weight,
    /// How many of the weight's outputs.
    n: usize,
    y: Disjoint<'a, f32>,
}

/// Runs the products in one region, cut into parts of about equal weight bytes.
fn launch(isa: Isa, cpu: &Cpu, input: &Input, rows: usize, outputs: &[Option<Output<'_>>]) {
    /// Parts a thread takes on average: enough that a late thread takes fewer.
    const PARTS: usize = 4;
    /// Weight bytes times rows that are worth a part of their own.
    const WORTH: usize = 16 << 10;
    let bytes: usize = outputs.iter().flatten().map(Output::bytes).sum();
    let parts = (bytes * rows / WORTH).clamp(1, cpu.threads() * PARTS);
    cpu.parallel(parts, &|part| {
        let mine = bytes * part / parts..bytes * (part + 1) / parts;
        let mut start = 0;
        for output in outputs.iter().flatten() {
            let (stride, count) = (output.weight.panels.stride(), output.panels());
            // A panel belongs to the part in which it starts.
            let starts_before = |end: usize| end.saturating_sub(start).div_ceil(stride).min(count);
            output.run(isa, input, rows, starts_before(mine.start)..starts_before(mine.end));
            start += output.bytes();
        }
    });
}

impl Output<'_> {
    /// Panels that hold the outputs.
    fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Weight bytes that are read.
    fn bytes(&self) -> usize {
        self.panels() * self.weight.panels.stride()
    }

    /// Computes the outputs of `panels` for all rows.
    fn run(&self, isa: Isa, input: &Input, rows: usize, panels: Range<usize>) {
        let Weight { k, format, .. } = *self.weight;
        if format.coding().is_some() {
            let inner = |width| {
                with_format!(
                    format,
                    [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K],
                    block_loop(isa, width)
                )
            };
            self.run_tiles(input.quantized(rows, k), panels, inner);
        } else {
            let inner = |width| with_format!(format, [F32, F16, BF16], float_loop(isa, width));
            self.run_tiles(input.transposed(rows, k), panels, inner);
        }
    }

    /// Multiplies `panels` with every tile, a cacheful of panels at a time.
    fn run_tiles<T>(
        &self,
        tiles: Tiles<'_, T>,
        mut panels: Range<usize>,
        inner: impl Fn(usize) -> Loop<T>,
    ) {
        /// Weight bytes that stay in a core's second-level cache while the tiles pass by.
        const CACHEFUL: usize = 256 << 10;
        let at_once = (CACHEFUL / self.weight.panels.stride()).max(1);
        let mut out = [[0.0; LANES]; TILE];
        while !panels.is_empty() {
            let now = panels.start..panels.end.min(panels.start + at_once);
            panels.start = now.end;
            for tile in tiles.iter() {
                let inner = inner(tile.width);
                for p in now.clone() {
                    let panel = self.weight.panels.panel(p);
                    // SAFETY: `inner` is for an instruction set that `Isa::available` found.
                    unsafe { inner(panel, tile.items, &mut out[..tile.width]) };
                    self.store(tile.first, p, &out[..tile.rows]);
                }
            }
        }
    }

    /// Writes panel `p`'s outputs of the rows from `row` on.
    fn store(&self, row: usize, p: usize, out: &[[f32; LANES]]) {
        let (n, first) = (self.n, p * LANES);
        let live = LANES.min(n - first);
        for (r, values) in out.iter().enumerate() {
            let at = (row + r) * n + first;
            // SAFETY: these are the columns of panel `p`, and each panel is run by one part.
            let y = unsafe { self.y.slice(at..at + live) };
            match <&mut [f32; LANES]>::try_from(&mut *y) {
                Ok(y) => *y = *values,
                Err(_) => y.copy_from_slice(&values[..live]),
            }
        }
    }
}
