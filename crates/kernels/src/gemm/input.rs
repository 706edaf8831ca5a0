//! What becomes of `x`: for block formats it is quantized, for plain floats transposed, both into
//! *tiles* of rows so that an inner loop reads one stream.
//!
//! A tile is up to [`TILE`] rows; its width is a power of two (the last tile is filled up with
//! zero rows). Item `j` (a run of 32 elements, or one element) of row `r` of a tile lies at
//! `j · width + r`.

use super::panel::RUN;
use crate::format::{byte_scale, nearest_byte};
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Rows of a full tile.
pub(super) const TILE: usize = 8;

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
    const ZERO: Quantized =
        Quantized { q: [0; RUN], scale: 0.0, neg_sums: [0; 3], scaled_sums: [0.0; 3] };

    /// Quantizes 32 elements. A NaN or infinity among them makes the scale NaN or infinite, and
    /// so every product with them.
    #[inline(always)] // so that it is compiled for the instruction set of its caller
    fn new(x: &[f32; RUN]) -> Quantized {
        let scale = byte_scale(x);
        if scale < f32::MIN_POSITIVE {
            return Quantized::ZERO;
        }
        let inverse = 1.0 / scale;
        let q: [i8; RUN] = std::array::from_fn(|i| nearest_byte(x[i] * inverse));
        let sum = |half: usize| -> i32 { q[half..half + 16].iter().map(|&q| i32::from(q)).sum() };
        let (first, last) = (sum(0), sum(16));
        let sums = [first + last, first, last];
        Quantized {
            q,
            scale,
            neg_sums: sums.map(|s| -s),
            scaled_sums: sums.map(|s| scale * s as f32),
        }
    }
}

/// Both forms of the input, reused from launch to launch.
#[derive(Default)]
pub(super) struct Input {
    quantized: Vec<Quantized>,
    transposed: Vec<f32>,
}

/// One form of the input.
pub(super) struct Tiles<'a, T> {
    items: &'a [T],
    rows: usize,
    /// Items of one row.
    per_row: usize,
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
        let tiles = self.items.chunks(TILE * self.per_row).enumerate();
        tiles.map(move |(t, items)| Tile {
            first: t * TILE,
            rows: TILE.min(self.rows - t * TILE),
            width: items.len() / self.per_row,
            items,
        })
    }
}

/// Rows of `rows` once the last tile is filled up.
fn filled(rows: usize) -> usize {
    let last = rows % TILE;
    rows - last + if last == 0 { 0 } else { last.next_power_of_two() }
}

impl Input {
    /// Fills the quantized form; `k` is whole runs.
    pub(super) fn quantize(&mut self, cpu: &Cpu, x: &[f32], rows: usize, k: usize) {
        let (per_row, all) = (k / RUN, filled(rows));
        self.quantized.resize(all * per_row, Quantized::ZERO);
        let items = Disjoint::new(&mut self.quantized);
        spread(cpu, all, rows * k, &|row| {
            let first = row - row % TILE;
            let width = TILE.min(all - first);
            // SAFETY: an item belongs to one row, and a part is one row.
            let item = |j| unsafe { items.slice(at(first * per_row + j * width + row % TILE)) };
            let items = (0..per_row).map(|j| &mut item(j)[0]);
            match x.get(row * k..(row + 1) * k) {
                Some(x) => quantize_row(x, items),
                None => items.for_each(|item| *item = Quantized::ZERO),
            }
        });
    }

    /// The quantized form, after [`Input::quantize`] with the same shape.
    pub(super) fn quantized(&self, rows: usize, k: usize) -> Tiles<'_, Quantized> {
        let per_row = k / RUN;
        Tiles { items: &self.quantized[..filled(rows) * per_row], rows, per_row }
    }

    /// Fills the transposed form. An odd `k` is filled up with a zero.
    pub(super) fn transpose(&mut self, cpu: &Cpu, x: &[f32], rows: usize, k: usize) {
        let per_row = k.next_multiple_of(2);
        self.transposed.resize(filled(rows) * per_row, 0.0);
        cpu.chunks(&mut self.transposed, TILE * per_row, &|t, tile| {
            transpose_tile(&x[t * TILE * k..], k, tile);
        });
    }

    /// The transposed form, after [`Input::transpose`] with the same shape.
    pub(super) fn transposed(&self, rows: usize, k: usize) -> Tiles<'_, f32> {
        let per_row = k.next_multiple_of(2);
        Tiles { items: &self.transposed[..filled(rows) * per_row], rows, per_row }
    }
}

/// The range of one element.
fn at(index: usize) -> Range<usize> {
    index..index + 1
}

/// Quantizes a row, run after run, with the widest instructions the machine has for it.
fn quantize_row<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { quantize_runs_avx2(x, items) };
    }
    quantize_runs(x, items);
}

#[inline(always)] // so that it is compiled for the instruction set of its caller
fn quantize_runs<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    items.zip(x.as_chunks::<RUN>().0).for_each(|(item, x)| *item = Quantized::new(x));
}

/// [`quantize_runs`], compiled for AVX2: the same operations, wider.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_runs_avx2<'a>(x: &[f32], items: impl Iterator<Item = &'a mut Quantized>) {
    quantize_runs(x, items);
}

/// Transposes the rows at the front of `x` into one tile.
fn transpose_tile(x: &[f32], k: usize, tile: &mut [f32]) {
    let width = tile.len() / k.next_multiple_of(2);
    tile.fill(0.0);
    for (r, row) in x.chunks_exact(k).take(width).enumerate() {
        for (item, value) in tile[r..].iter_mut().step_by(width).zip(row) {
            *item = *value;
        }
    }
}
