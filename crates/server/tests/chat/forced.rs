//! Answers that must call: every text of the grammar reads as the calls that were asked for.

use crate::common::{calls, made, read};
use constrain::Grammar;
use serde_json::{Value, json};
use server::chat::dialect::{Dialect, TOOL_FORMATS, ToolFormat, ToolPrompt};
use server::chat::{ChatFields, Constraint};

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
        Grammar::Json(schema) if schema.contains("\"properties\"") => vec!["{\"x\": 1}".into()],
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
        other => panic!("{other:?} is not part of calls"),
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
        assert_eq!(constraint(format, &json!("none"), &json!(null)), Constraint::None);
        for choice in [json!(null), json!("auto")] {
            let constraint = constraint(format, &choice, &json!(null));
            assert!(matches!(constraint, Constraint::CallsOr(_)), "{constraint:?}");
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
                Grammar::Json(schema) => {
                    let schema: Value = serde_json::from_str(schema).expect("JSON");
                    found.push(schema["$defs"]["n"]["type"].clone());
                }
                Grammar::Sequence(parts) | Grammar::Choice(parts) => open.extend(parts),
                Grammar::Repeat { item, .. } => open.push(item),
                Grammar::Text(_) => {}
                other => panic!("{other:?} is not part of calls"),
            }
        }
        assert_eq!(found, [json!("integer")]);
    }
}

/// What an answer must be when the model may call `f`, which is strict, or `g`, which is not.
fn strict(
    format: &'static ToolFormat,
    reasoning: Option<&'static server::chat::dialect::Reasoning>,
    parallel: &Value,
) -> Result<Option<Grammar>, server::error::BadRequest> {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}},
        "required": ["x"], "additionalProperties": false});
    let f = json!({"name": "f", "strict": true, "parameters": schema});
    let tools = [f, json!({"name": "g", "strict": false, "parameters": schema})];
    let tools = tools.map(|f| json!({"type": "function", "function": f}));
    let body = json!({"messages": [{"role": "user", "content": "?"}], "tools": tools,
        "parallel_tool_calls": parallel});
    let fields: ChatFields = serde_json::from_value(body).expect("parses");
    let dialect = Dialect { tools: format, prompt: ToolPrompt::Template, reasoning };
    Ok(fields.prepare(&dialect)?.grammar(None, "assistant\n"))
}

/// A call of each format, with and without its mark.
fn call(format: &ToolFormat, name: &str, arguments: &str) -> String {
    match format.name {
        "hermes" => {
            format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            )
        }
        "mistral" => format!("[TOOL_CALLS][{{\"name\": \"{name}\", \"arguments\": {arguments}}}]"),
        "mistral-args" => format!("[TOOL_CALLS]{name}[ARGS]{arguments}"),
        other => panic!("{other} has no marks"),
    }
}

#[test]
fn strict_functions_keep_to_their_schemas_when_the_model_calls_by_itself() {
    for format in TOOL_FORMATS.into_iter().filter(|format| format.name != "llama3") {
        let call = |name, arguments| call(format, name, arguments);
        let grammar = |parallel| {
            let grammar = strict(format, None, &parallel).expect("a good request");
            grammar.expect("strict calls are asked for")
        };
        let (f, g) = (call("f", "{\"x\": 1}"), call("g", "{\"x\": \"any\", \"y\": []}"));
        let several = grammar(json!(null));
        for text in [
            String::new(),
            "Only words, {\"x\": 1}, <tool_ and [TOOL.".into(),
            f.clone(),
            format!("Let me see.\n{f}"),
            format!("{f} Done \u{e9}."),
            format!("{g}\n{f}, {f}"),
        ] {
            assert!(accepts(&several, &text), "{}: {text}", format.name);
        }
        for text in [
            call("f", "{\"x\": \"1\"}"),
            call("f", "{}"),
            call("h", "{\"x\": 1}"),
            call("g", "5"),
            format!("{f} and {}", call("f", "{\"y\": 1}")),
            f[..f.len() - 2].to_owned(),
            format!("Hm. {}", format.name).replace(format.name, &f[..12]),
        ] {
            assert!(!accepts(&several, &text), "{}: {text}", format.name);
        }
        let one = grammar(json!(false));
        assert!(accepts(&one, &format!("So: {f} Done.")) && accepts(&one, "No call."));
        assert!(!accepts(&one, &format!("{f}{f}")), "{}", format.name);
    }
}

#[test]
fn what_is_thought_about_calls_calls_nothing() {
    let (hermes, think) = (&server::chat::dialect::HERMES, &server::chat::dialect::THINK);
    let grammar = strict(hermes, Some(think), &json!(null)).expect("a good request");
    let grammar = grammar.expect("strict calls are asked for");
    let f = call(hermes, "f", "{\"x\": 1}");
    for text in [
        format!("<think>\nA <tool_call> would do.\n</think>\n\nI call.\n{f}"),
        "<think></think>".into(),
        "<thing> <think> <tool>".into(),
        f.clone(),
    ] {
        assert!(accepts(&grammar, &text), "{text}");
    }
    for text in ["<think>\n", "<think>a</think><tool_call>no", "A <tool_call> would do."] {
        assert!(!accepts(&grammar, text), "{text}");
    }
}

#[test]
fn formats_without_marks_refuse_strict_functions_by_name() {
    let error = strict(&server::chat::dialect::LLAMA3, None, &json!(null)).expect_err("no mark");
    assert_eq!(error.param, "tools[0].function.strict");
    assert!(error.problem.contains("`llama3`") && error.problem.contains("tool_choice"), "{error}");
}

/// Whether `text` is one of the grammar's, over a vocabulary of single bytes.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = bytes.iter().map(|byte| byte.as_slice()).collect();
    let grammars = constrain::Grammars::new(&constrain::Vocabulary { pieces, ends: &[] });
    let mut matcher = grammars.compile(grammar).expect("a good grammar").matcher();
    text.bytes().all(|byte| matcher.advance(u32::from(byte)))
        && matcher.allow(&mut [0; 8]) == constrain::End::May
}

/// A constraint is for the answer. What a model thinks before is free, wherever its beginning is.
#[test]
fn what_is_thought_comes_before_what_must_be_said() {
    let hermes = &server::chat::dialect::HERMES;
    let thinks = Some(&server::chat::dialect::THINK);
    for separate in [json!(true), json!(false)] {
        let body = json!({"messages": [{"role": "user", "content": "?"}],
            "separate_reasoning": separate});
        let fields: ChatFields = serde_json::from_value(body).expect("parses");
        let prepared = |reasoning| {
            let dialect = Dialect { tools: hermes, prompt: ToolPrompt::Template, reasoning };
            fields.prepare(&dialect).expect("a good request")
        };
        for (reasoning, tail, good, bad) in [
            (None, "assistant\n", &["yes"][..], &["<think></think>yes", "yes "][..]),
            (
                thinks,
                "assistant\n",
                &["yes", "<think>\nno\n</think>\n\nyes"],
                &["no", "x</think>yes"],
            ),
            (thinks, "assistant\n<think>\n", &["no</think>yes", "</think>\n\nyes"], &["yes", "no"]),
            (thinks, "<think>\n\n</think>\n\n", &["yes"], &["<think></think>yes"]),
        ] {
            let grammar = prepared(reasoning).grammar(Some(Grammar::choice(["yes"])), tail);
            let grammar = grammar.expect("a format is asked for");
            good.iter().for_each(|text| assert!(accepts(&grammar, text), "{tail:?} {text:?}"));
            bad.iter().for_each(|text| assert!(!accepts(&grammar, text), "{tail:?} {text:?}"));
            assert_eq!(prepared(reasoning).grammar(None, tail), None, "nothing is asked for");
        }
    }
}
