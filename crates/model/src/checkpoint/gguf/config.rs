//! From GGUF metadata to [`ModelConfig`].

use super::metadata::{Metadata, Value};
use crate::checkpoint::store::Store;
use crate::config::{AttentionBias, ModelConfig, Rope, RopeScaling};
use crate::error::LoadError;
use kernels::format::Format;
use kernels::gemm::RowOrder;

/// What sets one architecture apart in GGUF.
pub(super) struct Family {
    /// `general.architecture`.
    name: &'static str,
    /// Order of the rows of Q and K.
    qk_rows: QkRows,
    /// RMS norms on q and k heads.
    qk_norm: bool,
}

/// How the converter wrote the rows of Q and K.
enum QkRows {
    /// RoPE pairs half a head apart, as Hugging Face has them.
    HalfSplit,
    /// RoPE pairs as neighbours.
    Neighbours,
}

const FAMILIES: [Family; 3] = [
    Family { name: "llama", qk_rows: QkRows::Neighbours, qk_norm: false },
    Family { name: "qwen2", qk_rows: QkRows::HalfSplit, qk_norm: false },
    Family { name: "qwen3", qk_rows: QkRows::HalfSplit, qk_norm: true },
];

/// Keys of features that the decoder does not have. Zero and `false` mean that they are off.
const UNSUPPORTED: [&str; 8] = [
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "embedding_scale",
    "logit_scale",
    "residual_scale",
];

/// The tensor that carries Llama 3.1's rotary factors.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

impl Family {
    /// The family that `metadata` names.
    ///
    /// # Errors
    /// An architecture that is missing or unknown.
    pub(super) fn of(metadata: &Metadata) -> Result<&'static Family, LoadError> {
        const KEY: &str = "general.architecture";
        let known = FAMILIES.map(|family| family.name).join(", ");
        let Some(name) = metadata.string(KEY)? else {
            return Err(LoadError::new(
                metadata.path(),
                KEY,
                format!("is missing: the file holds no model; known architectures are {known}"),
            ));
        };
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| {
            LoadError::new(
                metadata.path(),
                KEY,
                format!("is `{name}`, which this engine does not know; it knows {known}"),
            )
        })
    }

    /// The order of the rows of the tensor of this Hugging Face name. Biases follow their weights.
    pub(super) fn rows(&self, name: &str, heads: Heads) -> RowOrder {
        match self.qk_rows {
            QkRows::HalfSplit => RowOrder::Plain,
            QkRows::Neighbours if name.contains(".self_attn.q_proj.") => {
                RowOrder::Interleaved { heads: heads.query }
            }
            QkRows::Neighbours if name.contains(".self_attn.k_proj.") => {
                RowOrder::Interleaved { heads: heads.key_value }
            }
            QkRows::Neighbours => RowOrder::Plain,
        }
    }
}

/// Head counts.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) query: usize,
    pub(super) key_value: usize,
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    family: &'static Family,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.family.name)
    }

    fn count(&self, suffix: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.metadata.u32(&self.key(suffix))?.map(|value| value as usize))
    }

    fn required<T>(&self, suffix: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| self.error(suffix, "is missing; convert the model again"))
    }

    fn required_count(&self, suffix: &str) -> Result<usize, LoadError> {
        self.required(suffix, self.count(suffix)?)
    }

    fn error(&self, suffix: &str, problem: impl Into<String>) -> LoadError {
        LoadError::new(self.metadata.path(), self.key(suffix), problem)
    }
}

/// The head counts.
///
/// # Errors
/// Keys that are missing, of another type, or zero.
pub(super) fn heads(metadata: &Metadata, family: &'static Family) -> Result<Heads, LoadError> {
    let keys = Keys { metadata, family };
    let query = keys.required_count("attention.head_count")?;
    let key_value = keys.count("attention.head_count_kv")?.unwrap_or(query);
    if query == 0 {
        return Err(keys.error("attention.head_count", "is 0"));
    }
    Ok(Heads { query, key_value })
}

/// The configuration of a `family` model whose tensors are in `store` under Hugging Face names.
/// GGUF has no flag for tied embeddings: a file without `output.weight` means them.
///
/// # Errors
/// Keys that are missing, of another type, out of range, or ask for what the decoder cannot do.
pub(super) fn read(
    metadata: &Metadata,
    family: &'static Family,
    heads: Heads,
    store: &Store,
) -> Result<ModelConfig, LoadError> {
    let keys = Keys { metadata, family };
    refuse_unsupported(&keys)?;
    let layers = keys.required_count("block_count")?;
    let hidden = keys.required_count("embedding_length")?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(length) => length,
        None if hidden.is_multiple_of(heads.query) => hidden / heads.query,
        None => {
            return Err(keys.error(
                "attention.head_count",
                format!("{} heads do not divide the width {hidden}", heads.query),
            ));
        }
    };
    for suffix in ["attention.value_length", "rope.dimension_count"] {
        if let Some(other) = keys.count(suffix)?.filter(|&other| other != head_dim) {
            return Err(keys.error(
                suffix,
                format!("is {other}, but heads have {head_dim} elements; only equal is supported"),
            ));
        }
    }
    let embedding = store.get("model.embed_tokens.weight").ok_or_else(|| {
        LoadError::new(metadata.path(), "token_embd.weight", "is missing; fetch the file again")
    })?;
    let eps_key = "attention.layer_norm_rms_epsilon";
    let eps = metadata.f32(&keys.key(eps_key))?;
    let window = keys.count("attention.sliding_window")?.filter(|&window| window != 0);
    // The converter writes biases for every layer or none; the first shows which.
    let has_bias = |module| store.get(&format!("model.layers.0.{module}.bias")).is_some();
    let config = ModelConfig {
        architecture: family.name.to_owned(),
        layers,
        hidden,
        intermediate: keys.required_count("feed_forward_length")?,
        heads: heads.query,
        kv_heads: heads.key_value,
        head_dim,
        vocab: embedding.shape[0],
        context: keys.required_count("context_length")?,
        rms_eps: keys.required(eps_key, eps)?,
        rope: rope(&keys, store)?,
        attention_bias: match (has_bias("self_attn.q_proj"), has_bias("self_attn.o_proj")) {
            (_, true) => AttentionBias::Qkvo,
            (true, false) => AttentionBias::Qkv,
            (false, false) => AttentionBias::None,
        },
        mlp_bias: has_bias("mlp.down_proj"),
        qk_norm: family.qk_norm,
        tied_embeddings: store.get("lm_head.weight").is_none(),
        // Checked before the list is made, so that an absurd count allocates nothing.
        windows: vec![window; layers.min(crate::config::MAX_LAYERS + 1)],
    };
    config.validate(metadata.path())?;
    Ok(config)
}

fn refuse_unsupported(keys: &Keys<'_>) -> Result<(), LoadError> {
    for suffix in UNSUPPORTED {
        let on = match keys.metadata.get(&keys.key(suffix)) {
            None | Some(Value::U32(0)) | Some(Value::Bool(false)) => false,
            Some(&Value::F32(value)) => value != 0.0,
            Some(_) => true,
        };
        if on {
            return Err(keys.error(suffix, "is set, and this engine cannot compute with it"));
        }
    }
    match keys.metadata.bool(&keys.key("attention.causal"))? {
        Some(false) => Err(keys.error("attention.causal", "is false: this is no causal decoder")),
        _ => Ok(()),
    }
}

fn rope(keys: &Keys<'_>, store: &Store) -> Result<Rope, LoadError> {
    let theta = keys.metadata.f32(&keys.key("rope.freq_base"))?.unwrap_or(10_000.0);
    let kind = keys.metadata.string(&keys.key("rope.scaling.type"))?;
    let factor = match keys.metadata.f32(&keys.key("rope.scaling.factor"))? {
        Some(factor) => Some(factor),
        // The key's name in older files.
        None => keys.metadata.f32(&keys.key("rope.scale_linear"))?,
    };
    // A factor without a type means linear, and 0 and 1 mean nothing.
    let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
    let scaling = match (kind, factor) {
        (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
        (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor: factor.into() },
        (Some(other), _) => {
            return Err(keys.error(
                "rope.scaling.type",
                format!("is `{other}`; this engine knows none and linear"),
            ));
        }
    };
    let Some(factors) = store.get(ROPE_FREQS) else {
        return Ok(Rope { theta: theta.into(), scaling });
    };
    let field = |problem| LoadError::new(store.path_of(factors), ROPE_FREQS, problem);
    if scaling != RopeScaling::None {
        return Err(field("comes with rope.scaling.factor; only one of them is supported"));
    }
    if factors.format != Format::F32 || factors.shape.len() != 1 {
        return Err(field("must be one row of F32"));
    }
    factors.mark_used();
    let (words, _) = store.tensor(factors).data.as_chunks::<4>();
    let factors = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
    Ok(Rope { theta: theta.into(), scaling: RopeScaling::Factors(factors) })
}
