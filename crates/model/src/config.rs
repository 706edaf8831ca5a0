//! The one description of a decoder. Families differ in the values of these fields only.

use crate::error::LoadError;
use std::path::Path;

/// A Llama- or Qwen-family decoder, or the body of a DFlash drafter.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The architecture's name in its file (`llama`, `Qwen3ForCausalLM`, …), for people.
    pub architecture: String,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head; free of `hidden / heads` in Qwen3.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Positions the model was made for.
    pub context: usize,
    /// Epsilon of every RMS norm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Biases on q, k and v (Qwen2) or on q, k, v and o (Llama with `attention_bias`).
    pub attention_bias: AttentionBias,
    /// Biases on gate, up and down (`mlp_bias`).
    pub mlp_bias: bool,
    /// RMS norm of each q and k head before RoPE (Qwen3).
    pub qk_norm: bool,
    /// The output head is the embedding.
    pub tied_embeddings: bool,
    /// Sliding window of each layer, where it has one; length `layers`.
    pub windows: Vec<Option<usize>>,
}

/// Which attention projections carry a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// q, k and v.
    Qkv,
    /// q, k, v and o.
    Qkvo,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change to the frequencies.
    pub scaling: RopeScaling,
}

/// Changes to the rotary frequencies, as in Hugging Face's `rope_scaling`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1's smooth interpolation by wavelength.
    Llama3 {
        /// `factor`.
        factor: f64,
        /// `low_freq_factor`.
        low: f64,
        /// `high_freq_factor`.
        high: f64,
        /// `original_max_position_embeddings`.
        original_context: f64,
    },
    /// A divisor for each frequency (GGUF's `rope_freqs.weight`).
    Factors(Vec<f32>),
}

impl Rope {
    /// The `head_dim / 2` angular frequencies in radians a position, scaling applied: `f32`
    /// arithmetic in the order of Hugging Face's `modeling_rope_utils`, so that both agree to the
    /// last place of `powf`.
    ///
    /// # Panics
    /// When [`RopeScaling::Factors`] does not hold `head_dim / 2` factors.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let theta = self.theta as f32;
        let mut frequencies: Vec<f32> = (0..head_dim / 2)
            .map(|i| 1.0 / power(theta, (2 * i) as f32 / head_dim as f32))
            .collect();
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                frequencies.iter_mut().for_each(|frequency| *frequency /= *factor as f32);
            }
            RopeScaling::Llama3 { factor, low, high, original_context } => {
                for frequency in &mut frequencies {
                    *frequency = llama3(*frequency, *factor, *low, *high, *original_context);
                }
            }
            RopeScaling::Factors(factors) => {
                assert_eq!(factors.len(), frequencies.len(), "one rotary factor a frequency");
                frequencies.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor);
            }
        }
        frequencies
    }
}

/// `base` to the power `exponent`, rounded once: `f32::powf` differs between platforms.
fn power(base: f32, exponent: f32) -> f32 {
    f64::from(base).powf(f64::from(exponent)) as f32
}

/// One frequency under Llama 3.1's scaling (`_compute_llama3_parameters`): short wavelengths stay,
/// long ones stretch by `factor`, those between are blended.
fn llama3(frequency: f32, factor: f64, low: f64, high: f64, original_context: f64) -> f32 {
    // PyTorch divides a number by a tensor as reciprocal times number.
    let wavelength = frequency.recip() * std::f32::consts::TAU;
    if wavelength < (original_context / high) as f32 {
        frequency
    } else if wavelength > (original_context / low) as f32 {
        frequency / factor as f32
    } else {
        let turns = wavelength.recip() * original_context as f32;
        let smooth = (turns - low as f32) / (high - low) as f32;
        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
    }
}

/// More layers than any model of these families has.
pub(crate) const MAX_LAYERS: usize = 1024;
/// Bound of every width: far above any real model, far below overflow of a product of three.
const MAX_WIDTH: usize = 1 << 20;
/// Bound of the vocabulary.
const MAX_VOCAB: usize = 1 << 24;
/// Bound of the context, in tokens.
const MAX_CONTEXT: usize = 1 << 30;
/// Bound of a head's elements.
const MAX_HEAD_DIM: usize = 1024;

impl ModelConfig {
    /// Checks that the fields make a decoder that can be built. Errors name the fields as
    /// `config.json` does, and blame `path`.
    ///
    /// # Errors
    /// A size that is zero or absurd, heads that do not divide, a rotary embedding out of range.
    pub fn validate(&self, path: &Path) -> Result<(), LoadError> {
        let sizes = [
            ("num_hidden_layers", self.layers, MAX_LAYERS),
            ("hidden_size", self.hidden, MAX_WIDTH),
            ("intermediate_size", self.intermediate, MAX_WIDTH),
            ("num_attention_heads", self.heads, MAX_WIDTH),
            ("num_key_value_heads", self.kv_heads, MAX_WIDTH),
            ("head_dim", self.head_dim, MAX_HEAD_DIM),
            ("vocab_size", self.vocab, MAX_VOCAB),
            ("max_position_embeddings", self.context, MAX_CONTEXT),
        ];
        for (field, size, most) in sizes {
            if size == 0 || size > most {
                return Err(LoadError::new(path, field, format!("is {size}; 1 to {most} is sane")));
            }
        }
        let error = |field: &str, problem: String| Err(LoadError::new(path, field, problem));
        if !self.heads.is_multiple_of(self.kv_heads) {
            return error(
                "num_key_value_heads",
                format!("{} does not divide the {} query heads", self.kv_heads, self.heads),
            );
        }
        if self.heads * self.head_dim > MAX_WIDTH {
            return error(
                "num_attention_heads",
                format!("{} heads of {} elements are absurd", self.heads, self.head_dim),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return error(
                "head_dim",
                format!("is {}; must be even for rotary pairs", self.head_dim),
            );
        }
        if !(self.rms_eps > 0.0 && self.rms_eps < 1.0) {
            return error("rms_norm_eps", format!("is {}; must lie between 0 and 1", self.rms_eps));
        }
        if self.windows.len() != self.layers {
            return error(
                "layer_types",
                format!("names {} layers, the model has {}", self.windows.len(), self.layers),
            );
        }
        if self.windows.contains(&Some(0)) {
            return error("sliding_window", "is 0; use null for full attention".into());
        }
        self.rope.validate(path, self.head_dim)
    }
}

impl Rope {
    fn validate(&self, path: &Path, head_dim: usize) -> Result<(), LoadError> {
        let error = |field: &str, problem: String| Err(LoadError::new(path, field, problem));
        let positive = |value: f64| value > 0.0 && value < 1e12;
        if !(self.theta >= 1.0 && positive(self.theta)) {
            return error("rope_theta", format!("is {}; must be at least 1", self.theta));
        }
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } if !positive(*factor) => {
                error("rope_scaling.factor", format!("is {factor}; must be positive"))
            }
            RopeScaling::Linear { .. } => Ok(()),
            RopeScaling::Llama3 { factor, low, high, original_context } => {
                let sound = [factor, low, high, original_context].into_iter().all(|&v| positive(v));
                if sound && low < high {
                    return Ok(());
                }
                error(
                    "rope_scaling",
                    format!(
                        "llama3 needs positive numbers and low_freq_factor < high_freq_factor, \
                         found factor {factor}, low {low}, high {high}, original {original_context}"
                    ),
                )
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != head_dim / 2 {
                    return error(
                        "rope_freqs.weight",
                        format!("has {} factors, needs {}", factors.len(), head_dim / 2),
                    );
                }
                match factors.iter().find(|&&factor| !positive(factor.into())) {
                    Some(factor) => {
                        error("rope_freqs.weight", format!("holds {factor}; must be positive"))
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(theta: f64, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling }
    }

    /// Bits of a few frequencies, printed by PyTorch 2 on a CPU; the last place of its `pow` may
    /// differ from a correctly rounded one.
    fn assert_bits(frequencies: &[f32], expected: &[(usize, u32)]) {
        for &(i, bits) in expected {
            let off = frequencies[i].to_bits().abs_diff(bits);
            assert!(off <= 1, "frequency {i}: {} is {off} places off", frequencies[i]);
        }
    }

    #[test]
    fn plain_frequencies_are_pytorchs() {
        let frequencies = rope(100_000.0, RopeScaling::None).frequencies(64);
        assert_eq!(frequencies.len(), 32);
        assert_bits(
            &frequencies,
            &[
                (0, 0x3f800000),
                (1, 0x3f32a506),
                (2, 0x3ef953cf),
                (7, 0x3da50956),
                (15, 0x3b947dae),
                (16, 0x3b4f3e38),
                (31, 0x37706b6d),
            ],
        );
        assert_bits(
            &rope(1_000_000.0, RopeScaling::None).frequencies(128),
            &[(1, 0x3f4e4bad), (13, 0x3d778513), (33, 0x3a533f28), (63, 0x35a68e4c)],
        );
    }

    #[test]
    fn llama3_frequencies_are_transformers() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        // Unscaled up to 28, blended to 35, an eighth from 36 on.
        assert_bits(
            &rope(500_000.0, scaling).frequencies(128),
            &[
                (0, 0x3f800000),
                (1, 0x3f508ac1),
                (20, 0x3c87a9c3),
                (28, 0x3b527720),
                (29, 0x3b0dfd06),
                (30, 0x3ab3d11d),
                (31, 0x3a60979e),
                (32, 0x3a0995d2),
                (33, 0x39a3f108),
                (34, 0x393b2dd2),
                (35, 0x38c86886),
                (36, 0x38a3418d),
                (40, 0x380fc8f8),
                (63, 0x34a4c2ff),
            ],
        );
    }

    #[test]
    fn linear_and_factors_divide() {
        let plain = rope(10_000.0, RopeScaling::None).frequencies(8);
        let linear = rope(10_000.0, RopeScaling::Linear { factor: 4.0 }).frequencies(8);
        assert_eq!(linear, plain.iter().map(|f| f / 4.0).collect::<Vec<_>>());
        let factors = vec![1.0, 2.0, 4.0, 32.0];
        let divided = rope(10_000.0, RopeScaling::Factors(factors.clone())).frequencies(8);
        assert_eq!(divided, plain.iter().zip(&factors).map(|(f, d)| f / d).collect::<Vec<_>>());
    }

    fn tiny() -> ModelConfig {
        ModelConfig {
            architecture: "llama".into(),
            layers: 2,
            hidden: 8,
            intermediate: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            vocab: 10,
            context: 64,
            rms_eps: 1e-5,
            rope: rope(10_000.0, RopeScaling::None),
            attention_bias: AttentionBias::None,
            mlp_bias: false,
            qk_norm: false,
            tied_embeddings: false,
            windows: vec![None; 2],
        }
    }

    #[test]
    fn validation_names_the_field() {
        let llama3 =
            RopeScaling::Llama3 { factor: 8.0, low: 4.0, high: 4.0, original_context: 8.0 };
        let broken: Vec<(&str, ModelConfig)> = vec![
            ("num_hidden_layers", ModelConfig { layers: 0, windows: vec![], ..tiny() }),
            ("num_hidden_layers", ModelConfig { layers: 5000, ..tiny() }),
            ("hidden_size", ModelConfig { hidden: 1 << 30, ..tiny() }),
            ("intermediate_size", ModelConfig { intermediate: 0, ..tiny() }),
            ("num_attention_heads", ModelConfig { heads: 0, ..tiny() }),
            ("num_attention_heads", ModelConfig { heads: 1 << 20, ..tiny() }),
            ("num_key_value_heads", ModelConfig { kv_heads: 0, ..tiny() }),
            ("num_key_value_heads", ModelConfig { kv_heads: 3, ..tiny() }),
            ("head_dim", ModelConfig { head_dim: 0, ..tiny() }),
            ("head_dim", ModelConfig { head_dim: 3, ..tiny() }),
            ("vocab_size", ModelConfig { vocab: usize::MAX, ..tiny() }),
            ("max_position_embeddings", ModelConfig { context: 0, ..tiny() }),
            ("rms_norm_eps", ModelConfig { rms_eps: f32::NAN, ..tiny() }),
            ("layer_types", ModelConfig { windows: vec![None], ..tiny() }),
            ("sliding_window", ModelConfig { windows: vec![None, Some(0)], ..tiny() }),
            ("rope_theta", ModelConfig { rope: rope(0.0, RopeScaling::None), ..tiny() }),
            ("rope_theta", ModelConfig { rope: rope(f64::NAN, RopeScaling::None), ..tiny() }),
            (
                "rope_scaling.factor",
                ModelConfig { rope: rope(1e4, RopeScaling::Linear { factor: 0.0 }), ..tiny() },
            ),
            ("rope_scaling", ModelConfig { rope: rope(1e4, llama3), ..tiny() }),
            (
                "rope_freqs.weight",
                ModelConfig { rope: rope(1e4, RopeScaling::Factors(vec![1.0; 3])), ..tiny() },
            ),
            (
                "rope_freqs.weight",
                ModelConfig { rope: rope(1e4, RopeScaling::Factors(vec![1.0, 0.0])), ..tiny() },
            ),
        ];
        let path = Path::new("config.json");
        tiny().validate(path).unwrap();
        for (field, config) in broken {
            assert_eq!(config.validate(path).unwrap_err().field, field, "{config:?}");
        }
    }
}
