//! The inner loops for AVX-512 with VNNI: a vector holds one element, or one quad of bytes, of
//! the panel's 16 rows.

use super::cpu::{SUMS, Stored};
use super::input::Quantized;
use super::panel::{LANES, LINE};
use crate::format::{Format, Min};
use std::arch::x86_64::*;
use std::hint::black_box;

/// Cycles of the multiplying units that a run takes for one row: 8 integer products, 2 others.
const RUN_CYCLES: usize = 10;
/// The same for a pair of plain floats.
const PAIR_CYCLES: usize = 2;

/// Block formats. `x` is a tile of quantized input.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn blocks<T: Stored, A: Ahead, const ROWS: usize>(
    panel: &[u8],
    x: &[Quantized],
    out: &mut [[f32; LANES]],
) {
    let coding = T::CODING;
    let units = x.len() / ROWS / coding.span;
    assert_eq!(x.len(), units * coding.span * ROWS, "whole blocks of a tile");
    assert!(panel.len() >= units * coding.unit_bytes(), "a panel as long as the input");
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
    for _ in 0..units {
        // SAFETY: the asserts above: `at` has a unit, `x` has `span` runs of a tile.
        unsafe {
            let header = [halves(at), halves(at.add(coding.header_bytes() - 2 * LANES))];
            at = at.add(coding.header_bytes());
            for _ in 0..coding.span {
                run::<T, A, ROWS>(at, header, x, &mut sums);
                at = at.add(coding.run_bytes());
                x = x.add(ROWS);
            }
        }
    }
    store(&sums, out);
}

/// Adds the products of one run.
///
/// # Safety
/// `at` has a run's bytes, `x` has `ROWS` items.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn run<T: Stored, A: Ahead, const ROWS: usize>(
    at: *const u8,
    header: [__m512; 2],
    x: *const Quantized,
    sums: &mut [__m512; ROWS],
) {
    let coding = T::CODING;
    prefetch::<A>(at, coding.run_bytes(), ROWS * RUN_CYCLES);
    // SAFETY: the codes open the run, the factors follow them.
    let (quads, factors) = unsafe { (unpack::<T>(at), Factors::read::<T>(at, header)) };
    let zero_bits = _mm512_set1_epi32(coding.zero.trailing_zeros() as i32);
    // SAFETY: the tile has `ROWS` items for this run.
    let x: [&Quantized; ROWS] = std::array::from_fn(|r| unsafe { &*x.add(r) });
    let per_group = quads.len() / coding.groups;
    each_row!(2, g, {
        if g < coding.groups {
            let mut dots = [_mm512_setzero_si512(); ROWS];
            if coding.zero != 0 {
                each_row!(ROWS, r, {
                    let neg_sum = _mm512_set1_epi32(x[r].neg_sums[coding.sum(g)]);
                    dots[r] = _mm512_sllv_epi32(neg_sum, zero_bits);
                });
            }
            // Row after row for each quad, so that none waits for the product before it.
            each_row!(8, i, {
                if i / per_group == g {
                    each_row!(ROWS, r, {
                        let q = x[r].q.as_chunks::<4>().0[i].map(|q| q as u8);
                        let q = _mm512_set1_epi32(i32::from_le_bytes(q));
                        dots[r] = _mm512_dpbusd_epi32(dots[r], quads[i], q);
                    });
                }
            });
            each_row!(ROWS, r, {
                sums[r] = factors.add::<T>(g, dots[r], x[r], sums[r]);
            });
        }
    });
}

/// What the codes of a run are multiplied by, and what is added to them, by group.
pub(super) struct Factors {
    scale: [__m512; 2],
    min: [__m512; 2],
}

impl Factors {
    /// # Safety
    /// `at` has a run's bytes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read<T: Stored>(at: *const u8, header: [__m512; 2]) -> Factors {
        let coding = T::CODING;
        // SAFETY: the factors follow the codes within the run.
        let factor = |array: usize, g: usize| unsafe {
            if coding.span == 1 {
                return header[array];
            }
            let at = at.add(coding.code_bytes() + (array * coding.groups + g) * LANES);
            let integers = _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()));
            _mm512_mul_ps(header[array], _mm512_cvtepi32_ps(integers))
        };
        // Without a second group, or without mins, the compiler drops what is not used.
        let of = |array| std::array::from_fn(|g| factor(array, g.min(coding.groups - 1)));
        Factors { scale: of(0), min: of(coding.factors() - 1) }
    }

    /// `total` with the products of group `g`, whose codes have the dot products `dot` with `x`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn add<T: Stored>(
        &self,
        g: usize,
        dot: __m512i,
        x: &Quantized,
        total: __m512,
    ) -> __m512 {
        let coding = T::CODING;
        let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(x.scale));
        let total = _mm512_fmadd_ps(scaled, self.scale[g], total);
        match coding.min {
            Min::None => total,
            Min::PerGroup => {
                let sum = _mm512_set1_ps(x.scaled_sums[coding.sum(g)]);
                _mm512_fmadd_ps(self.min[g], sum, total)
            }
        }
    }
}

/// When weights are asked for before they are used, and how far ahead. Loops are compiled for either kind
/// of machine; what they compute is the same.
pub(super) trait Ahead {
    /// Bytes between use and request.
    const BYTES: usize;
    /// Bytes that arrive in a cycle unasked: a loop that takes more of them waits for the hardware's own
    /// prefetching, which does better undisturbed.
    const ARRIVE: usize;

    /// Asks for the line at `at`, which need not be memory.
    fn ask(at: *const u8);
}

/// Caches near the cores, from which about 25 GB/s arrive.
pub(super) struct Near;

impl Ahead for Near {
    const BYTES: usize = 4 << 10;
    const ARRIVE: usize = 7;

    #[inline(always)]
    fn ask(at: *const u8) {
        // SAFETY: prefetching reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

/// Cores that load two vectors of 64 bytes a cycle, more than the hardware's own prefetching brings: everything
/// is asked for, and a short way ahead, as far as the first-level cache holds it.
pub(super) struct Swift;

impl Swift {
    /// Whether this machine's cores are such: AVX-VNNI came with them to processors that had the same of AVX-512
    /// already.
    pub(super) fn suits() -> bool {
        is_x86_feature_detected!("avxvnni")
    }
}

impl Ahead for Swift {
    const BYTES: usize = 8 << 10;
    const ARRIVE: usize = usize::MAX;

    #[inline(always)]
    fn ask(at: *const u8) {
        Near::ask(at);
    }
}

/// A third-level cache behind a mesh of many cores: too far for the hardware's own prefetching, so that
/// everything is asked for, and into the second-level cache, which waits for more lines at once than the first.
pub(super) struct Far;

impl Ahead for Far {
    const BYTES: usize = 16 << 10;
    const ARRIVE: usize = usize::MAX;

    #[inline(always)]
    fn ask(at: *const u8) {
        // SAFETY: prefetching reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
}

/// Asks for weights some way ahead of `at`, of which each step takes `bytes` and works on them for `cycles`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn prefetch<A: Ahead>(at: *const u8, bytes: usize, cycles: usize) {
    if bytes / cycles >= A::ARRIVE {
        return;
    }
    for line in (0..bytes).step_by(64) {
        // The address may lie past the weight: prefetching what is not there does nothing.
        A::ask(at.wrapping_add(A::BYTES + line));
    }
}

/// 16 halves, widened.
///
/// # Safety
/// `at` has 32 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn halves(at: *const u8) -> __m512 {
    // SAFETY: as the caller promises.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
}

/// The 8 quads of a run, one byte a code.
///
/// # Safety
/// `at` has a run's codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn unpack<T: Stored>(at: *const u8) -> [__m512i; 8] {
    let mut quads = [_mm512_setzero_si512(); 8];
    // SAFETY: a plane of `P` bits starts after the lines of those before it, which are as many
    // as they have bits.
    unsafe {
        plane::<T, 8>(at, 0, &mut quads);
        plane::<T, 4>(at, T::CODING.bits & 8, &mut quads);
        plane::<T, 2>(at, T::CODING.bits & 12, &mut quads);
        plane::<T, 1>(at, T::CODING.bits & 14, &mut quads);
    }
    quads
}

/// Adds the plane of `P` bits, if the format has it, at bit `low` of the codes.
///
/// # Safety
/// `codes` has a run's codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn plane<T: Stored, const P: usize>(codes: *const u8, low: usize, quads: &mut [__m512i; 8]) {
    if T::CODING.bits & P == 0 {
        return;
    }
    let mask = _mm512_set1_epi8((((1u32 << P) - 1) << low) as u8 as i8);
    for (i, quad) in quads.iter_mut().enumerate() {
        // SAFETY: the plane's line `i % P` lies within the codes.
        let line = unsafe { _mm512_loadu_si512(codes.add((low + i % P) * LINE).cast()) };
        let shift = P * (i / P);
        let placed = if shift >= low {
            _mm512_srlv_epi16(line, _mm512_set1_epi16((shift - low) as i16))
        } else {
            _mm512_sllv_epi16(line, _mm512_set1_epi16((low - shift) as i16))
        };
        *quad = _mm512_or_si512(*quad, _mm512_and_si512(placed, mask));
    }
}

/// Plain floats. `x` is a tile of transposed input.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn floats<T: Stored, A: Ahead, const ROWS: usize>(
    panel: &[u8],
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    let unit = 2 * LANES * T::FORMAT.block_bytes();
    let units = x.len() / (2 * ROWS);
    assert_eq!(x.len(), units * 2 * ROWS, "whole pairs of a tile");
    assert!(panel.len() >= units * unit, "a panel as long as the input");
    let mut sums = [_mm512_setzero_ps(); ROWS];
    let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
    for _ in 0..units {
        // SAFETY: the asserts above: `at` has a unit, `x` has a pair of each row of a tile.
        unsafe {
            prefetch::<A>(at, unit, ROWS * PAIR_CYCLES);
            for weights in pair::<T>(at) {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(*x.add(r)), *sum);
                }
                x = x.add(ROWS);
            }
            at = at.add(unit);
        }
    }
    store(&sums, out);
}

/// `bf16` weights. `x` is a tile of pairs.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL, VNNI and BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn pairs<A: Ahead, const ROWS: usize>(
    panel: &[u8],
    x: &[u32],
    out: &mut [[f32; LANES]],
) {
    let units = x.len() / ROWS;
    assert_eq!(x.len(), units * ROWS, "whole pairs of a tile");
    assert!(panel.len() >= units * LINE, "a panel as long as the input");
    let mut sums = [_mm512_setzero_ps(); ROWS];
    for (line, x) in panel.chunks_exact(LINE).zip(x.chunks_exact(ROWS)) {
        prefetch::<A>(line.as_ptr(), LINE, ROWS * PAIR_CYCLES / 2);
        // SAFETY: a line is 64 bytes, and a vector of words one of pairs.
        unsafe {
            let weights = _mm512_loadu_si512(line.as_ptr().cast());
            let weights = std::mem::transmute::<__m512i, __m512bh>(weights);
            for (sum, &x) in sums.iter_mut().zip(x) {
                let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32));
                *sum = _mm512_dpbf16_ps(*sum, weights, x);
            }
        }
    }
    store(&sums, out);
}

/// The two elements of each row in one unit.
///
/// # Safety
/// `at` has a unit's bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pair<T: Stored>(at: *const u8) -> [__m512; 2] {
    // SAFETY: a unit is 128 bytes of F32, 64 of the 16-bit formats.
    unsafe {
        match T::FORMAT {
            Format::F32 => [_mm512_loadu_ps(at.cast()), _mm512_loadu_ps(at.add(LINE).cast())],
            Format::F16 => [halves(at), halves(at.add(2 * LANES))],
            _ => {
                let both = _mm512_loadu_si512(at.cast());
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)),
                    _mm512_castsi512_ps(_mm512_and_si512(both, upper)),
                ]
            }
        }
    }
}

/// See [`Isa::products`](super::cpu::Isa::products).
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn products(rounds: usize) -> i32 {
    let bytes = |byte: i8| _mm512_set1_epi8(black_box(byte));
    let (a, b) = (bytes(1), bytes(2));
    let mut sums = [_mm512_setzero_si512(); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).sum()
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn store<const ROWS: usize>(sums: &[__m512; ROWS], out: &mut [[f32; LANES]]) {
    assert_eq!(out.len(), ROWS, "the rows of the tile");
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: `out` is 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *sum) };
    }
}
