//! Lanes in plain Rust.

use super::{LANES, Lanes};

/// Plain Rust, for processors without a level of their own.
#[derive(Clone, Copy)]
pub(crate) struct Portable(pub(super) ());

/// Applies `f` to each lane. A macro, not a function over a closure: the arithmetic must end up
/// inside the function that enables the instruction set.
macro_rules! each {
    ($i:ident => $e:expr) => {{
        let mut out = [0.0; LANES];
        for $i in 0..LANES {
            out[$i] = $e;
        }
        out
    }};
}

impl Lanes for Portable {
    type F = [f32; LANES];
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::F, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each!(i => a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        each!(i => if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> u16 {
        let mut mask = 0;
        for i in 0..LANES {
            mask |= u16::from(a[i] >= b[i]) << i;
        }
        mask
    }
    #[inline(always)]
    fn scale(self, v: Self::F, n_bits: Self::F) -> Self::F {
        each!(i => f32::from_bits(v[i].to_bits().wrapping_add(n_bits[i].to_bits() << 23)))
    }
    #[inline(always)]
    fn zero_below(self, v: Self::F, x: Self::F, limit: Self::F) -> Self::F {
        each!(i => if x[i] < limit[i] { 0.0 } else { v[i] })
    }
}
