//! The packed layout: panels of 16 rows, so that each lane of a vector owns one output.
//!
//! A panel holds its 16 rows (the last panel of a weight is filled up with zeros) in ascending
//! `k`, one *unit* after the other, and starts on a cache line.
//!
//! - Plain floats: a unit is 2 elements of each row; an odd `k` is filled up with zeros. F32 and
//!   F16 store element 0 of the 16 rows, then element 1. BF16 stores the two elements of each
//!   row as neighbours, so that one 32-bit lane widens to either with one instruction.
//! - Block formats: a unit is the stored block ([`Coding::span`] runs of 32 elements). It opens
//!   with the half-precision scale factors of the 16 rows, then the min factors if there are any.
//!   Then for each run: the codes and, if the format has integer factors, for each group the 16
//!   scales (`i8`), for each group the 16 mins (`i8`).
//!
//! Codes of a run (16 rows × 32 elements) are cut into *planes*: one of 8, 4, 2 or 1 bits for
//! each binary digit of the width (5 bits: a plane of 4 with the low bits, a plane of 1). Four
//! consecutive elements of a row are a *quad*, one 32-bit word; a plane of `p` bits is `p` lines
//! of 16 such words, and quad `i` of 8 lies in line `i % p`, shifted by `p · (i / p)` bits.

use crate::format::blocks::Block;
use crate::format::{Coding, Format, Min, half_to_f32};
use device::{Cpu, Here, Replicas};

/// Rows of a panel.
pub(super) const LANES: usize = 16;
/// Bytes of one line of a plane.
pub(super) const LINE: usize = 4 * LANES;
/// Elements of a run: what one scale of the quantized input covers.
pub(super) const RUN: usize = 32;
/// The possible planes, low bits first.
const PLANES: [usize; 4] = [8, 4, 2, 1];

impl Coding {
    /// Arrays of factors: scales, and mins if there are any.
    pub(super) const fn factors(self) -> usize {
        match self.min {
            Min::None => 1,
            Min::PerGroup => 2,
        }
    }

    /// Bytes of the half-precision factors that open a unit.
    pub(super) const fn header_bytes(self) -> usize {
        2 * LANES * self.factors()
    }

    /// Bytes of one run's codes.
    pub(super) const fn code_bytes(self) -> usize {
        self.bits * LINE
    }

    /// Bytes of one run: codes and integer factors.
    pub(super) const fn run_bytes(self) -> usize {
        let factors = if self.span > 1 { LANES * self.groups * self.factors() } else { 0 };
        self.code_bytes() + factors
    }

    /// Which of the sums of a run of input group `g` takes, see [`Quantized`](super::input::Quantized).
    pub(super) const fn sum(self, g: usize) -> usize {
        if self.groups == 1 { 0 } else { 1 + g }
    }

    /// Bytes of one unit.
    pub(super) const fn unit_bytes(self) -> usize {
        self.header_bytes() + self.span * self.run_bytes()
    }
}

/// Bytes of the packed panels of a row of `k` elements, whole cache lines.
fn panel_bytes(format: Format, k: usize) -> usize {
    let bytes = match format.coding() {
        Some(coding) => k / format.block() * coding.unit_bytes(),
        None => k.next_multiple_of(2) * LANES * format.block_bytes(),
    };
    bytes.next_multiple_of(64)
}

/// The panels of one weight, on each memory node.
pub(super) struct Panels {
    memory: Replicas,
    count: usize,
    stride: usize,
}

/// A copy of them: that of the node which a thread computes on.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    bytes: &'a [u8],
    stride: usize,
}

impl Panels {
    /// Packs `n` rows of `k` elements; `row(i)` is the stored row of output `i`.
    pub(super) fn pack<'a>(
        cpu: &Cpu,
        format: Format,
        n: usize,
        k: usize,
        row: &(dyn Fn(usize) -> &'a [u8] + Sync),
    ) -> Panels {
        /// Bytes that are worth a thread's while.
        const CHUNK: usize = 1 << 16;
        let (count, stride) = (n.div_ceil(LANES), panel_bytes(format, k));
        let per_part = CHUNK.div_ceil(stride.max(1));
        // Zeroed by the system page by page, as the threads reach them.
        let memory = cpu.replicated(count * stride, (per_part * stride).max(1), &|part, chunk| {
            for (p, panel) in chunk.chunks_exact_mut(stride).enumerate() {
                let first = (part * per_part + p) * LANES;
                for lane in 0..LANES.min(n - first) {
                    match format.coding() {
                        Some(coding) => pack_blocks(format, coding, row(first + lane), lane, panel),
                        None => pack_floats(format, row(first + lane), lane, panel),
                    }
                }
            }
        });
        Panels { memory, count, stride }
    }

    /// Bytes of one panel.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of all panels, which each memory node has.
    pub(super) fn bytes(&self) -> usize {
        self.count * self.stride
    }

    /// Where they lie.
    pub(super) fn memory(&self) -> &Replicas {
        &self.memory
    }

    /// The copy on the caller's node.
    pub(super) fn own(&self, here: Here) -> Own<'_> {
        Own { bytes: self.memory.on(here), stride: self.stride }
    }
}

impl<'a> Own<'a> {
    /// Panel `p`: rows `16·p … 16·p + 15`.
    pub(super) fn panel(self, p: usize) -> &'a [u8] {
        &self.bytes[p * self.stride..][..self.stride]
    }

    /// Expands row `i`.
    pub(super) fn row(self, format: Format, i: usize, out: &mut [f32]) {
        let (panel, lane) = (self.panel(i / LANES), i % LANES);
        match format.coding() {
            Some(coding) => unpack_blocks(format, coding, panel, lane, out),
            None => unpack_floats(format, panel, lane, out),
        }
    }
}

/// Bytes of what one lane holds of a line of plain floats: one element, or two of BF16.
fn item_bytes(format: Format) -> usize {
    match format {
        Format::F16 => 2,
        _ => 4,
    }
}

fn pack_floats(format: Format, row: &[u8], lane: usize, panel: &mut [u8]) {
    let size = item_bytes(format);
    let lines = panel.chunks_exact_mut(size * LANES);
    for (item, line) in row.chunks(size).zip(lines) {
        // The last item is half filled when `k` is odd.
        line[lane * size..][..item.len()].copy_from_slice(item);
    }
}

fn unpack_floats(format: Format, panel: &[u8], lane: usize, out: &mut [f32]) {
    let (size, element) = (item_bytes(format), format.block_bytes());
    let mut items = [0; 256];
    let mut lines = panel.chunks_exact(size * LANES);
    for values in out.chunks_mut(items.len() / element) {
        for (item, line) in items.chunks_exact_mut(size).zip(&mut lines) {
            item.copy_from_slice(&line[lane * size..(lane + 1) * size]);
        }
        format.dequantize(&items[..values.len() * element], values);
    }
}

fn pack_blocks(format: Format, coding: Coding, row: &[u8], lane: usize, panel: &mut [u8]) {
    let mut block = Block::new();
    let units = panel.chunks_exact_mut(coding.unit_bytes());
    for (bytes, unit) in row.chunks_exact(format.block_bytes()).zip(units) {
        block.read(format, bytes);
        let (header, runs) = unit.split_at_mut(coding.header_bytes());
        for (factors, half) in header.chunks_exact_mut(2 * LANES).zip([block.d, block.m]) {
            factors[2 * lane..2 * lane + 2].copy_from_slice(&half.to_le_bytes());
        }
        for (r, run) in runs.chunks_exact_mut(coding.run_bytes()).enumerate() {
            let (codes, factors) = run.split_at_mut(coding.code_bytes());
            pack_codes(coding.bits, &block.codes[r * RUN..], lane, codes);
            let groups = r * coding.groups..(r + 1) * coding.groups;
            let values = block.scale[groups.clone()].iter().chain(&block.min[groups]);
            // No room, and so no iteration, for formats without integer factors.
            for (factors, value) in factors.chunks_exact_mut(LANES).zip(values) {
                factors[lane] = *value as u8;
            }
        }
    }
}

/// A byte in each byte of a word.
const fn bytes_of(byte: usize) -> u32 {
    byte as u32 * 0x0101_0101
}

/// Packs one row's 32 codes of `bits` bits into the run's planes.
fn pack_codes(bits: usize, codes: &[u8], lane: usize, planes: &mut [u8]) {
    let quads: [u32; 8] = std::array::from_fn(|i| {
        u32::from_le_bytes([codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3]])
    });
    let (mut lines, mut low) = (planes.chunks_exact_mut(LINE), 0);
    for p in PLANES.into_iter().filter(|p| bits & p != 0) {
        let mask = bytes_of((1 << p) - 1);
        for (z, line) in lines.by_ref().take(p).enumerate() {
            let fields = (0..8 / p).map(|f| (quads[z + p * f] >> low & mask) << (p * f));
            let word = fields.fold(0, |word, field| word | field);
            line[4 * lane..4 * lane + 4].copy_from_slice(&word.to_le_bytes());
        }
        low += p;
    }
}

/// The inverse of [`pack_codes`].
pub(super) fn unpack_codes(bits: usize, planes: &[u8], lane: usize) -> [u8; RUN] {
    let (mut quads, mut first, mut low) = ([0u32; 8], 0, 0);
    for p in PLANES.into_iter().filter(|p| bits & p != 0) {
        let mask = bytes_of((1 << p) - 1);
        for (i, quad) in quads.iter_mut().enumerate() {
            let at = (first + i % p) * LINE + 4 * lane;
            let word = u32::from_le_bytes(planes[at..at + 4].try_into().expect("4 bytes"));
            *quad |= (word >> (p * (i / p)) & mask) << low;
        }
        first += p;
        low += p;
    }
    let mut codes = [0; RUN];
    for (bytes, quad) in codes.as_chunks_mut::<4>().0.iter_mut().zip(quads) {
        *bytes = quad.to_le_bytes();
    }
    codes
}

fn unpack_blocks(format: Format, coding: Coding, panel: &[u8], lane: usize, out: &mut [f32]) {
    let mut block = Block::new();
    let units = panel.chunks_exact(coding.unit_bytes());
    for (unit, values) in units.zip(out.chunks_exact_mut(format.block())) {
        let (header, runs) = unit.split_at(coding.header_bytes());
        block.d = half_at(header, lane);
        if coding.min == Min::PerGroup {
            block.m = half_at(header, LANES + lane);
        }
        for (r, run) in runs.chunks_exact(coding.run_bytes()).enumerate() {
            let (codes, factors) = run.split_at(coding.code_bytes());
            let codes = unpack_codes(coding.bits, codes, lane);
            block.codes[r * RUN..(r + 1) * RUN].copy_from_slice(&codes);
            let groups = r * coding.groups..(r + 1) * coding.groups;
            let into = block.scale[groups.clone()].iter_mut().chain(&mut block.min[groups]);
            for (factors, value) in factors.chunks_exact(LANES).zip(into) {
                *value = factors[lane] as i8;
            }
        }
        block.expand(coding, values);
    }
}

/// Bits of the `i`th half of `bytes`.
fn half_at(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// The factors of the 16 rows for one group of a run: what multiplies `code − zero`, and what is
/// added. `unit` is the unit the run belongs to, `run` the run's own bytes.
pub(super) fn group_factors(
    coding: Coding,
    unit: &[u8],
    run: &[u8],
    group: usize,
) -> ([f32; LANES], [f32; LANES]) {
    let factor = |array: usize, lane: usize| {
        let half = half_to_f32(half_at(unit, array * LANES + lane));
        let at = coding.code_bytes() + (array * coding.groups + group) * LANES + lane;
        if coding.span > 1 { half * f32::from(run[at] as i8) } else { half }
    };
    let scale = std::array::from_fn(|lane| factor(0, lane));
    let min = match coding.min {
        Min::None => [0.0; LANES],
        Min::PerGroup => std::array::from_fn(|lane| factor(1, lane)),
    };
    (scale, min)
}
