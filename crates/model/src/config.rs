//! The one description of a decoder. Families differ in the values of these fields only.

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
    /// The `head_dim / 2` angular frequencies, scaling applied.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let _ = head_dim;
        unimplemented!()
    }
}
