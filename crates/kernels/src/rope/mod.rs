//! Rotary position embedding (Su et al. 2021), half-split pairs `(i, i + d/2)` as in Hugging Face.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

/// `cos` and `sin` of every row's angles, shared by all layers and heads of a pass.
#[derive(Default)]
pub struct Angles {
    /// `[rows, rotary / 2]`.
    pub cos: Vec<f32>,
    /// `[rows, rotary / 2]`.
    pub sin: Vec<f32>,
    /// Angles of a row.
    pairs: usize,
}

impl Angles {
    /// Fills the angles `position · inv_freq[i]` for every row, both parts times `scale`
    /// (1 except for YaRN-like scalings). The product is rounded to `f32`, as Hugging Face rounds
    /// it; its cosine and sine are those of the rounded angle to within `f32` rounding.
    pub fn fill(&mut self, positions: &[u32], inv_freq: &[f32], scale: f32) {
        self.pairs = inv_freq.len();
        self.cos.clear();
        self.sin.clear();
        for &position in positions {
            for &frequency in inv_freq {
                // f64: an f32 sine of an angle of 10⁵ is only as good as its range reduction.
                let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                self.cos.push(cos as f32 * scale);
                self.sin.push(sin as f32 * scale);
            }
        }
    }

    /// Rotates `head`, one of those of row `row`; the dimensions past the rotary ones stay.
    ///
    /// Plain loops: no sum is reduced, so any compilation gives the same bits.
    ///
    /// # Panics
    /// When there are more rotary dimensions than the head has.
    pub(crate) fn rotate(&self, row: usize, head: &mut [f32]) {
        let half = self.pairs;
        let of_row = row * half..(row + 1) * half;
        let (first, rest) = head.split_at_mut(half);
        assert!(rest.len() >= half, "{half} pairs in a head of {}", half + rest.len());
        let angles = self.cos[of_row.clone()].iter().zip(&self.sin[of_row]);
        for ((a, b), (cos, sin)) in first.iter_mut().zip(rest).zip(angles) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}
