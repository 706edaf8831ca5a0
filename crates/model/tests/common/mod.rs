//! Committed fixtures, and GGUF metadata made from JSON.

use model::checkpoint::gguf::{Array, Metadata, Value};
use std::path::{Path, PathBuf};

/// A path below the repository's `fixtures/`.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// A JSON file below `fixtures/`.
pub fn json(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(fixture(path)).expect(path);
    serde_json::from_str(&text).expect(path)
}

/// GGUF metadata with these keys: numbers are UINT32 and INT32, floats FLOAT32.
pub fn metadata(keys: &serde_json::Value) -> Metadata {
    let keys = keys.as_object().expect("an object of keys");
    let values = keys.iter().map(|(key, value)| (key.clone(), to_gguf(value)));
    Metadata::new(Path::new("model.gguf"), values.collect())
}

fn to_gguf(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Bool(flag) => Value::Bool(*flag),
        serde_json::Value::Number(number) => Value::U32(number.as_u64().expect("an id") as u32),
        serde_json::Value::String(text) => Value::String(text.clone()),
        serde_json::Value::Array(items) if items.iter().all(|item| item.is_string()) => {
            let texts = items.iter().filter_map(|item| item.as_str());
            Value::Array(Array::String(texts.map(str::to_owned).collect()))
        }
        serde_json::Value::Array(items) if items.iter().all(|item| item.is_i64()) => {
            let numbers = items.iter().filter_map(|item| item.as_i64());
            Value::Array(Array::I32(numbers.map(|number| number as i32).collect()))
        }
        serde_json::Value::Array(items) => {
            let numbers = items.iter().filter_map(|item| item.as_f64());
            Value::Array(Array::F32(numbers.map(|number| number as f32).collect()))
        }
        other => panic!("no GGUF value for {other}"),
    }
}
