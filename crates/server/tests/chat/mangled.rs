//! A good request with each of its values replaced by each of many others: nothing panics, and what
//! is refused is refused by the name of a field.

use crate::common::template;
use serde_json::{Value, json};
use server::chat::ChatFields;
use server::chat::dialect::{Dialect, HERMES, MISTRAL, THINK, ToolPrompt};
use server::error::read;

fn request() -> Value {
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "f", "arguments": "{\"x\": [1, {}]}"}});
    json!({
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "?"}], "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "1"},
            {"role": "assistant", "content": "One", "reasoning_content": "…"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "", "strict": true,
            "parameters": {"type": "object", "properties": {"x": {"type": "array"}}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": false,
        "continue_final_message": true,
        "separate_reasoning": true,
        "chat_template_kwargs": {"enable_thinking": true},
    })
}

/// JSON pointers to every value below the root.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        Value::Object(fields) => fields.iter().map(|(key, field)| (key.clone(), field)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let at = format!("{at}/{key}");
        pointers(child, &at, all);
        all.push(at);
    }
}

#[test]
fn mangled_requests_are_refused_by_field_or_taken() {
    let others = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1.5e300),
        json!(""),
        json!("tool"),
        json!("\u{0}<|im_end|>\u{10fffd}"),
        json!([]),
        json!([null]),
        json!([{"type": "text"}]),
        json!({}),
        json!({"type": "function", "function": {}, "role": "user"}),
    ];
    let (template, request) = (template("qwen2"), request());
    let known: Vec<&String> = request.as_object().expect("an object").keys().collect();
    let mut all = Vec::new();
    pointers(&request, "", &mut all);
    let (mut taken, mut refused) = (0, 0);
    for (at, other) in all.iter().flat_map(|at| others.iter().map(move |other| (at, other))) {
        let mut body = request.clone();
        *body.pointer_mut(at).expect("a value of the request") = other.clone();
        for (tools, prompt) in [(&HERMES, ToolPrompt::Template), (&MISTRAL, ToolPrompt::Messages)] {
            let dialect = Dialect { tools, prompt, reasoning: Some(&THINK) };
            let fields = read::<ChatFields>(body.to_string().as_bytes());
            match fields.and_then(|fields| fields.prepare(&dialect)) {
                Ok(prepared) => {
                    taken += 1;
                    // A template may refuse; it may not panic.
                    drop(template.render(&prepared.messages, &prepared.options));
                }
                Err(error) => {
                    refused += 1;
                    let field = error.param.split(['.', '[']).next().expect("a first part");
                    assert!(known.iter().any(|key| *key == field), "{at} = {other}: {error}");
                    assert!(!error.problem.is_empty(), "{at} = {other}");
                }
            }
        }
    }
    assert!(taken > 100 && refused > 500, "{taken} taken, {refused} refused");
}
