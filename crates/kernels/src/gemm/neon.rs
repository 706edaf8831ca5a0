//! The inner loops for NEON: a register holds one element, or one quad of bytes, of a quarter of the
//! panel's rows. Same order of operations, and so the same bits, as for AVX-512.
//!
//! Quads of bytes are multiplied by the dot-product instructions of processors that have them, and
//! by widening multiplication on those before. Integers are exact, so that both give the same.

use super::cpu::{SUMS, Stored};
use super::input::Quantized;
use super::panel::{LANES, LINE};
use crate::format::{Format, Min};
use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

/// Registers of a panel's row sums.
const QUARTERS: usize = 4;
/// Rows of a panel that a register covers.
const QUARTER: usize = LANES / QUARTERS;

/// How quads of bytes are multiplied.
pub(super) trait Multiply {
    /// Adds the dot products of 4 quads of bytes of 4 rows with those of `q`, of which none is −128.
    ///
    /// # Safety
    /// The CPU has NEON and what the implementation names.
    unsafe fn add(sums: int32x4_t, quads: &[int8x16_t; 4], q: int8x16_t) -> int32x4_t;
}

/// By the dot-product instructions (FEAT_DotProd).
pub(super) struct Dot;

impl Multiply for Dot {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(mut sums: int32x4_t, quads: &[int8x16_t; 4], q: int8x16_t) -> int32x4_t {
        let [a, b, c, d] = *quads;
        // SAFETY: the caller promises the instruction, which reads and writes registers alone. The
        // compiler's own name for it is not stable.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {a:v}.16b, {q:v}.4b[0]",
                "sdot {sums:v}.4s, {b:v}.16b, {q:v}.4b[1]",
                "sdot {sums:v}.4s, {c:v}.16b, {q:v}.4b[2]",
                "sdot {sums:v}.4s, {d:v}.16b, {q:v}.4b[3]",
                sums = inout(vreg) sums,
                a = in(vreg) a,
                b = in(vreg) b,
                c = in(vreg) c,
                d = in(vreg) d,
                q = in(vreg) q,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }
}

/// By multiplication into 16 bits, which every processor with NEON has.
pub(super) struct Widen;

impl Multiply for Widen {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add(sums: int32x4_t, quads: &[int8x16_t; 4], q: int8x16_t) -> int32x4_t {
        let q = vreinterpretq_s32_s8(q);
        let q = [
            vdupq_laneq_s32::<0>(q),
            vdupq_laneq_s32::<1>(q),
            vdupq_laneq_s32::<2>(q),
            vdupq_laneq_s32::<3>(q),
        ]
        .map(|q| vreinterpretq_s8_s32(q));
        // Of the first two rows and of the last two, each in two parts.
        let (mut low, mut high) = (vdupq_n_s32(0), vdupq_n_s32(0));
        for i in [0, 2] {
            // Two products, 127 · 128 each at most, fit 16 bits together.
            let l = vmull_s8(vget_low_s8(quads[i]), vget_low_s8(q[i]));
            let h = vmull_high_s8(quads[i], q[i]);
            low = vpadalq_s16(low, vmlal_s8(l, vget_low_s8(quads[i + 1]), vget_low_s8(q[i + 1])));
            high = vpadalq_s16(high, vmlal_high_s8(h, quads[i + 1], q[i + 1]));
        }
        vaddq_s32(sums, vpaddq_s32(low, high))
    }
}

/// Block formats. `x` is a tile of quantized input.
///
/// # Safety
/// The CPU has NEON and what `M` names.
#[target_feature(enable = "neon")]
pub(super) unsafe fn blocks<T: Stored, M: Multiply, const ROWS: usize>(
    panel: &[u8],
    x: &[Quantized],
    out: &mut [[f32; LANES]],
) {
    let coding = T::CODING;
    let units = x.len() / ROWS / coding.span;
    assert_eq!(x.len(), units * coding.span * ROWS, "whole blocks of a tile");
    assert!(panel.len() >= units * coding.unit_bytes(), "a panel as long as the input");
    let mut sums = [[vdupq_n_f32(0.0); QUARTERS]; ROWS];
    let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
    for _ in 0..units {
        // SAFETY: the asserts above: `at` has a unit, `x` has `span` runs of a tile.
        unsafe {
            let last = coding.header_bytes() - 2 * LANES;
            let header: [[float32x4_t; 2]; QUARTERS] = std::array::from_fn(|quarter| {
                let at = at.add(2 * QUARTER * quarter);
                [halves(at), halves(at.add(last))]
            });
            at = at.add(coding.header_bytes());
            for _ in 0..coding.span {
                for (quarter, &header) in header.iter().enumerate() {
                    run::<T, M, ROWS>(at, quarter, header, x, &mut sums);
                }
                at = at.add(coding.run_bytes());
                x = x.add(ROWS);
            }
        }
    }
    store(&sums, 0, out);
}

/// Adds the products of one run with a quarter of the panel's rows.
///
/// # Safety
/// The CPU has what `M` names; `at` has a run's bytes, `x` has `ROWS` items.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn run<T: Stored, M: Multiply, const ROWS: usize>(
    at: *const u8,
    quarter: usize,
    header: [float32x4_t; 2],
    x: *const Quantized,
    sums: &mut [[float32x4_t; QUARTERS]; ROWS],
) {
    let coding = T::CODING;
    // SAFETY: the factors follow the codes within the run.
    let factor = |array: usize, g: usize| unsafe {
        if coding.span == 1 {
            return header[array];
        }
        let array_at = coding.code_bytes() + (array * coding.groups + g) * LANES;
        vmulq_f32(header[array], integers(at.add(array_at + QUARTER * quarter)))
    };
    // Without a second group, or without mins, the compiler drops what is not used.
    let scale: [float32x4_t; 2] = std::array::from_fn(|g| factor(0, g.min(coding.groups - 1)));
    let min: [float32x4_t; 2] =
        std::array::from_fn(|g| factor(coding.factors() - 1, g.min(coding.groups - 1)));
    // SAFETY: the codes open the run; each line's quarter is that of the rows.
    let quads = unsafe { unpack::<T>(at.add(4 * QUARTER * quarter)) };
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the tile has `ROWS` items for this run.
        let x = unsafe { &*x.add(r) };
        let per_group = 2 / coding.groups;
        let with = |g: usize, total: float32x4_t| {
            let sum = coding.sum(g);
            // SAFETY: as the caller promises.
            let dot = unsafe { dot::<T, M>(&quads, x, g * per_group, per_group, x.neg_sums[sum]) };
            let scaled = vmulq_n_f32(vcvtq_f32_s32(dot), x.scale);
            let total = vfmaq_f32(total, scaled, scale[g]);
            match coding.min {
                Min::None => total,
                Min::PerGroup => vfmaq_n_f32(total, min[g], x.scaled_sums[sum]),
            }
        };
        // Not a loop, see the same place for AVX-512.
        let total = sums[quarter];
        sums[quarter] = if coding.groups == 1 { with(0, total) } else { with(1, with(0, total)) };
    }
}

/// `Σ (code − zero) · q` over `count` halves of the run from `first` on; `neg_sum` is `−Σ q` of them.
///
/// # Safety
/// The CPU has what `M` names.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dot<T: Stored, M: Multiply>(
    quads: &[int8x16_t; 8],
    x: &Quantized,
    first: usize,
    count: usize,
    neg_sum: i32,
) -> int32x4_t {
    let coding = T::CODING;
    // Codes of 8 bits have lost their zero already.
    let zero = if coding.bits == 8 { 0 } else { i32::from(coding.zero) };
    let mut total = vdupq_n_s32(neg_sum * zero);
    let halves = quads.as_chunks::<4>().0.iter().zip(x.q.as_chunks::<16>().0);
    for (quads, q) in halves.skip(first).take(count) {
        // SAFETY: `q` is 16 bytes; the CPU is as the caller promises.
        total = unsafe { M::add(total, quads, vld1q_s8(q.as_ptr())) };
    }
    total
}

/// 4 halves, widened.
///
/// # Safety
/// `at` has 8 bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn halves(at: *const u8) -> float32x4_t {
    // SAFETY: as the caller promises.
    let halves = unsafe { vld1_u8(at) };
    let wide: float32x4_t;
    // SAFETY: NEON has the instruction, which reads and writes registers alone. The compiler's own
    // name for it takes a type that is not stable.
    unsafe {
        asm!(
            "fcvtl {wide:v}.4s, {halves:v}.4h",
            wide = lateout(vreg) wide,
            halves = in(vreg) halves,
            // A half that is a signalling NaN raises the status flag of invalid operations.
            options(pure, nomem, nostack),
        );
    }
    wide
}

/// 4 signed bytes as floats.
///
/// # Safety
/// `at` has 4 bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn integers(at: *const u8) -> float32x4_t {
    // SAFETY: as the caller promises.
    let word = unsafe { at.cast::<u32>().read_unaligned() };
    let bytes = vreinterpret_s8_u32(vdup_n_u32(word));
    vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
}

/// The 8 quads of a run for 4 rows, one byte a code. Codes of 8 bits are less 128, which is their
/// zero: the others fit signed bytes as they are.
///
/// # Safety
/// `at` is where the rows' words start in the first line of a run's codes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn unpack<T: Stored>(at: *const u8) -> [int8x16_t; 8] {
    let mut quads = [vdupq_n_u8(0); 8];
    // SAFETY: a plane of `P` bits starts after the lines of those before it, which are as many
    // as they have bits.
    unsafe {
        plane::<T, 8>(at, 0, &mut quads);
        plane::<T, 4>(at, T::CODING.bits & 8, &mut quads);
        plane::<T, 2>(at, T::CODING.bits & 12, &mut quads);
        plane::<T, 1>(at, T::CODING.bits & 14, &mut quads);
    }
    let less = vdupq_n_u8(if T::CODING.bits == 8 { 128 } else { 0 });
    quads.map(|quad| vreinterpretq_s8_u8(veorq_u8(quad, less)))
}

/// Adds the plane of `P` bits, if the format has it, at bit `low` of the codes.
///
/// # Safety
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "neon")]
unsafe fn plane<T: Stored, const P: usize>(
    codes: *const u8,
    low: usize,
    quads: &mut [uint8x16_t; 8],
) {
    if T::CODING.bits & P == 0 {
        return;
    }
    let mask = vdupq_n_u8((((1u32 << P) - 1) << low) as u8);
    for (i, quad) in quads.iter_mut().enumerate() {
        // SAFETY: the plane's line `i % P` lies within the codes.
        let line = unsafe { vld1q_u8(codes.add((low + i % P) * LINE)) };
        // To the left, or to the right when negative.
        let shift = low as i8 - (P * (i / P)) as i8;
        let placed = vshlq_u8(line, vdupq_n_s8(shift));
        *quad = vorrq_u8(*quad, vandq_u8(placed, mask));
    }
}

/// Plain floats. `x` is a tile of transposed input.
///
/// # Safety
/// The CPU has NEON.
#[target_feature(enable = "neon")]
pub(super) fn floats<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    // The sums of a full tile with the whole panel are as many as there are registers: it takes two
    // passes.
    if ROWS <= 4 {
        floats_from::<T, ROWS, QUARTERS>(panel, x, 0, out);
    } else {
        for first in [0, QUARTERS / 2] {
            floats_from::<T, ROWS, { QUARTERS / 2 }>(panel, x, first, out);
        }
    }
}

/// Plain floats of `MANY` quarters of the panel's rows, from quarter `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn floats_from<T: Stored, const ROWS: usize, const MANY: usize>(
    panel: &[u8],
    x: &[f32],
    first: usize,
    out: &mut [[f32; LANES]],
) {
    let unit = 2 * LANES * T::FORMAT.block_bytes();
    let units = x.len() / (2 * ROWS);
    assert_eq!(x.len(), units * 2 * ROWS, "whole pairs of a tile");
    assert!(panel.len() >= units * unit, "a panel as long as the input");
    assert!(first + MANY <= QUARTERS, "quarters of a panel");
    let mut sums = [[vdupq_n_f32(0.0); MANY]; ROWS];
    let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
    for _ in 0..units {
        // SAFETY: the asserts above: `at` has a unit, `x` has a pair of each row of a tile.
        unsafe {
            let pairs: [[float32x4_t; 2]; MANY] =
                std::array::from_fn(|quarter| pair::<T>(at, first + quarter));
            for element in 0..2 {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (sum, weights) in sums.iter_mut().zip(&pairs) {
                        *sum = vfmaq_n_f32(*sum, weights[element], *x.add(r));
                    }
                }
                x = x.add(ROWS);
            }
            at = at.add(unit);
        }
    }
    store(&sums, first, out);
}

/// The two elements of each of 4 rows in one unit.
///
/// # Safety
/// `at` has a unit's bytes; `quarter` is below 4.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn pair<T: Stored>(at: *const u8, quarter: usize) -> [float32x4_t; 2] {
    // SAFETY: a unit is 128 bytes of F32, 64 of the 16-bit formats.
    unsafe {
        let words = at.add(4 * QUARTER * quarter);
        match T::FORMAT {
            Format::F32 => [vld1q_f32(words.cast()), vld1q_f32(words.add(LINE).cast())],
            Format::F16 => {
                let at = at.add(2 * QUARTER * quarter);
                [halves(at), halves(at.add(2 * LANES))]
            }
            _ => {
                let both = vreinterpretq_u32_u8(vld1q_u8(words));
                [
                    vreinterpretq_f32_u32(vshlq_n_u32::<16>(both)),
                    vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff_0000))),
                ]
            }
        }
    }
}

/// See [`Isa::products`](super::cpu::Isa::products). An accumulator has a quarter of the lanes here, and
/// is given four quads at a time.
///
/// # Safety
/// The CPU has NEON and what `M` names.
#[target_feature(enable = "neon")]
pub(super) unsafe fn products<M: Multiply>(rounds: usize) -> i32 {
    let (a, b) = (vdupq_n_s8(black_box(1)), vdupq_n_s8(black_box(2)));
    let mut sums = [vdupq_n_s32(0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // SAFETY: as the caller promises.
            *sum = unsafe { M::add(*sum, &[a; 4], unknown(b)) };
        }
    }
    sums.into_iter().map(|sum| vaddvq_s32(sum)).sum()
}

/// `bytes`, of which the compiler then knows nothing: it cannot multiply once for many sums.
#[inline]
#[target_feature(enable = "neon")]
fn unknown(mut bytes: int8x16_t) -> int8x16_t {
    // SAFETY: a comment does nothing.
    unsafe {
        asm!("/* {0:v} */", inout(vreg) bytes, options(nomem, nostack, preserves_flags));
    }
    bytes
}

/// Writes the sums of `MANY` quarters of the panel's rows, from quarter `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn store<const ROWS: usize, const MANY: usize>(
    sums: &[[float32x4_t; MANY]; ROWS],
    first: usize,
    out: &mut [[f32; LANES]],
) {
    assert_eq!(out.len(), ROWS, "the rows of the tile");
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out.as_chunks_mut::<QUARTER>().0[first..].iter_mut().zip(sums) {
            // SAFETY: `out` is 4 floats.
            unsafe { vst1q_f32(out.as_mut_ptr(), *sum) };
        }
    }
}
