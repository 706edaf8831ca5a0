//! The launch: which inner loop runs, and how panels are spread over the threads.
//!
//! An inner loop multiplies one panel (16 outputs) with one tile of rows. Every output of every
//! row is one lane's sum over the whole of `k`, so neither the tiling nor the split over threads
//! can change a bit of it.

use super::input::{Form, Forms, Input, MOST, Quantized, Tiles};
use super::panel::{LANES, Own, RUN};
use super::{Gated, Product, Stretch, UNIT, Weight, portable};
use crate::activation::swiglu;
use crate::format::{Coding, Format};
use device::{Cpu, Disjoint, Here};
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx512::{Far, Near, Swift};
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};

/// An instruction set with inner loops of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// As [`Isa::Avx512Bf16`], and tiles of bytes (AMX).
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// AVX-512 F, BW, VL and VNNI, and dot products of `bf16`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
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
            let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
            let found = [
                (bf16 && amx::available(), Isa::Amx),
                (bf16, Isa::Avx512Bf16),
                (avx512, Isa::Avx512),
                (avx2, Isa::Avx2),
            ];
            found.into_iter().filter_map(|(has, isa)| has.then_some(isa))
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

    /// Rows of a full tile: as many as the loops have registers for.
    pub(super) fn height(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => 16,
            _ => 8,
        }
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
            Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe { avx512::products(rounds) },
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

/// The loop of one module for a tile of `$width` rows, of those that every instruction set has registers for.
macro_rules! of_width {
    ($module:ident::$function:ident$(::<$($t:ty),*>)?, $width:expr) => {
        match $width {
            1 => $module::$function::<$($($t,)*)? 1>,
            2 => $module::$function::<$($($t,)*)? 2>,
            4 => $module::$function::<$($($t,)*)? 4>,
            6 => $module::$function::<$($($t,)*)? 6>,
            8 => $module::$function::<$($($t,)*)? 8>,
            other => unreachable!("a tile of {other} rows"),
        }
    };
}

fn block_loop<T: Stored>(isa: Isa, width: usize) -> Loop<Quantized> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        _ if tiled(isa, width, T::CODING) => match width {
            8 => amx::blocks::<T, 8>,
            12 => amx::blocks::<T, 12>,
            16 => amx::blocks::<T, 16>,
            other => unreachable!("a tile of {other} rows"),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => of_width!(avx512::blocks::<T, Far>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Avx512 if Swift::suits() => {
            of_width!(avx512::blocks::<T, Swift>, width)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Avx512 => of_width!(avx512::blocks::<T, Near>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => of_width!(avx2::blocks::<T>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => of_width!(neon::blocks::<T, neon::Dot>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => of_width!(neon::blocks::<T, neon::Widen>, width),
        Isa::Portable => of_width!(portable::blocks::<T>, width),
    }
}

/// Whether a [`block_loop`] takes the processor's tiles, for which they have to be [`shaped`].
#[cfg(target_arch = "x86_64")]
fn tiled(isa: Isa, width: usize, coding: Coding) -> bool {
    isa == Isa::Amx && width >= amx::fewest(coding)
}

/// The registers that a [`block_loop`] takes for tiles of `width` rows.
#[cfg(target_arch = "x86_64")]
fn shaped(isa: Isa, width: usize, format: Format) -> Option<amx::Shaped> {
    let coding = format.coding().filter(|&coding| tiled(isa, width, coding));
    // SAFETY: `Isa::available` found the instruction set.
    coding.map(|coding| unsafe { amx::Shaped::new(width, coding) })
}

#[cfg(not(target_arch = "x86_64"))]
fn shaped(_: Isa, _: usize, _: Format) {}

fn float_loop<T: Stored>(isa: Isa, width: usize) -> Loop<f32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => match width {
            12 => avx512::floats::<T, Far, 12>,
            16 => avx512::floats::<T, Far, 16>,
            _ => of_width!(avx512::floats::<T, Far>, width),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Avx512 if Swift::suits() => {
            of_width!(avx512::floats::<T, Swift>, width)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Avx512 => of_width!(avx512::floats::<T, Near>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => of_width!(avx2::floats::<T>, width),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot | Isa::Neon => of_width!(neon::floats::<T>, width),
        Isa::Portable => of_width!(portable::floats::<T>, width),
    }
}

/// Of `bf16` weights and inputs, two elements at a time.
fn pair_loop(isa: Isa, width: usize) -> Loop<u32> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => match width {
            12 => avx512::pairs::<Far, 12>,
            16 => avx512::pairs::<Far, 16>,
            _ => of_width!(avx512::pairs::<Far>, width),
        },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if Swift::suits() => of_width!(avx512::pairs::<Swift>, width),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => of_width!(avx512::pairs::<Near>, width),
        other => unreachable!("{other:?} has no products of pairs, in tiles of {width}"),
    }
}

/// See [`super::Scratch::multiply`].
pub(super) fn multiply(isa: Isa, cpu: &Cpu, input: &Input, products: &mut [Product<'_>]) {
    /// Products of one region: as many as fit a table on the stack.
    const GROUP: usize = 8;
    for Product { weight, y } in products.iter() {
        check(isa, input, weight);
        assert_eq!(y.len(), input.rows * weight.n, "an output of [{}, {}]", input.rows, weight.n);
    }
    if input.k == 0 {
        products.iter_mut().for_each(|product| product.y.fill(0.0));
        return;
    }
    for group in products.chunks_mut(GROUP) {
        let mut outputs: [Option<Output<'_>>; GROUP] = [const { None }; GROUP];
        for (output, product) in outputs.iter_mut().zip(group) {
            let Product { weight, y } = product;
            *output = Some(Output { weight, columns: 0..weight.n, y: Disjoint::new(y) });
        }
        launch(isa, cpu, input, &outputs);
    }
}

/// See [`super::Scratch::stretches`].
pub(super) fn stretches<T: Default + Send>(
    isa: Isa,
    cpu: &Cpu,
    input: &Input,
    (n, weight): (usize, &Weight),
    room: &mut Vec<f32>,
    look: &(dyn Fn(&mut T, Stretch<'_>) + Sync),
) -> Vec<T> {
    /// Outputs that are made at a time: a share of the second-level cache.
    const OUTPUTS: usize = 32 << 10;
    check(isa, input, weight);
    assert!(n <= weight.n, "{n} outputs of a weight of {}", weight.n);
    let (rows, units) = (input.rows, n.div_ceil(UNIT));
    let stretch = (OUTPUTS / rows.max(1) / UNIT).max(1) * UNIT;
    let bytes = n.div_ceil(LANES) * weight.panels.stride();
    let parts = parts(cpu, bytes, rows).min(units);
    let mut found: Vec<T> = (0..parts).map(|_| T::default()).collect();
    let each = rows * stretch.min(units.div_ceil(parts.max(1)) * UNIT);
    room.resize(parts * each, 0.0);
    let (shared, room) = (Disjoint::new(&mut found), Disjoint::new(room));
    cpu.parallel_here(parts, &|here, part| {
        let mine = units * part / parts * UNIT..(units * (part + 1) / parts * UNIT).min(n);
        // SAFETY: each part has its own element, and its own room.
        let (found, y) = unsafe {
            (&mut shared.slice(part..part + 1)[0], room.slice(part * each..(part + 1) * each))
        };
        for first in mine.clone().step_by(stretch) {
            let columns = first..mine.end.min(first + stretch);
            let y = &mut y[..rows * columns.len()];
            let output = Output { weight, columns: columns.clone(), y: Disjoint::new(y) };
            output.run(isa, input, here, columns.start / LANES..columns.end.div_ceil(LANES));
            look(found, Stretch { columns, y });
        }
    });
    found
}

/// See [`super::Scratch::gate`]. A part's columns of both products are activated and kept by the thread
/// that has just made them.
pub(super) fn gate(
    isa: Isa,
    cpu: &Cpu,
    input: &Input,
    gated: Gated<'_>,
    next: (&mut Input, Forms),
) {
    let Gated { weights: [gate, up], biases, products: [gate_y, up_y], activated } = gated;
    let (n, rows, forms) = (gate.n, input.rows, next.1);
    assert_eq!(up.n, n, "gate and up have one width");
    let outputs = [(gate, gate_y), (up, up_y)].map(|(weight, y)| {
        check(isa, input, weight);
        assert_eq!(y.len(), rows * n, "an output of [{rows}, {n}]");
        Output { weight, columns: 0..n, y: Disjoint::new(y) }
    });
    assert_eq!(activated.len(), rows * n, "activations of [{rows}, {n}]");
    let (activated, open) = (Disjoint::new(activated), next.0.open((rows, n), forms));
    let bytes = outputs.iter().map(Output::bytes).sum();
    let units = n.div_ceil(RUN);
    let parts = parts(cpu, bytes, rows).min(units);
    cpu.parallel_here(parts, &|here, part| {
        let columns = units * part / parts * RUN..(units * (part + 1) / parts * RUN).min(n);
        for output in &outputs {
            output.run(isa, input, here, columns.start / LANES..columns.end.div_ceil(LANES));
        }
        for row in 0..open.all {
            // SAFETY: a part has its columns to itself.
            unsafe {
                let mut x: &[f32] = &[];
                if row < rows {
                    let at = row * n + columns.start..row * n + columns.end;
                    let [gate, up] = [0, 1].map(|i| {
                        let y = outputs[i].y.slice(at.clone());
                        let bias = biases[i].iter().flat_map(|bias| &bias[columns.clone()]);
                        y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
                        y
                    });
                    let out = activated.slice(at);
                    swiglu(gate, up, out);
                    x = out;
                }
                open.put(row, columns.clone(), x);
            }
        }
    });
}

/// Demands that `weight` fits `input`.
fn check(isa: Isa, input: &Input, weight: &Weight) {
    let Input { rows, k, forms, .. } = *input;
    assert!(rows == 0 || weight.k == k, "a weight of {} columns, an input of {k}", weight.k);
    let taken = Forms::of(isa, [weight]);
    assert!(taken.are_in(forms), "a product takes {taken:?}, the input has {forms:?}");
}

/// Parts of a region that reads so many bytes of weights for each of `rows`.
fn parts(cpu: &Cpu, bytes: usize, rows: usize) -> usize {
    /// Parts a thread takes on average: enough that a late thread takes fewer.
    const PARTS: usize = 4;
    /// Weight bytes times rows that are worth a part of their own.
    const WORTH: usize = 16 << 10;
    (bytes * rows / WORTH).clamp(1, cpu.threads() * PARTS)
}

/// A product whose output several threads write.
struct Output<'a> {
    weight: &'a Weight,
    /// Which of the weight's outputs; the first begins a panel.
    columns: Range<usize>,
    /// `[rows, columns.len()]`.
    y: Disjoint<'a, f32>,
}

/// Runs the products in one region, cut into parts of about equal weight bytes.
fn launch(isa: Isa, cpu: &Cpu, input: &Input, outputs: &[Option<Output<'_>>]) {
    let bytes: usize = outputs.iter().flatten().map(Output::bytes).sum();
    let parts = parts(cpu, bytes, input.rows);
    cpu.parallel_here(parts, &|here, part| {
        let mine = bytes * part / parts..bytes * (part + 1) / parts;
        let mut start = 0;
        for output in outputs.iter().flatten() {
            let (stride, count) = (output.weight.panels.stride(), output.panels());
            // A panel belongs to the part in which it starts.
            let starts_before = |end: usize| end.saturating_sub(start).div_ceil(stride).min(count);
            output.run(isa, input, here, starts_before(mine.start)..starts_before(mine.end));
            start += output.bytes();
        }
    });
}

impl Output<'_> {
    /// Panels that hold the outputs.
    fn panels(&self) -> usize {
        self.columns.len().div_ceil(LANES)
    }

    /// Weight bytes that are read.
    fn bytes(&self) -> usize {
        self.panels() * self.weight.panels.stride()
    }

    /// Computes the outputs of `panels` for all rows, from the copy on the thread's node.
    fn run(&self, isa: Isa, input: &Input, here: Here, panels: Range<usize>) {
        let (format, own) = (self.weight.format, self.weight.panels.own(here));
        match Form::of(isa, format) {
            Form::Quantized => {
                let inner = |width| {
                    let inner = with_format!(
                        format,
                        [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K],
                        block_loop(isa, width)
                    );
                    (inner, shaped(isa, width, format))
                };
                self.run_tiles(input.quantized(), (own, panels), inner);
            }
            Form::Paired => {
                let inner = |width| (pair_loop(isa, width), ());
                self.run_tiles(input.paired(), (own, panels), inner);
            }
            Form::Transposed => {
                let inner =
                    |width| (with_format!(format, [F32, F16, BF16], float_loop(isa, width)), ());
                self.run_tiles(input.transposed(), (own, panels), inner);
            }
        }
    }

    /// Multiplies `panels` of a copy with every tile, a cacheful of panels at a time. `inner` says how a tile of so many
    /// rows is multiplied, and what the thread has to hold for that.
    fn run_tiles<T, Held>(
        &self,
        tiles: Tiles<'_, T>,
        (own, mut panels): (Own<'_>, Range<usize>),
        inner: impl Fn(usize) -> (Loop<T>, Held),
    ) {
        /// Weight bytes that stay in a core's second-level cache while the tiles pass by.
        const CACHEFUL: usize = 256 << 10;
        let at_once = (CACHEFUL / self.weight.panels.stride()).max(1);
        let mut out = [[0.0; LANES]; MOST];
        while !panels.is_empty() {
            let now = panels.start..panels.end.min(panels.start + at_once);
            panels.start = now.end;
            for tile in tiles.iter() {
                let (inner, _held) = inner(tile.width);
                for p in now.clone() {
                    let panel = own.panel(p);
                    // SAFETY: `inner` is for an instruction set that `Isa::available` found.
                    unsafe { inner(panel, tile.items, &mut out[..tile.width]) };
                    self.store(tile.first, p, &out[..tile.rows]);
                }
            }
        }
    }

    /// Writes panel `p`'s outputs of the rows from `row` on.
    fn store(&self, row: usize, p: usize, out: &[[f32; LANES]]) {
        let (n, first) = (self.columns.len(), p * LANES - self.columns.start);
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
