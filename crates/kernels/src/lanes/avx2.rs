//! Lanes in the registers of AVX2.

use super::{LANES, Lanes};
use std::arch::x86_64::*;

/// AVX2 and FMA: a vector is two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(super) ());

impl Lanes for Avx2 {
    type F = [__m256; 2];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA; 16 floats can be read.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2 and FMA; 16 floats can be written.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[0], b[0]));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[1], b[1]));
            (low | high << 8) as u16
        }
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_bits[0]));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_bits[1]));
            [
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v[0]), low)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v[1]), high)),
            ]
        }
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX2 and FMA.
        unsafe {
            [
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[0], limit[0]), v[0]),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x[1], limit[1]), v[1]),
            ]
        }
    }
}
