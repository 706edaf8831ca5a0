//! Writes safetensors files and the JSON beside them.

use serde_json::{Value, json};
use std::path::Path;

/// A tensor in the making.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

/// An F32 tensor, all of `value`.
pub(crate) fn tensor(name: &str, shape: &[usize], value: f32) -> Tensor {
    let data = value.to_le_bytes().repeat(shape.iter().product());
    Tensor { name: name.into(), dtype: "F32", shape: shape.into(), data }
}

/// A file of these tensors, one behind the other.
pub(crate) fn build(tensors: &[Tensor]) -> Vec<u8> {
    let mut lines = serde_json::Map::new();
    lines.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.data);
        lines.insert(
            tensor.name.clone(),
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]}),
        );
    }
    with_header(&Value::Object(lines).to_string(), &data)
}

/// A file of this header and these data, whatever they are.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// The fields of a tiny model of this architecture.
pub(crate) fn config(architecture: &str) -> Value {
    json!({
        "architectures": [architecture],
        "hidden_act": "silu",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": true,
        "sliding_window": null,
    })
}

/// `base` with the fields of `changes` set; `null` takes a field away.
pub(crate) fn with(mut base: Value, changes: Value) -> Value {
    let fields = base.as_object_mut().expect("a configuration is an object");
    for (name, value) in changes.as_object().expect("changes are an object") {
        if value.is_null() {
            fields.remove(name);
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
    base
}

/// Writes `config.json` and `model.safetensors` into `folder`.
pub(crate) fn write(folder: &Path, config: &Value, tensors: &[Tensor]) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), build(tensors)).unwrap();
}

/// Writes `config.json` and an index with this `weight_map` into `folder`; no shards.
pub(crate) fn write_index(folder: &Path, config: &Value, weight_map: Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let index = json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
