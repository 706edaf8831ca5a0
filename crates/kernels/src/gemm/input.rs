//! What becomes of `x`: for block formats it is quantized, for plain floats transposed, both into
//! *tiles* of rows so that an inner loop reads one stream.
//!
//! A tile is up to [`Isa::height`] rows; its width is one of a few (the last tile is filled up with zero
//! rows). Item `j` (a run of 32 elements, or one element) of row `r` of a tile lies at
//! `j · width + r`.

use super::Weight;
#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::cpu::Isa;
use super::panel::RUN;
use crate::format::{Format, bf16_from_f32, byte_scale, nearest_byte};
use crate::rows::Rows;
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Rows of a full tile at most.
pub(super) const MOST: usize = 16;
/// Rows that the last tile is filled up to, as far as a full tile has them.
const WIDTHS: [usize; 8] = [0, 1, 2, 4, 6, 8, 12, MOST];

/// 32 elements of one row as signed bytes: element = `scale · q`. One cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Quantized {
    pub(super) q: [i8; RUN],
    pub(super) scale: f32,
    /// Minus the sum of all `q`, of the first 16, of the last 16: times a format's zero code,
    /// where an integer dot product starts.
    pub(super) neg_sums: [i32; 3],
    /// `scale` times the same sums (positive): what a min is multiplied by.
    pub(super) scaled_sums: [f32; 3],
}

impl Quantized {
    pub(super) const ZERO: Quantized =
        Quantized { q: [0; RUN], scale: 0.0, neg_sums: [0; 3], scaled_sums: [0.0; 3] };

    /// Quantizes 32 elements. A NaN or infinity among them makes the scale NaN or infinite, and
    /// so every product with them.
    pub(super) fn new(x: &[f32; RUN]) -> Quantized {
        let scale = byte_scale(x);
        if scale < f32::MIN_POSITIVE {
            return Quantized::ZERO;
        }
        let inverse = 1.0 / scale;
        let q: [i8; RUN] = std::array::from_fn(|i| nearest_byte(x[i] * inverse));
        let sum = |half: usize| -> i32 { q[half..half + 16].iter().map(|&q| i32::from(q)).sum() };
        Quantized::with(scale, q, [sum(0), sum(16)])
    }

    /// `q` times `scale`, of whose halves the sums are `first` and `last`.
    #[inline(always)] // so that it is compiled for the instruction set of its caller
    pub(super) fn with(scale: f32, q: [i8; RUN], [first, last]: [i32; 2]) -> Quantized {
        let sums = [first + last, first, last];
        Quantized {
            q,
            scale,
            neg_sums: sums.map(|s| -s),
            scaled_sums: sums.map(|s| scale * s as f32),
        }
    }
}

/// What an input has to become for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Signed bytes, in runs.
    Quantized,
    /// Pairs of neighbours, rounded to `bf16`.
    Paired,
    /// As it is.
    Transposed,
}

impl Form {
    /// What products with weights of `format` take.
    pub(super) fn of(isa: Isa, format: Format) -> Form {
        match (isa, format) {
            (_, format) if format.coding().is_some() => Form::Quantized,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16, Format::BF16) => Form::Paired,
            _ => Form::Transposed,
        }
    }
}

/// The forms of an input that some products take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    kinds: [bool; 3],
    /// Rows of a full tile.
    height: usize,
}

impl Forms {
    /// What `weights` take.
    pub(super) fn of<'w>(isa: Isa, weights: impl IntoIterator<Item = &'w Weight>) -> Forms {
        let mut kinds = [false; 3];
        for weight in weights {
            kinds[Form::of(isa, weight.format) as usize] = true;
        }
        Forms { kinds, height: isa.height() }
    }

    fn has(self, form: Form) -> bool {
        self.kinds[form as usize]
    }

    /// Whether these are among `others`.
    pub(super) fn are_in(self, others: Forms) -> bool {
        let kinds = self.kinds.iter().zip(others.kinds).all(|(&here, there)| here <= there);
        kinds && self.height == others.height
    }
}

/// An input in the forms that products take, its memory reused from launch to launch.
#[derive(Default)]
pub(super) struct Input {
    quantized: Vec<Quantized>,
    paired: Vec<u32>,
    transposed: Vec<f32>,
    /// What is there.
    pub(super) forms: Forms,
    pub(super) rows: usize,
    pub(super) k: usize,
}

/// One form of the input.
pub(super) struct Tiles<'a, T> {
    items: &'a [T],
    rows: usize,
    /// Items of one row.
    per_row: usize,
    /// Rows of a full tile.
    height: usize,
}

/// One tile.
pub(super) struct Tile<'a, T> {
    /// Its first row.
    pub(super) first: usize,
    /// Its rows without the filling.
    pub(super) rows: usize,
    /// Its rows with the filling.
    pub(super) width: usize,
    /// `[items of a row, width]`.
    pub(super) items: &'a [T],
}

impl<'a, T> Tiles<'a, T> {
    /// Tile after tile.
    pub(super) fn iter(&self) -> impl Iterator<Item = Tile<'a, T>> {
        let height = self.height;
        let tiles = self.items.chunks(height * self.per_row).enumerate();
        tiles.map(move |(t, items)| Tile {
            first: t * height,
            rows: height.min(self.rows - t * height),
            width: items.len() / self.per_row,
            items,
        })
    }
}

/// Rows of `rows` once the last tile of `height` is filled up.
fn filled(rows: usize, height: usize) -> usize {
    let last = rows % height;
    rows - last + WIDTHS.into_iter().find(|&width| width >= last).unwrap_or(height)
}

impl Input {
    /// Computes `from` and keeps it in `forms`. A quantized row is whole runs.
    pub(super) fn fill(&mut self, cpu: &Cpu, from: &dyn Rows, forms: Forms) {
        let (rows, k) = (from.count(), from.width());
        let open = self.open((rows, k), forms);
        // Columns of a tile of small items share cache lines, so one thread has them all.
        let tile =
            if forms.has(Form::Paired) || forms.has(Form::Transposed) { forms.height } else { 1 };
        spread(cpu, open.all.div_ceil(tile), rows * k, &|part| {
            for row in part * tile..((part + 1) * tile).min(open.all) {
                // SAFETY: a part has its rows to itself.
                unsafe {
                    let x = if row < rows { from.compute(row) } else { &[] };
                    open.put(row, 0..k, x);
                }
            }
        });
    }

    /// Makes room for `rows` rows of `k` elements, to be put there.
    pub(super) fn open(&mut self, (rows, k): (usize, usize), forms: Forms) -> Opened<'_> {
        (self.forms, self.rows, self.k) = (forms, rows, k);
        let (all, pairs) = (filled(rows, forms.height), k.div_ceil(2));
        let items = |form: Form, each: usize| if forms.has(form) { all * each } else { 0 };
        self.quantized.resize(items(Form::Quantized, k / RUN), Quantized::ZERO);
        self.paired.resize(items(Form::Paired, pairs), 0);
        self.transposed.resize(items(Form::Transposed, 2 * pairs), 0.0);
        Opened {
            all,
            quantized: Columns::new(&mut self.quantized, all, forms.height),
            paired: Columns::new(&mut self.paired, all, forms.height),
            transposed: Columns::new(&mut self.transposed, all, forms.height),
        }
    }

    fn tiles<'a, T>(&self, items: &'a [T], per_row: usize) -> Tiles<'a, T> {
        Tiles { items, rows: self.rows, per_row, height: self.forms.height }
    }

    /// The quantized form.
    pub(super) fn quantized(&self) -> Tiles<'_, Quantized> {
        self.tiles(&self.quantized, self.k / RUN)
    }

    /// Pairs. The last one of an odd `k` is filled up with a zero.
    pub(super) fn paired(&self) -> Tiles<'_, u32> {
        self.tiles(&self.paired, self.k.div_ceil(2))
    }

    /// The transposed form. An odd `k` is filled up with a zero.
    pub(super) fn transposed(&self) -> Tiles<'_, f32> {
        self.tiles(&self.transposed, self.k.next_multiple_of(2))
    }
}

/// An input while it is written.
pub(super) struct Opened<'a> {
    /// Rows, those that fill the last tile included.
    pub(super) all: usize,
    quantized: Columns<'a, Quantized>,
    paired: Columns<'a, u32>,
    transposed: Columns<'a, f32>,
}

impl Opened<'_> {
    /// Puts `x` into elements `at` of row `row`; nothing, of a row that only fills a tile. A range begins
    /// where a run does.
    ///
    /// # Safety
    /// Nobody else puts anything there, meanwhile.
    pub(super) unsafe fn put(&self, row: usize, at: Range<usize>, x: &[f32]) {
        let pairs = at.start / 2..at.end.div_ceil(2);
        // SAFETY: as the caller promises.
        unsafe {
            quantize_row(x, self.quantized.of(row, at.start / RUN..at.end / RUN));
            let items = self.paired.of(row, pairs.clone());
            items.zip(pairs_of(x)).for_each(|(item, pair)| *item = pair);
            let values = x.iter().copied().chain(std::iter::repeat(0.0));
            let items = self.transposed.of(row, 2 * pairs.start..2 * pairs.end);
            items.zip(values).for_each(|(item, value)| *item = value);
        }
    }
}

/// Tiles while their rows, which are columns of them, are written.
struct Columns<'a, T> {
    items: Disjoint<'a, T>,
    all: usize,
    per_row: usize,
    /// Rows of a full tile.
    height: usize,
}

impl<'a, T> Columns<'a, T> {
    fn new(items: &'a mut [T], all: usize, height: usize) -> Columns<'a, T> {
        let per_row = items.len().checked_div(all).unwrap_or(0);
        Columns { items: Disjoint::new(items), all, per_row, height }
    }

    /// Some items of row `row`, none where the form is not kept.
    ///
    /// # Safety
    /// Nobody else has these items.
    unsafe fn of(&self, row: usize, items: Range<usize>) -> impl Iterator<Item = &mut T> {
        let first = row - row % self.height;
        let width = self.height.min(self.all - first);
        let at = move |item| first * self.per_row + item * width + (row - first);
        let items = if self.per_row == 0 { 0..0 } else { items };
        // SAFETY: these are the caller's.
        items.map(move |item| unsafe { &mut self.items.slice(at(item)..at(item) + 1)[0] })
    }
}

/// Pairs of neighbours of a row, rounded to `bf16`; zeros behind them.
fn pairs_of(x: &[f32]) -> impl Iterator<Item = u32> {
    let pairs = x.chunks(2).map(|pair| {
        let second = pair.get(1).map_or(0, |&second| bf16_from_f32(second));
        u32::from(bf16_from_f32(pair[0])) | u32::from(second) << 16
    });
    pairs.chain(std::iter::repeat(0))
}

/// Quantizes a row, run after run, with the widest instructions the machine has for it; one that
/// only fills a tile is empty.
fn quantize_row<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    if x.is_empty() {
        return items.for_each(|item| *item = Quantized::ZERO);
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { quantize_runs_avx2(x, items) };
    }
    quantize_runs(x, items);
}

fn quantize_runs<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    items.zip(x.as_chunks::<RUN>().0).for_each(|(item, x)| *item = Quantized::new(x));
}

/// [`quantize_runs`] for AVX2: the same operations, eight at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_runs_avx2<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    // A loop: what an iterator's own methods call is compiled for any processor.
    for (item, x) in items.zip(x.as_chunks::<RUN>().0) {
        *item = avx2::quantize(x);
    }
}
