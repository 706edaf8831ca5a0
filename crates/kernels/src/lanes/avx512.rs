//! Lanes in the registers of AVX-512.

use super::{LANES, Lanes};
use std::arch::x86_64::*;

/// AVX-512F: a vector is one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(super) ());

impl Lanes for Avx512 {
    type F = __m512;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX-512F; 16 floats can be read.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512F; 16 floats can be written.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b) }
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n_bits));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        }
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v) }
    }
}
