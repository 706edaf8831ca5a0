//! Lanes in the registers of NEON.

use super::{LANES, Lanes};
use std::arch::aarch64::*;
use std::array::from_fn;

/// NEON: a vector is four registers.
#[derive(Clone, Copy)]
pub(crate) struct Neon(pub(super) ());

impl Lanes for Neon {
    type F = [float32x4_t; 4];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: `self` proves NEON.
        [unsafe { vdupq_n_f32(x) }; 4]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves NEON; 16 floats can be read.
        from_fn(|i| unsafe { vld1q_f32(from.as_ptr().add(4 * i)) })
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        for (v, to) in v.into_iter().zip(to.as_chunks_mut::<4>().0) {
            // SAFETY: `self` proves NEON; 4 floats can be written.
            unsafe { vst1q_f32(to.as_mut_ptr(), v) };
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vaddq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vsubq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vdivq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    // NEON's own maximum and minimum are NaN when either operand is, so the choice is spelled out.
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]) })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe { vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]) })
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        const BITS: [u32; LANES] = {
            let (mut bits, mut lane) = ([0; LANES], 0);
            while lane < LANES {
                bits[lane] = 1 << lane;
                lane += 1;
            }
            bits
        };
        // SAFETY: `self` proves NEON; each quarter of the bits is 4 words. No two lanes share a bit,
        // so that adding them up joins them.
        unsafe {
            let quarter =
                |i: usize| vandq_u32(vcgeq_f32(a[i], b[i]), vld1q_u32(BITS.as_ptr().add(4 * i)));
            let halves = [vorrq_u32(quarter(0), quarter(1)), vorrq_u32(quarter(2), quarter(3))];
            vaddvq_u32(vorrq_u32(halves[0], halves[1])) as u16
        }
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe {
            let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(n_bits[i]));
            vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(v[i]), exponent))
        })
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        // SAFETY: `self` proves NEON.
        from_fn(|i| unsafe {
            let below = vcltq_f32(x[i], limit[i]);
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v[i]), below))
        })
    }
}
