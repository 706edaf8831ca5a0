//! Two hundred schemas: what is written is valid by them.

use crate::{engine, pair, request, same_with_drafts};
use constrain::Grammar;
use engine::{FinishReason, Request, Sampling};
use serde_json::{Value, json};
use server::Grammars;

/// Schemas of single values: every keyword that can be kept to, and the ways they go together.
fn values() -> Vec<Value> {
    vec![
        json!({"type": "string", "maxLength": 6}),
        json!({"type": "string", "minLength": 2, "maxLength": 4}),
        json!({"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}),
        json!({"type": "string", "pattern": "^(red|green)-[a-f]+$", "maxLength": 10}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"enum": ["north", "south", "é\n\"x\"", 7, null, [1, {"a": false}]]}),
        json!({"const": {"kind": "point", "at": [0, -1.5]}}),
        json!({"type": "integer", "minimum": -20, "maximum": 20}),
        json!({"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1001}),
        json!({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2.25}),
        json!({"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1}),
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"type": ["integer", "null", "boolean"], "maximum": 9, "minimum": 0}),
        json!({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["maybe"]}]}),
        json!({"oneOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 3}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"],
                "additionalProperties": false},
            {"type": "object", "properties": {"k": {"const": "b"}, "n": {"type": "null"}},
                "required": ["k", "n"], "additionalProperties": false}
        ]}),
        json!({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}]}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}),
        json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9},
            "minItems": 2, "maxItems": 2}),
        json!({"type": "array", "prefixItems": [{"const": 1}, {"type": "null"}], "items": false,
            "minItems": 2}),
        json!({"type": "array", "maxItems": 0}),
        json!({"type": "object", "additionalProperties": false}),
        json!({"type": "object", "properties": {"ok": {"type": "boolean"}},
            "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}},
            "required": ["b"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0},
            "y": {"enum": ["left", "right"]}}, "required": ["x", "y"],
            "additionalProperties": false}),
        json!({"type": "object", "patternProperties": {"^[a-c]$": {"type": "boolean"}},
            "additionalProperties": false, "minProperties": 1, "maxProperties": 2}),
        json!({"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 1}),
        json!({"type": "object", "properties": {"in": {"type": "object",
            "properties": {"deep": {"type": "boolean"}}, "required": ["deep"],
            "additionalProperties": false}}, "required": ["in"], "additionalProperties": false}),
        json!({"title": "Level", "description": "How loud.", "default": 1, "type": "integer",
            "minimum": 0, "maximum": 10}),
        json!({"type": "string", "maxLength": 3, "minLength": 3}),
        json!({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}),
        json!({"enum": [true, 0]}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 1},
            "minItems": 1, "maxItems": 2}),
        json!({"type": "string", "enum": ["a long text that a model would not choose", "x"]}),
        json!({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3}),
    ]
}

/// The schema alone, and in the places where schemas stand.
fn placed(value: &Value) -> [Value; 5] {
    [
        value.clone(),
        json!({"type": "object", "properties": {"value": value}, "required": ["value"],
            "additionalProperties": false}),
        json!({"type": "array", "items": value, "minItems": 1, "maxItems": 1}),
        json!({"$defs": {"one": value}, "type": "object",
            "properties": {"id": {"type": "boolean"}, "one": {"$ref": "#/$defs/one"}},
            "required": ["one"], "additionalProperties": false}),
        json!({"anyOf": [{"type": "object", "properties": {"answer": value},
            "required": ["answer"], "additionalProperties": false}, {"const": "none"}]}),
    ]
}

fn schemas() -> Vec<Value> {
    values().iter().flat_map(placed).collect()
}

#[test]
fn two_hundred_schemas_give_valid_documents_only() {
    let schemas = schemas();
    assert_eq!(schemas.len(), 200);
    let pair = pair();
    let grammars = Grammars::new(pair.tokenizer.clone());
    let judges: Vec<_> = schemas
        .iter()
        .map(|schema| {
            let judge = jsonschema::options().should_validate_formats(true).build(schema);
            judge.expect("a good schema")
        })
        .collect();
    let ask = |(seed, schema): (usize, &Value)| {
        let compiled = grammars.compile(&Grammar::Json(schema.to_string()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{schema} {error}"));
        request(&pair, &format!("Give JSON by this schema: {schema}"), Some(compiled), seed as u64)
    };
    let requests: Vec<Request> = schemas.iter().enumerate().map(ask).collect();
    let mut engine = engine(pair);
    for temperature in [1.0, 0.0] {
        let warmed = requests.iter().cloned().map(|request| Request {
            sampling: Sampling { temperature, ..request.sampling },
            ..request
        });
        let outputs = same_with_drafts(&mut engine, warmed.collect());
        let accepted: usize = outputs.iter().map(|output| output.stats.accepted_drafts()).sum();
        assert!(accepted > 0, "no draft was ever accepted");
        let mut whole = 0;
        for ((schema, judge), output) in schemas.iter().zip(&judges).zip(&outputs) {
            let text = &output.text;
            if output.reason == FinishReason::Length {
                println!("cut: {schema} {text:?}");
                continue;
            }
            assert_eq!(output.reason, FinishReason::Stop, "{schema}: {text}");
            let document: Value = serde_json::from_str(text)
                .unwrap_or_else(|error| panic!("T {temperature}, {schema}: {text} {error}"));
            assert!(judge.is_valid(&document), "T {temperature}, {schema}: {text}");
            whole += 1;
        }
        // The others were cut at their length.
        assert!(whole >= 170, "T {temperature}: only {whole} came to their end");
    }
}
