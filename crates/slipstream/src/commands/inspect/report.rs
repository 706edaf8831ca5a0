//! What `inspect` found, before it is written down.

use model::LoadError;
use model::chat::ChatTemplate;
use model::checkpoint::{Checkpoint, TensorInfo};
use model::config::{AttentionBias, ModelConfig, RopeScaling};
use model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Names and values, in the order they are shown.
pub(super) type Pairs = Vec<(&'static str, Value)>;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    /// `GGUF`, `safetensors` or `DFlash drafter`.
    pub(super) kind: &'static str,
    pub(super) architecture: String,
    /// Elements of all tensors.
    pub(super) parameters: u64,
    /// Bytes of all weight files.
    pub(super) file_bytes: u64,
    #[serde(serialize_with = "object")]
    pub(super) config: Pairs,
    #[serde(serialize_with = "optional_object")]
    pub(super) drafter: Option<Pairs>,
    pub(super) formats: Vec<FormatGroup>,
    #[serde(skip)]
    pub(super) shapes: Vec<ShapeGroup>,
    pub(super) tensors: Vec<TensorLine>,
    #[serde(serialize_with = "tokenizer_section")]
    pub(super) tokenizer: Section<Pairs>,
    #[serde(serialize_with = "text_section")]
    pub(super) template: Section<String>,
    pub(super) notes: Vec<String>,
}

/// A part of a checkpoint.
#[derive(Debug)]
pub(super) enum Section<T> {
    /// Checkpoints of this kind have none.
    NotExpected,
    /// This one has none.
    Absent,
    /// It cannot be used.
    Broken(LoadError),
    /// It can.
    Present(T),
}

/// All tensors of one format.
#[derive(Debug, Serialize)]
pub(super) struct FormatGroup {
    pub(super) format: &'static str,
    pub(super) tensors: usize,
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

/// Tensors that differ only in their layer.
#[derive(Debug)]
pub(super) struct ShapeGroup {
    /// The name, `N` for the layer.
    pub(super) name: String,
    pub(super) format: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) count: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct TensorLine {
    pub(super) name: String,
    pub(super) format: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
}

impl Report {
    /// Opens the checkpoint or drafter at `path`. A tokenizer or template that cannot be used is
    /// part of the report.
    ///
    /// # Errors
    /// A checkpoint that cannot be opened.
    pub(super) fn read(path: &Path) -> Result<Report, LoadError> {
        let drafter = path.is_dir().then(|| drafter_config(path)).flatten();
        let checkpoint = match drafter {
            Some(_) => Checkpoint::open_drafter(path)?,
            None => Checkpoint::open(path)?,
        };
        let tensors: Vec<TensorInfo<'_>> = checkpoint.tensors().collect();
        let elements = |tensor: &TensorInfo<'_>| tensor.shape.iter().product::<usize>() as u64;
        let (tokenizer, template) = match drafter {
            Some(_) => (Section::NotExpected, Section::NotExpected),
            None => language(&checkpoint),
        };
        Ok(Report {
            path: path.display().to_string(),
            kind: match (&drafter, checkpoint.gguf()) {
                (Some(_), _) => "DFlash drafter",
                (None, Some(_)) => "GGUF",
                (None, None) => "safetensors",
            },
            architecture: checkpoint.config().architecture.clone(),
            parameters: tensors.iter().map(elements).sum(),
            file_bytes: checkpoint.file_bytes(),
            config: config(checkpoint.config()),
            drafter,
            formats: by_format(&tensors),
            shapes: by_shape(&tensors),
            tensors: tensors
                .iter()
                .map(|tensor| TensorLine {
                    name: tensor.name.to_owned(),
                    format: tensor.format.name(),
                    shape: tensor.shape.to_vec(),
                    bytes: tensor.bytes as u64,
                })
                .collect(),
            tokenizer,
            template,
            notes: checkpoint.notes().to_vec(),
        })
    }

    /// What is broken, for the exit code.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Section::Broken(problem) = &self.tokenizer {
            problems.push(problem.to_string());
        }
        if let Section::Broken(problem) = &self.template {
            problems.push(problem.to_string());
        }
        problems
    }
}

/// The DFlash fields of a folder's `config.json`, when it is a drafter's.
fn drafter_config(folder: &Path) -> Option<Pairs> {
    let text = fs::read_to_string(folder.join("config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    let architectures = config.get("architectures")?.as_array()?;
    if !architectures.iter().any(|name| name == "DFlashDraftModel") {
        return None;
    }
    let field = |name: &'static str| {
        let nested = config.get("dflash_config").and_then(|section| section.get(name));
        (name, nested.or_else(|| config.get(name)).cloned().unwrap_or(Value::Null))
    };
    let fields =
        ["block_size", "block_sizes", "num_target_layers", "mask_token_id", "target_layer_ids"];
    let mut fields: Pairs = fields.into_iter().map(field).collect();
    // They are too many to be read: how many.
    let (_, proposed) = field("proposed_ids");
    fields.push(("proposed_ids", proposed.as_array().map(Vec::len).into()));
    Some(fields)
}

fn language(checkpoint: &Checkpoint) -> (Section<Pairs>, Section<String>) {
    let tokenizer = match Tokenizer::load(checkpoint) {
        Ok(tokenizer) => tokenizer,
        // A template is compiled with the tokenizer's special tokens.
        Err(error) => return (Section::Broken(error), Section::NotExpected),
    };
    let template = match ChatTemplate::load(checkpoint, &tokenizer) {
        Ok(Some(_)) => Section::Present(template_text(checkpoint).unwrap_or_default()),
        Ok(None) => Section::Absent,
        Err(error) => Section::Broken(error),
    };
    let named = |id: u32| format!("{} {id}", tokenizer.name(id));
    let ends: Vec<String> = tokenizer.end_ids().iter().map(|&id| named(id)).collect();
    let pairs = vec![
        ("kind", json!(tokenizer_kind(checkpoint))),
        ("tokens", json!(tokenizer.len())),
        ("bos", tokenizer.bos().map_or(Value::Null, |id| json!(named(id)))),
        ("end", json!(ends.join(", "))),
    ];
    (Section::Present(pairs), template)
}

/// The tokenizer's kind in its file's own words.
fn tokenizer_kind(checkpoint: &Checkpoint) -> String {
    if let Some(gguf) = checkpoint.gguf() {
        let text = |key| gguf.string(key).ok().flatten().unwrap_or("unnamed");
        return format!("{}/{}", text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
    }
    let kind = checkpoint.folder().and_then(|folder| {
        let text = fs::read_to_string(folder.join("tokenizer.json")).ok()?;
        let file: Value = serde_json::from_str(&text).ok()?;
        Some(file.get("model")?.get("type")?.as_str()?.to_owned())
    });
    format!("tokenizer.json, {}", kind.as_deref().unwrap_or("unnamed"))
}

/// The template as it is written, from where [`ChatTemplate::load`] takes it.
fn template_text(checkpoint: &Checkpoint) -> Option<String> {
    if let Some(gguf) = checkpoint.gguf() {
        return gguf.string("tokenizer.chat_template").ok()?.map(str::to_owned);
    }
    let folder = checkpoint.folder()?;
    if let Ok(text) = fs::read_to_string(folder.join("chat_template.jinja")) {
        return Some(text);
    }
    let text = fs::read_to_string(folder.join("tokenizer_config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    match config.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        // A list of named templates: the one used is called `default`.
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").is_some_and(|name| name == "default"))
            .and_then(|entry| Some(entry.get("template")?.as_str()?.to_owned())),
        _ => None,
    }
}

fn config(config: &ModelConfig) -> Pairs {
    let window = config.windows.iter().flatten().next();
    let bias = match config.attention_bias {
        AttentionBias::None => "none",
        AttentionBias::Qkv => "q, k, v",
        AttentionBias::Qkvo => "q, k, v, o",
    };
    let scaling = match &config.rope.scaling {
        RopeScaling::None => "none".to_owned(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Llama3 { factor, low, high, original_context } => format!(
            "llama3, factor {factor}, low {low}, high {high}, original context {original_context}"
        ),
        RopeScaling::Factors(factors) => format!("{} divisors from the file", factors.len()),
    };
    vec![
        ("layers", json!(config.layers)),
        ("hidden", json!(config.hidden)),
        ("intermediate", json!(config.intermediate)),
        ("heads", json!(config.heads)),
        ("kv heads", json!(config.kv_heads)),
        ("head size", json!(config.head_dim)),
        ("vocabulary", json!(config.vocab)),
        ("context", json!(config.context)),
        ("rms epsilon", shortest(config.rms_eps)),
        ("rope theta", json!(config.rope.theta)),
        ("rope scaling", json!(scaling)),
        ("attention bias", json!(bias)),
        ("mlp bias", json!(config.mlp_bias)),
        ("q/k norms", json!(config.qk_norm)),
        ("tied embeddings", json!(config.tied_embeddings)),
        ("sliding window", window.map_or(Value::Null, |window| json!(window))),
    ]
}

/// The number with the digits it was written with, not those of its nearest `f32`.
fn shortest(number: f32) -> Value {
    json!(number.to_string().parse::<f64>().expect("a printed number reads back"))
}

fn by_format(tensors: &[TensorInfo<'_>]) -> Vec<FormatGroup> {
    let mut groups = BTreeMap::new();
    for tensor in tensors {
        let format = tensor.format.name();
        let empty = FormatGroup { format, tensors: 0, elements: 0, bytes: 0 };
        let group = groups.entry(format).or_insert(empty);
        group.tensors += 1;
        group.elements += tensor.shape.iter().product::<usize>() as u64;
        group.bytes += tensor.bytes as u64;
    }
    groups.into_values().collect()
}

/// Tensors of the same name but for the layer, format and shape, in the order of their names.
fn by_shape(tensors: &[TensorInfo<'_>]) -> Vec<ShapeGroup> {
    let mut groups: BTreeMap<(String, &'static str, Vec<usize>), usize> = BTreeMap::new();
    for tensor in tensors {
        let key = (without_layer(tensor.name), tensor.format.name(), tensor.shape.to_vec());
        *groups.entry(key).or_default() += 1;
    }
    groups
        .into_iter()
        .map(|((name, format, shape), count)| ShapeGroup { name, format, shape, count })
        .collect()
}

fn without_layer(name: &str) -> String {
    let numeric = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> =
        name.split('.').map(|part| if numeric(part) { "N" } else { part }).collect();
    parts.join(".")
}

fn map(pairs: &Pairs) -> Map<String, Value> {
    pairs.iter().map(|(key, value)| (key.replace([' ', '/'], "_"), value.clone())).collect()
}

fn object<S: serde::Serializer>(pairs: &Pairs, serializer: S) -> Result<S::Ok, S::Error> {
    map(pairs).serialize(serializer)
}

fn optional_object<S: serde::Serializer>(
    pairs: &Option<Pairs>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    pairs.as_ref().map(map).serialize(serializer)
}

fn tokenizer_section<S: serde::Serializer>(
    section: &Section<Pairs>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value(section, |pairs| Value::Object(map(pairs))).serialize(serializer)
}

fn text_section<S: serde::Serializer>(
    section: &Section<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value(section, |text| json!(text)).serialize(serializer)
}

/// `null` when there is none, `{"error": …}` when it cannot be used.
fn value<T>(section: &Section<T>, present: impl Fn(&T) -> Value) -> Value {
    match section {
        Section::NotExpected | Section::Absent => Value::Null,
        Section::Broken(problem) => json!({ "error": problem.to_string() }),
        Section::Present(content) => present(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::format::Format;

    #[test]
    fn tensors_are_grouped() {
        let tensor = |name, shape, format, bytes| TensorInfo { name, shape, format, bytes };
        let tensors = [
            tensor("model.layers.0.mlp.up_proj.weight", &[4, 32][..], Format::Q8_0, 136),
            tensor("model.layers.10.mlp.up_proj.weight", &[4, 32][..], Format::Q8_0, 136),
            tensor("model.norm.weight", &[32][..], Format::F32, 128),
        ];
        let formats = by_format(&tensors);
        let lines: Vec<_> =
            formats.iter().map(|g| (g.format, g.tensors, g.elements, g.bytes)).collect();
        assert_eq!(lines, [("F32", 1, 32, 128), ("Q8_0", 2, 256, 272)]);
        let shapes = by_shape(&tensors);
        let lines: Vec<_> = shapes.iter().map(|g| (g.name.as_str(), g.count)).collect();
        assert_eq!(lines, [("model.layers.N.mlp.up_proj.weight", 2), ("model.norm.weight", 1)]);
    }

    #[test]
    fn numbers_keep_the_digits_they_were_written_with() {
        assert_eq!(shortest(1e-6).to_string(), "1e-6");
    }

    #[test]
    fn a_broken_section_is_an_error_object() {
        let broken: Section<String> = Section::Broken(LoadError::new("f", "tokenizer", "is gone"));
        let json = value(&broken, |text| json!(text));
        assert_eq!(json, json!({ "error": "f: tokenizer: is gone" }));
    }
}
