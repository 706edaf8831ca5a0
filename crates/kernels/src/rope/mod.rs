//! Rotary position embedding (Su et al. 2021), half-split pairs `(i, i + d/2)` as in Hugging Face.

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

use device::Cpu;

/// `cos` and `sin` of every row's angles, shared by all layers and heads of a pass.
#[derive(Default)]
pub struct Angles {
    /// `[rows, rotary / 2]`.
    pub cos: Vec<f32>,
    /// `[rows, rotary / 2]`.
    pub sin: Vec<f32>,
}

impl Angles {
    /// Fills the angles `position · inv_freq[i]` for every row, both parts times `scale`
    /// (1 except for YaRN-like scalings). The product is rounded to `f32`, as Hugging Face rounds
    /// it; its cosine and sine are those of the rounded angle to within `f32` rounding.
    pub fn fill(&mut self, positions: &[u32], inv_freq: &[f32], scale: f32) {
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
}

/// Rotates `x` (`[rows, heads, head_dim]`) in place. `inv_freq.len() * 2 <= head_dim`; the
/// dimensions past the rotary ones stay.
///
/// # Panics
/// When `x` is not whole rows, or `angles` are not of these rows.
pub fn rope(cpu: &Cpu, x: &mut [f32], heads: usize, head_dim: usize, angles: &Angles) {
    cpu::rope(cpu, x, heads, head_dim, angles);
}
