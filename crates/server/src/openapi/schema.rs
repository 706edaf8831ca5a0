//! Pieces of JSON Schema (2020-12), which is what OpenAPI 3.1 speaks.

use serde_json::{Map, Value, json};

/// Of a field, with what it is for.
pub(super) type Field = (&'static str, Value, &'static str);

/// A reference to a schema of the document.
pub(super) fn of(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

pub(super) fn string() -> Value {
    json!({"type": "string"})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn number() -> Value {
    json!({"type": "number"})
}

/// A whole number from `least` on.
pub(super) fn count(least: usize) -> Value {
    json!({"type": "integer", "minimum": least})
}

pub(super) fn integer(least: i128, most: i128) -> Value {
    // JSON numbers are read back by readers that know no 128 bits.
    let number = |of: i128| i64::try_from(of).map(Value::from).unwrap_or(json!(of as u64));
    json!({"type": "integer", "minimum": number(least), "maximum": number(most)})
}

/// One of these texts.
pub(super) fn one_of(texts: &[&str]) -> Value {
    json!({"type": "string", "enum": texts})
}

pub(super) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// The ids of tokens.
pub(super) fn ids() -> Value {
    list(integer(0, i128::from(u32::MAX)))
}

pub(super) fn any_of(schemas: impl Into<Vec<Value>>) -> Value {
    json!({ "anyOf": schemas.into() })
}

pub(super) fn nullable(schema: Value) -> Value {
    any_of([schema, json!({"type": "null"})])
}

/// With a word of what it is.
fn described(mut schema: Value, what: &str) -> Value {
    if !what.is_empty() {
        schema["description"] = what.into();
    }
    schema
}

/// An object of a request: fields that must be there, fields that may be, and no others; null is as good
/// as absent.
pub(super) fn request(needed: Vec<Field>, free: Vec<Field>) -> Value {
    let required: Vec<&str> = needed.iter().map(|(name, ..)| *name).collect();
    let mut properties = Map::new();
    for (name, schema, what) in needed {
        properties.insert(name.into(), described(schema, what));
    }
    for (name, schema, what) in free {
        properties.insert(name.into(), described(nullable(schema), what));
    }
    json!({
        "type": "object", "required": required, "properties": properties,
        "additionalProperties": {"type": "null"},
    })
}

/// An object of an answer: fields that are always there, fields that are there sometimes, and no
/// others.
pub(super) fn answer(always: Vec<(&str, Value)>, sometimes: Vec<(&str, Value)>) -> Value {
    let required: Vec<&str> = always.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> = always
        .iter()
        .chain(&sometimes)
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({
        "type": "object", "required": required, "properties": properties,
        "additionalProperties": false,
    })
}

/// This value and no other.
pub(super) fn constant(value: impl Into<Value>) -> Value {
    json!({ "const": value.into() })
}
