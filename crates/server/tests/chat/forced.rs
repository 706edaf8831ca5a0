//! Answers that must call: every text of the grammar reads as the calls that were asked for.

use crate::common::{calls, made, read};
use serde_json::{Value, json};
use server::chat::dialect::{Dialect, TOOL_FORMATS, ToolFormat, ToolPrompt};
use server::chat::{ChatFields, Constraint, Grammar};

fn constraint(format: &'static ToolFormat, choice: &Value, parallel: &Value) -> Constraint {
    let f = json!({"name": "f", "parameters": {"$defs": {"n": {"type": "integer"}},
        "type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["x"]}});
    let tools = [f, json!({"name": "g"})].map(|f| json!({"type": "function", "function": f}));
    let body = json!({"messages": [{"role": "user", "content": "?"}], "tools": tools,
        "tool_choice": choice, "parallel_tool_calls": parallel});
    let fields: ChatFields = serde_json::from_value(body).expect("parses");
    let dialect = Dialect { tools: format, prompt: ToolPrompt::Template, reasoning: None };
    fields.prepare(&dialect).expect("a good request").constraint
}

/// Texts of the grammar: each choice once, and repetitions of one and of two items.
fn texts(grammar: &Grammar) -> Vec<String> {
    match grammar {
        Grammar::Text(text) => vec![text.clone()],
        Grammar::Json(schema) if schema.get("properties").is_some() => vec!["{\"x\": 1}".into()],
        Grammar::Json(_) => vec!["{}".into()],
        Grammar::Choice(choices) => choices.iter().flat_map(texts).collect(),
        Grammar::Sequence(parts) => parts.iter().fold(vec![String::new()], |heads, part| {
            let tails = texts(part);
            heads
                .iter()
                .flat_map(|head| tails.iter().map(move |tail| format!("{head}{tail}")))
                .collect()
        }),
        Grammar::Repeat { item, between } => {
            let (items, between) = (texts(item), texts(between));
            let between = &between[0];
            let pairs = items.iter().flat_map(|first| {
                items.iter().map(move |second| format!("{first}{between}{second}"))
            });
            items.iter().cloned().chain(pairs).collect()
        }
    }
}

fn forced(
    format: &'static ToolFormat,
    choice: &Value,
    parallel: &Value,
) -> Vec<Vec<(String, String)>> {
    let Constraint::Calls(grammar) = constraint(format, choice, parallel) else {
        panic!("{choice} forces a call");
    };
    let read = |text: &String| {
        let reply = read(&calls(format), text);
        assert_eq!(reply.content, None, "{text}");
        made(&reply).into_iter().map(|(name, args)| (name.to_owned(), args.to_owned())).collect()
    };
    texts(&grammar).iter().map(read).collect()
}

#[test]
fn forced_answers_are_calls_in_every_format() {
    let f = || ("f".to_owned(), "{\"x\": 1}".to_owned());
    let g = || ("g".to_owned(), "{}".to_owned());
    for format in TOOL_FORMATS {
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(forced(format, &named, &json!(null)), [[f()]]);
        assert_eq!(forced(format, &json!("required"), &json!(false)), [[f()], [g()]]);
        let several = forced(format, &json!("required"), &json!(null));
        assert_eq!(several[..2], [vec![f()], vec![g()]]);
        assert_eq!(several[2..], [[f(), f()], [f(), g()], [g(), f()], [g(), g()]]);
    }
}

#[test]
fn free_answers_are_free() {
    for format in TOOL_FORMATS {
        for choice in [json!(null), json!("auto"), json!("none")] {
            assert_eq!(constraint(format, &choice, &json!(null)), Constraint::None);
        }
    }
}

#[test]
fn schemas_stay_documents_of_their_own() {
    let named = json!({"type": "function", "function": {"name": "f"}});
    for format in TOOL_FORMATS {
        let Constraint::Calls(grammar) = constraint(format, &named, &json!(null)) else {
            panic!("a named function forces a call");
        };
        let mut found = Vec::new();
        let mut open = vec![&grammar];
        while let Some(grammar) = open.pop() {
            match grammar {
                Grammar::Json(schema) => found.push(schema["$defs"]["n"]["type"].clone()),
                Grammar::Sequence(parts) | Grammar::Choice(parts) => open.extend(parts),
                Grammar::Repeat { item, .. } => open.push(item),
                Grammar::Text(_) => {}
            }
        }
        assert_eq!(found, [json!("integer")]);
    }
}
