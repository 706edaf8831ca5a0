//! From a Hugging Face `config.json` to [`ModelConfig`], with the defaults of transformers and no
//! others: what is not understood is refused by name.

use crate::config::{AttentionBias, MAX_LAYERS, ModelConfig, Rope, RopeScaling};
use crate::error::LoadError;
use serde_json::{Map, Value};
use std::path::Path;

/// What the configuration should describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A language model.
    Decoder,
    /// A DFlash drafter: decoder layers without embedding and head.
    Drafter,
}

/// What sets one architecture apart: which fields count, and what they are when absent.
struct Family {
    architecture: &'static str,
    body: Body,
    /// Biases that `attention_bias: true` brings; `None` where the field must not be true.
    optional_bias: Option<AttentionBias>,
    /// Biases that are always there.
    bias: AttentionBias,
    mlp_bias: MlpBias,
    qk_norm: bool,
    /// `head_dim` when absent; `None` for `hidden_size / num_attention_heads`.
    head_dim: Option<usize>,
    kv_heads: KvHeads,
    windows: Windows,
}

/// Whether `mlp_bias` may be true.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MlpBias {
    Optional,
    Never,
}

/// What an absent `num_key_value_heads` means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KvHeads {
    /// As many as query heads.
    AsQuery,
    /// The family's default fits no known model: say so.
    Required,
}

/// Which layers a `sliding_window` is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Windows {
    /// The family has none.
    Never,
    /// All (Mistral); 4096 when the field is absent.
    Every,
    /// Those that `layer_types` marks, or those from `max_window_layers` on, where
    /// `use_sliding_window` is true (Qwen).
    Marked,
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    body: Body::Decoder,
    optional_bias: Some(AttentionBias::Qkvo),
    bias: AttentionBias::None,
    mlp_bias: MlpBias::Optional,
    qk_norm: false,
    head_dim: None,
    kv_heads: KvHeads::AsQuery,
    windows: Windows::Never,
};

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    body: Body::Decoder,
    optional_bias: Some(AttentionBias::Qkvo),
    bias: AttentionBias::None,
    mlp_bias: MlpBias::Never,
    qk_norm: true,
    head_dim: Some(128),
    kv_heads: KvHeads::Required,
    windows: Windows::Marked,
};

const FAMILIES: [Family; 5] = [
    LLAMA,
    Family {
        architecture: "MistralForCausalLM",
        optional_bias: None,
        mlp_bias: MlpBias::Never,
        kv_heads: KvHeads::Required,
        windows: Windows::Every,
        ..LLAMA
    },
    Family {
        architecture: "Qwen2ForCausalLM",
        optional_bias: Some(AttentionBias::Qkv),
        bias: AttentionBias::Qkv,
        qk_norm: false,
        head_dim: None,
        ..QWEN3
    },
    QWEN3,
    Family { architecture: "DFlashDraftModel", body: Body::Drafter, ..QWEN3 },
];

/// The JSON of `config.json`'s bytes.
///
/// # Errors
/// Bytes that are not JSON.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Value, LoadError> {
    serde_json::from_slice(bytes)
        .map_err(|e| LoadError::new(path, "JSON", format!("cannot be read: {e}")))
}

/// The configuration that `json` describes.
///
/// # Errors
/// An unknown architecture, or fields that are missing, of another type, out of range, or ask for
/// what the decoder cannot do.
pub(super) fn read(path: &Path, json: &Value, body: Body) -> Result<ModelConfig, LoadError> {
    let Value::Object(map) = json else {
        return Err(LoadError::new(path, "JSON", "is not an object"));
    };
    let fields = Fields { path, prefix: "", map };
    let family = family(&fields, body)?;
    refuse_unsupported(&fields)?;
    let heads = fields.required("num_attention_heads", fields.count("num_attention_heads")?)?;
    let hidden = fields.required("hidden_size", fields.count("hidden_size")?)?;
    let layers = fields.required("num_hidden_layers", fields.count("num_hidden_layers")?)?;
    if layers > MAX_LAYERS {
        return Err(fields.error("num_hidden_layers", format!("is {layers}, which is absurd")));
    }
    let eps = fields.required("rms_norm_eps", fields.number("rms_norm_eps")?)?;
    let config = ModelConfig {
        architecture: family.architecture.to_owned(),
        layers,
        hidden,
        intermediate: fields.required("intermediate_size", fields.count("intermediate_size")?)?,
        heads,
        kv_heads: kv_heads(&fields, family, heads)?,
        head_dim: head_dim(&fields, family, hidden, heads)?,
        vocab: fields.required("vocab_size", fields.count("vocab_size")?)?,
        context: fields
            .required("max_position_embeddings", fields.count("max_position_embeddings")?)?,
        rms_eps: eps as f32,
        rope: rope(&fields)?,
        attention_bias: attention_bias(&fields, family)?,
        mlp_bias: mlp_bias(&fields, family)?,
        qk_norm: family.qk_norm,
        tied_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        windows: windows(&fields, family, layers)?,
    };
    config.validate(path)?;
    Ok(config)
}

fn family(fields: &Fields<'_>, body: Body) -> Result<&'static Family, LoadError> {
    const FIELD: &str = "architectures";
    let name = match fields.map.get(FIELD) {
        Some(Value::Array(names)) if names.len() == 1 => names[0].as_str(),
        _ => None,
    };
    let Some(name) = name else {
        return Err(fields.error(FIELD, "must be a list of one name, such as LlamaForCausalLM"));
    };
    let found = FAMILIES.iter().find(|family| family.architecture == name);
    let known = || {
        let names = FAMILIES.iter().filter(|family| family.body == body);
        names.map(|family| family.architecture).collect::<Vec<_>>().join(", ")
    };
    match (found, body) {
        (Some(family), _) if family.body == body => Ok(family),
        (Some(_), Body::Decoder) => Err(fields.error(
            FIELD,
            format!("is {name}, a drafter; give it as the drafter, and its target as the model"),
        )),
        (Some(_), Body::Drafter) => Err(fields
            .error(FIELD, format!("is {name}, which is no drafter; a drafter is {}", known()))),
        (None, _) => Err(fields.error(
            FIELD,
            format!("is {name}, which this engine does not know; it knows {}", known()),
        )),
    }
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), LoadError> {
    if let Some(act) = fields.text("hidden_act")?.filter(|&act| act != "silu") {
        return Err(fields.error("hidden_act", format!("is `{act}`; this engine knows silu")));
    }
    if fields.get("quantization_config").is_some() {
        return Err(fields.error(
            "quantization_config",
            "is set: quantized safetensors are not supported; use the unquantized model or a GGUF",
        ));
    }
    Ok(())
}

fn kv_heads(fields: &Fields<'_>, family: &Family, heads: usize) -> Result<usize, LoadError> {
    const FIELD: &str = "num_key_value_heads";
    match (fields.map.get(FIELD), family.kv_heads) {
        (Some(Value::Null), _) | (None, KvHeads::AsQuery) => Ok(heads),
        _ => fields.required(FIELD, fields.count(FIELD)?),
    }
}

fn head_dim(
    fields: &Fields<'_>,
    family: &Family,
    hidden: usize,
    heads: usize,
) -> Result<usize, LoadError> {
    if let Some(head_dim) = fields.count("head_dim")?.or(family.head_dim) {
        return Ok(head_dim);
    }
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(fields.error(
            "num_attention_heads",
            format!("{heads} heads do not divide hidden_size {hidden}; set head_dim"),
        ));
    }
    Ok(hidden / heads)
}

fn attention_bias(fields: &Fields<'_>, family: &Family) -> Result<AttentionBias, LoadError> {
    match (fields.flag("attention_bias")?, family.optional_bias) {
        (Some(true), Some(bias)) => Ok(bias),
        (Some(true), None) => Err(fields.error(
            "attention_bias",
            format!("is true, but {} has no biases", family.architecture),
        )),
        _ => Ok(family.bias),
    }
}

fn mlp_bias(fields: &Fields<'_>, family: &Family) -> Result<bool, LoadError> {
    let on = fields.flag("mlp_bias")?.unwrap_or(false);
    if on && family.mlp_bias == MlpBias::Never {
        return Err(
            fields.error("mlp_bias", format!("is true, but {} has none", family.architecture))
        );
    }
    Ok(on)
}

/// The sliding window of every layer.
fn windows(
    fields: &Fields<'_>,
    family: &Family,
    layers: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    const FIELD: &str = "sliding_window";
    /// What Mistral and Qwen configurations mean when the field is absent.
    const DEFAULT: usize = 4096;
    let given = fields.count(FIELD)?;
    let size = if fields.map.contains_key(FIELD) { given } else { Some(DEFAULT) };
    let enabled = fields.flag("use_sliding_window")?;
    let size = match family.windows {
        Windows::Every => size,
        Windows::Never if given.is_some() && enabled != Some(false) => {
            return Err(
                fields.error(FIELD, format!("is set, but {} has none", family.architecture))
            );
        }
        Windows::Never => None,
        Windows::Marked if enabled == Some(true) => size,
        // Drafters mark layers and give the size without the flag; only `false` contradicts them.
        Windows::Marked if enabled.is_none() && fields.get("layer_types").is_some() => given,
        Windows::Marked => None,
    };
    match (fields.get("layer_types"), family.windows) {
        (Some(types), _) => marked_windows(fields, types, layers, size),
        (None, Windows::Marked) => {
            let full = fields.count("max_window_layers")?.unwrap_or(28);
            Ok((0..layers).map(|layer| size.filter(|_| layer >= full)).collect())
        }
        (None, _) => Ok(vec![size; layers]),
    }
}

/// Windows by `layer_types`.
fn marked_windows(
    fields: &Fields<'_>,
    types: &Value,
    layers: usize,
    size: Option<usize>,
) -> Result<Vec<Option<usize>>, LoadError> {
    const FIELD: &str = "layer_types";
    let Some(types) = types.as_array().filter(|types| types.len() == layers) else {
        return Err(fields.error(FIELD, format!("must be a list of {layers} layer types")));
    };
    let window = |(layer, kind): (usize, &Value)| match kind.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") if size.is_some() => Ok(size),
        Some("sliding_attention") => Err(fields.error(
            FIELD,
            format!(
                "marks layer {layer} as sliding_attention; that needs a sliding_window, and \
                 use_sliding_window not to be false"
            ),
        )),
        _ => Err(fields.error(
            FIELD,
            format!("layer {layer} is {kind}; known are full_attention and sliding_attention"),
        )),
    };
    types.iter().enumerate().map(window).collect()
}

/// Rotary embedding: `rope_theta` and `rope_scaling`, or both inside `rope_parameters` as
/// transformers 5 writes them.
fn rope(fields: &Fields<'_>) -> Result<Rope, LoadError> {
    const DEFAULT_THETA: f64 = 10_000.0;
    let outer = fields.number("rope_theta")?;
    let old = fields.object("rope_scaling")?;
    let new = fields.object("rope_parameters")?;
    let mut theta = outer;
    let mut scaling = None;
    for section in [old, new].into_iter().flatten() {
        let here = rope_scaling(&section)?;
        if scaling.as_ref().is_some_and(|other| *other != here) {
            return Err(fields.error("rope_parameters", "contradicts rope_scaling"));
        }
        scaling = Some(here);
        if let Some(inner) = section.number("rope_theta")? {
            if theta.is_some_and(|other| other != inner) {
                return Err(section.error("rope_theta", "contradicts another rope_theta"));
            }
            theta = Some(inner);
        }
    }
    for section in std::iter::once(fields).chain([old, new].iter().flatten()) {
        if section.number("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
            return Err(section.error("partial_rotary_factor", "other than 1 is not supported"));
        }
    }
    Ok(Rope {
        theta: theta.unwrap_or(DEFAULT_THETA),
        scaling: scaling.unwrap_or(RopeScaling::None),
    })
}

fn rope_scaling(section: &Fields<'_>) -> Result<RopeScaling, LoadError> {
    // `type` is the field's name in older files.
    let kind = match (section.text("rope_type")?, section.text("type")?) {
        (Some(a), Some(b)) if a != b => {
            return Err(section.error("rope_type", format!("is `{a}`, but type is `{b}`")));
        }
        (a, b) => a.or(b),
    };
    let number = |name| section.required(name, section.number(name)?);
    match kind {
        None if section.map.values().any(Value::is_object) => {
            Err(section.error("rope_type", "per kind of layer is not supported"))
        }
        None if section.get("factor").is_some() => {
            Err(section.error("rope_type", "is missing beside factor"))
        }
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: number("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original_context: number("original_max_position_embeddings")?,
        }),
        Some(other) => Err(section.error(
            "rope_type",
            format!("is `{other}`; this engine knows default, linear and llama3"),
        )),
    }
}

/// The fields of a JSON object; null counts as absent.
#[derive(Clone, Copy)]
struct Fields<'a> {
    path: &'a Path,
    /// Where the object lies in the file: `""` or `rope_scaling.`.
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn error(&self, name: &str, problem: impl Into<String>) -> LoadError {
        LoadError::new(self.path, format!("{}{name}", self.prefix), problem)
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        name: &str,
        wanted: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.error(name, format!("must be {wanted}, found {}", kind(value))))
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| self.error(name, "is missing"))
    }

    fn count(&self, name: &str) -> Result<Option<usize>, LoadError> {
        self.read(name, "a whole number", |value| usize::try_from(value.as_u64()?).ok())
    }

    fn number(&self, name: &str) -> Result<Option<f64>, LoadError> {
        self.read(name, "a number", Value::as_f64)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, LoadError> {
        self.read(name, "true or false", Value::as_bool)
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        self.read(name, "a string", Value::as_str)
    }

    fn object(&self, name: &'static str) -> Result<Option<Fields<'a>>, LoadError> {
        let prefix = match name {
            "rope_scaling" => "rope_scaling.",
            _ => "rope_parameters.",
        };
        let map = self.read(name, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { path: self.path, prefix, map }))
    }
}

/// A JSON value for an error message, cut short by saying only its type where it could be long.
fn kind(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
