//! Root-mean-square norm (Zhang & Sennrich 2019): `y = x / sqrt(mean(x²) + eps) · weight`.
//!
//! The squares of a row go to 64 partial sums (element `i` to sum `i mod 64`), added pairwise.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

use crate::rows::Rows;
pub(crate) use cpu::norm_in_place;
use device::Disjoint;

/// Rows of `x` (`[rows, weight.len()]`), normed into `out` (same shape), where they stay.
pub struct Normed<'a> {
    from: From<'a>,
    weight: &'a [f32],
    eps: f32,
    out: Disjoint<'a, f32>,
}

enum From<'a> {
    Stream(&'a [f32]),
    Sum { x: Disjoint<'a, f32>, delta: &'a [f32] },
}

impl<'a> Normed<'a> {
    /// The norm of `x`.
    ///
    /// # Panics
    /// When the shapes do not match.
    pub fn of(x: &'a [f32], weight: &'a [f32], eps: f32, out: &'a mut [f32]) -> Normed<'a> {
        assert_eq!(x.len(), out.len(), "x and out of a norm have one shape");
        Normed::new(From::Stream(x), weight, eps, out)
    }

    /// First `x += delta` (the residual stream), then the norm of `x`. All of one shape.
    ///
    /// # Panics
    /// When the shapes do not match.
    pub fn of_sum(
        x: &'a mut [f32],
        delta: &'a [f32],
        weight: &'a [f32],
        eps: f32,
        out: &'a mut [f32],
    ) -> Normed<'a> {
        assert_eq!(x.len(), out.len(), "x and out of a norm have one shape");
        assert_eq!(x.len(), delta.len(), "x and delta of a norm have one shape");
        Normed::new(From::Sum { x: Disjoint::new(x), delta }, weight, eps, out)
    }

    fn new(from: From<'a>, weight: &'a [f32], eps: f32, out: &'a mut [f32]) -> Normed<'a> {
        let (len, width) = (out.len(), weight.len());
        assert!(width > 0 && len.is_multiple_of(width), "{len} elements are not rows of {width}");
        Normed { from, weight, eps, out: Disjoint::new(out) }
    }
}

impl Rows for Normed<'_> {
    fn count(&self) -> usize {
        self.out.len() / self.weight.len()
    }

    fn width(&self) -> usize {
        self.weight.len()
    }

    unsafe fn compute(&self, row: usize) -> &[f32] {
        let range = row * self.weight.len()..(row + 1) * self.weight.len();
        // SAFETY: the row is computed once, as the caller promises, and nobody else has it.
        let out = unsafe { self.out.slice(range.clone()) };
        match &self.from {
            From::Stream(x) => cpu::norm(&x[range], self.weight, self.eps, out),
            From::Sum { x, delta } => {
                // SAFETY: as above.
                let x = unsafe { x.slice(range.clone()) };
                cpu::add_norm(x, &delta[range], self.weight, self.eps, out);
            }
        }
        out
    }
}
