//! The inner loops for AVX2 and FMA: a panel is done in two passes of 8 rows each. Same order of
//! operations, and so the same bits, as for AVX-512.

use super::cpu::{SUMS, Stored};
use super::input::Quantized;
use super::panel::{LANES, LINE, RUN};
use crate::format::{Format, Min};
use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Rows of a panel that one pass covers.
const HALF: usize = LANES / 2;

/// Block formats. `x` is a tile of quantized input.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn blocks<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[Quantized],
    out: &mut [[f32; LANES]],
) {
    let coding = T::CODING;
    let units = x.len() / ROWS / coding.span;
    assert_eq!(x.len(), units * coding.span * ROWS, "whole blocks of a tile");
    assert!(panel.len() >= units * coding.unit_bytes(), "a panel as long as the input");
    for pass in 0..2 {
        let mut sums = [_mm256_setzero_ps(); ROWS];
        let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
        for _ in 0..units {
            // SAFETY: the asserts above: `at` has a unit, `x` has `span` runs of a tile.
            unsafe {
                let halves_at = at.add(2 * HALF * pass);
                let last = coding.header_bytes() - 2 * LANES;
                let header = [halves(halves_at), halves(halves_at.add(last))];
                at = at.add(coding.header_bytes());
                for _ in 0..coding.span {
                    run::<T, ROWS>(at, pass, header, x, &mut sums);
                    at = at.add(coding.run_bytes());
                    x = x.add(ROWS);
                }
            }
        }
        store(&sums, pass, out);
    }
}

/// Adds the products of one run.
///
/// # Safety
/// `at` has a run's bytes, `x` has `ROWS` items.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<T: Stored, const ROWS: usize>(
    at: *const u8,
    pass: usize,
    header: [__m256; 2],
    x: *const Quantized,
    sums: &mut [__m256; ROWS],
) {
    let coding = T::CODING;
    // SAFETY: the factors follow the codes within the run.
    let factor = |array: usize, g: usize| unsafe {
        if coding.span == 1 {
            return header[array];
        }
        let array_at = coding.code_bytes() + (array * coding.groups + g) * LANES;
        let integers = _mm_loadl_epi64(at.add(array_at + HALF * pass).cast());
        _mm256_mul_ps(header[array], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(integers)))
    };
    // Without a second group, or without mins, the compiler drops what is not used.
    let scale: [__m256; 2] = std::array::from_fn(|g| factor(0, g.min(coding.groups - 1)));
    let min: [__m256; 2] =
        std::array::from_fn(|g| factor(coding.factors() - 1, g.min(coding.groups - 1)));
    // SAFETY: the codes open the run; each line's second half is the second pass's.
    let quads = unsafe { unpack::<T>(at.add(4 * HALF * pass)) };
    for (r, total) in sums.iter_mut().enumerate() {
        // SAFETY: the tile has `ROWS` items for this run.
        let x = unsafe { &*x.add(r) };
        let per_group = quads.len() / coding.groups;
        let with = |g: usize, total: __m256| {
            let dot = dot::<T>(&quads, x, g * per_group, per_group, x.neg_sums[coding.sum(g)]);
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(x.scale));
            let total = _mm256_fmadd_ps(scaled, scale[g], total);
            match coding.min {
                Min::None => total,
                Min::PerGroup => {
                    let sum = _mm256_set1_ps(x.scaled_sums[coding.sum(g)]);
                    _mm256_fmadd_ps(min[g], sum, total)
                }
            }
        };
        // Not a loop, see the same place for AVX-512.
        *total = if coding.groups == 1 { with(0, *total) } else { with(1, with(0, *total)) };
    }
}

/// `Σ (code − zero) · q` over `count` quads from `first` on; `neg_sum` is `−Σ q` of them.
///
/// `maddubs` adds pairs of products in 16 bits, saturating; the sums taken there never reach the
/// limit. Codes of 8 bits would, so they are made signed (|code − 128| ≤ 128) first.
#[inline]
#[target_feature(enable = "avx2")]
fn dot<T: Stored>(
    quads: &[__m256i; 8],
    x: &Quantized,
    first: usize,
    count: usize,
    neg_sum: i32,
) -> __m256i {
    let coding = T::CODING;
    let quad = |i: usize| {
        let bytes = x.q.as_chunks::<4>().0[i].map(|q| q as u8);
        let q = _mm256_set1_epi32(i32::from_le_bytes(bytes));
        if coding.bits == 8 {
            let signed = _mm256_xor_si256(quads[i], _mm256_set1_epi8(-128));
            return _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(q, signed));
        }
        _mm256_maddubs_epi16(quads[i], q)
    };
    let mut total = if coding.bits == 8 {
        _mm256_setzero_si256()
    } else {
        _mm256_set1_epi32(neg_sum * i32::from(coding.zero))
    };
    // Quads whose 16-bit sums, 2 · 127 · largest code each, stay in range together.
    let together = match coding.bits {
        8 => 1,
        bits => count.min(i16::MAX as usize / (2 * 127 * ((1 << bits) - 1))),
    };
    for start in (first..first + count).step_by(together) {
        let mut pairs = quad(start);
        for i in start + 1..(start + together).min(first + count) {
            pairs = _mm256_add_epi16(pairs, quad(i));
        }
        total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    total
}

/// 8 halves, widened.
///
/// # Safety
/// `at` has 16 bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn halves(at: *const u8) -> __m256 {
    // SAFETY: as the caller promises.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(at.cast()) })
}

/// The 8 quads of a run for 8 rows, one byte a code.
///
/// # Safety
/// `at` is where the rows' words start in the first line of a run's codes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack<T: Stored>(at: *const u8) -> [__m256i; 8] {
    let mut quads = [_mm256_setzero_si256(); 8];
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
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn plane<T: Stored, const P: usize>(codes: *const u8, low: usize, quads: &mut [__m256i; 8]) {
    if T::CODING.bits & P == 0 {
        return;
    }
    let mask = _mm256_set1_epi8((((1u32 << P) - 1) << low) as u8 as i8);
    for (i, quad) in quads.iter_mut().enumerate() {
        // SAFETY: the plane's line `i % P` lies within the codes.
        let line = unsafe { _mm256_loadu_si256(codes.add((low + i % P) * LINE).cast()) };
        let shift = P * (i / P);
        let placed = if shift >= low {
            _mm256_srl_epi16(line, _mm_cvtsi32_si128((shift - low) as i32))
        } else {
            _mm256_sll_epi16(line, _mm_cvtsi32_si128((low - shift) as i32))
        };
        *quad = _mm256_or_si256(*quad, _mm256_and_si256(placed, mask));
    }
}

/// Plain floats. `x` is a tile of transposed input.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    let unit = 2 * LANES * T::FORMAT.block_bytes();
    let units = x.len() / (2 * ROWS);
    assert_eq!(x.len(), units * 2 * ROWS, "whole pairs of a tile");
    assert!(panel.len() >= units * unit, "a panel as long as the input");
    for pass in 0..2 {
        let mut sums = [_mm256_setzero_ps(); ROWS];
        let (mut at, mut x) = (panel.as_ptr(), x.as_ptr());
        for _ in 0..units {
            // SAFETY: the asserts above: `at` has a unit, `x` has a pair of each row of a tile.
            unsafe {
                for weights in pair::<T>(at, pass) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = _mm256_fmadd_ps(weights, _mm256_set1_ps(*x.add(r)), *sum);
                    }
                    x = x.add(ROWS);
                }
                at = at.add(unit);
            }
        }
        store(&sums, pass, out);
    }
}

/// The two elements of each of 8 rows in one unit.
///
/// # Safety
/// `at` has a unit's bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn pair<T: Stored>(at: *const u8, pass: usize) -> [__m256; 2] {
    // SAFETY: a unit is 128 bytes of F32, 64 of the 16-bit formats.
    unsafe {
        let words = at.add(4 * HALF * pass);
        match T::FORMAT {
            Format::F32 => [_mm256_loadu_ps(words.cast()), _mm256_loadu_ps(words.add(LINE).cast())],
            Format::F16 => {
                let at = at.add(2 * HALF * pass);
                [halves(at), halves(at.add(2 * LANES))]
            }
            _ => {
                let both = _mm256_loadu_si256(words.cast());
                let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(both)),
                    _mm256_castsi256_ps(_mm256_and_si256(both, upper)),
                ]
            }
        }
    }
}

/// See [`Isa::products`](super::cpu::Isa::products). An accumulator has half as many lanes here, so a
/// round is done twice.
#[target_feature(enable = "avx2")]
pub(super) fn products(rounds: usize) -> i32 {
    let bytes = |byte: i8| _mm256_set1_epi8(black_box(byte));
    let (a, b) = (bytes(1), bytes(2));
    let mut sums = [_mm256_setzero_si256(); SUMS];
    for _ in 0..2 * rounds {
        for sum in &mut sums {
            let pairs = _mm256_maddubs_epi16(a, unknown(b));
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
    let mut lanes = [0; HALF];
    sums.into_iter().fold(0, |total, sum| {
        // SAFETY: `lanes` is 8 integers.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
        total + lanes.iter().sum::<i32>()
    })
}

/// `bytes`, of which the compiler then knows nothing: it cannot multiply once for many sums.
#[inline]
#[target_feature(enable = "avx2")]
fn unknown(mut bytes: __m256i) -> __m256i {
    // SAFETY: a comment does nothing.
    unsafe {
        asm!("/* {} */", inout(ymm_reg) bytes, options(nomem, nostack, preserves_flags));
    }
    bytes
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<const ROWS: usize>(sums: &[__m256; ROWS], pass: usize, out: &mut [[f32; LANES]]) {
    assert_eq!(out.len(), ROWS, "the rows of the tile");
    for (out, sum) in out.iter_mut().zip(sums) {
        let out = &mut out[HALF * pass..HALF * (pass + 1)];
        // SAFETY: `out` is 8 floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *sum) };
    }
}

/// 32 elements as bytes, by the operations of [`Quantized::new`].
#[target_feature(enable = "avx2")]
pub(super) fn quantize(x: &[f32; RUN]) -> Quantized {
    // SAFETY: four vectors of 8 elements.
    let x: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * i)) });
    // Magnitudes order like their bits, and NaN comes last.
    let magnitude = |x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX));
    let [a, b, c, d] = x.map(magnitude);
    let most = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let most = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    let scale = f32::from_bits(_mm_cvtsi128_si32(most) as u32) / 127.0;
    if scale < f32::MIN_POSITIVE {
        return Quantized::ZERO;
    }
    let inverse = _mm256_set1_ps(1.0 / scale);
    // The low byte of each, as `nearest_byte` says.
    let byte = |x| {
        let shifted = _mm256_add_ps(_mm256_mul_ps(x, inverse), _mm256_set1_ps(12_582_912.0));
        _mm256_and_si256(_mm256_castps_si256(shifted), _mm256_set1_epi32(0xff))
    };
    let [a, b, c, d] = x.map(byte);
    let packed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    // Both halves of a vector were packed by themselves.
    let q = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let eights = _mm256_add_epi32(quads, _mm256_shuffle_epi32::<0b01_00_11_10>(quads));
    let halves = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b10_11_00_01>(eights));
    let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    let mut bytes = [0; RUN];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), q) };
    Quantized::with(scale, bytes, [low, high].map(|half| _mm_cvtsi128_si32(half)))
}
