//! Rotary position embedding (Su et al. 2021), half-split pairs `(i, i + d/2)` as in Hugging Face.

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
    /// (1 except for YaRN-like scalings).
    pub fn fill(&mut self, positions: &[u32], inv_freq: &[f32], scale: f32) {
        let _ = (positions, inv_freq, scale);
        unimplemented!()
    }
}

/// Rotates `x` (`[rows, heads, head_dim]`) in place. `inv_freq.len() * 2 <= head_dim`; the
/// dimensions past the rotary ones stay.
pub fn rope(cpu: &Cpu, x: &mut [f32], heads: usize, head_dim: usize, angles: &Angles) {
    let _ = (cpu, x, heads, head_dim, angles);
    unimplemented!()
}
