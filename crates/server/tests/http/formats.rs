//! What an answer must be: every field that says so, every refusal of one, and tools that must be
//! called. The tiny pair talks nonsense, so what is right is so by the constraint.

use crate::site::{Setup, Site};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";

fn body(path: &str, field: &str, value: &Value) -> Value {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90}),
        COMPLETIONS => json!({"prompt": "hi", "max_tokens": 90}),
        _ => json!({"text": "hi", "sampling_params": {"max_new_tokens": 90}}),
    };
    let place = if path == GENERATE { &mut body["sampling_params"] } else { &mut body };
    place[field] = value.clone();
    body
}

/// Text and finish reason of an answer.
fn said(path: &str, answer: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choice = &answer["choices"][0];
    match path {
        CHAT => (text(&choice["message"]["content"]), text(&choice["finish_reason"])),
        COMPLETIONS => (text(&choice["text"]), text(&choice["finish_reason"])),
        _ => (text(&answer["text"]), text(&answer["meta_info"]["finish_reason"]["type"])),
    }
}

/// A schema with one value.
fn schema() -> Value {
    json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
        "additionalProperties": false})
}

/// A field, its value, and whether a text is what they say.
type Field = (&'static str, Value, fn(&str) -> bool);

/// Fields that say what an answer must be.
fn fields() -> Vec<Field> {
    let is_a: fn(&str) -> bool =
        |text| serde_json::from_str::<Value>(text).is_ok_and(|value| value == json!({"a": 1}));
    let is_b: fn(&str) -> bool = |text| ["left", "right"].contains(&text);
    let is_x: fn(&str) -> bool = |text| text == "xxyy";
    let named = json!({"name": "one", "description": "?", "strict": true, "schema": schema()});
    let ebnf = "root ::= x{2} y\nx ::= [x]\ny ::= \"y\" \"y\" # two of them\n";
    let lark = "start: X Y\nX: \"xx\"\nY: \"yy\"\n";
    vec![
        ("response_format", json!({"type": "json_schema", "json_schema": named}), is_a),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": schema()}}),
            is_a,
        ),
        ("guided_json", schema(), is_a),
        ("guided_json", json!(schema().to_string()), is_a),
        ("json_schema", json!(schema().to_string()), is_a),
        ("structured_outputs", json!({"json": schema()}), is_a),
        ("guided_choice", json!(["left", "right"]), is_b),
        ("structured_outputs", json!({"choice": ["left", "right"]}), is_b),
        ("guided_regex", json!("x{2}y{2}"), is_x),
        ("regex", json!("x{2}y{2}"), is_x),
        ("structured_outputs", json!({"regex": "x{2}y{2}"}), is_x),
        ("guided_grammar", json!(lark), is_x),
        ("structured_outputs", json!({"grammar": lark}), is_x),
        ("guided_grammar", json!(ebnf), is_x),
        ("structured_outputs", json!({"grammar": ebnf}), is_x),
        ("ebnf", json!(ebnf), is_x),
    ]
}

#[test]
fn every_field_makes_answers_what_it_says() {
    let site = Site::tiny(Setup::default());
    for path in [CHAT, COMPLETIONS, GENERATE] {
        for (field, value, is_right) in fields() {
            let (text, reason) = said(path, &site.ask(path, &body(path, field, &value)));
            assert!(is_right(&text), "{path} {field} {value}: {text:?}");
            assert_eq!(reason, "stop", "{path} {field} {value}: {text:?}");
        }
    }
    assert!(site.metric("slipstream_step_seconds_total{part=\"masks\"}") > 0.0);
}

#[test]
fn what_says_nothing_changes_nothing() {
    let site = Site::tiny(Setup::default());
    let ask = |field: &str, value: Value| {
        let mut body = body(COMPLETIONS, field, &value);
        (body["seed"], body["max_tokens"]) = (4.into(), 8.into());
        said(COMPLETIONS, &site.ask(COMPLETIONS, &body))
    };
    let free = ask("user", json!("me"));
    for (field, value) in [
        ("response_format", json!({"type": "text"})),
        ("response_format", json!(null)),
        ("guided_regex", json!("")),
        ("guided_choice", json!([])),
        ("structured_outputs", json!({})),
        ("structured_outputs", json!({"json_object": false, "regex": null})),
    ] {
        assert_eq!(ask(field, value.clone()), free, "{field} {value}");
    }
}

#[test]
fn an_object_is_an_object_streamed_or_not() {
    let site = Site::tiny(Setup::default());
    for value in [
        json!({"type": "json_object"}),
        json!({"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}}}),
    ] {
        let mut body = body(COMPLETIONS, "response_format", &value);
        (body["seed"], body["ignore_eos"]) = (11.into(), true.into());
        let (whole, reason) = said(COMPLETIONS, &site.ask(COMPLETIONS, &body));
        let events = site.stream(COMPLETIONS, &body);
        let pieces = events.iter().map(|e| e["choices"][0]["text"].as_str().unwrap_or_default());
        assert_eq!(pieces.collect::<String>(), whole);
        assert!(whole.starts_with('{'), "{whole:?}");
        let parsed = serde_json::from_str::<Value>(&whole);
        assert_eq!(parsed.is_ok(), reason == "stop", "{reason}: {whole:?}");
        let broken = parsed.err().is_some_and(|error| !error.is_eof());
        assert!(!broken, "the beginning of JSON: {whole:?}");
    }
}

#[test]
fn every_bad_format_is_refused_by_its_name() {
    let site = Site::tiny(Setup::default());
    let of = |schema: Value| json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let at = "response_format.json_schema.schema";
    let long = "x".repeat(100_000);
    for (field, value, param) in [
        ("response_format", json!("json"), "response_format"),
        ("response_format", json!({}), "response_format.type"),
        ("response_format", json!({"type": "xml"}), "response_format.type"),
        ("response_format", json!({"type": "text", "more": 1}), "response_format.more"),
        ("response_format", json!({"type": "json_schema"}), "response_format.json_schema"),
        ("response_format", json!({"type": "json_schema", "json_schema": {}}), at),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"strict": 1, "schema": {}}}),
            "response_format.json_schema.strict",
        ),
        ("response_format", of(json!([])), at),
        ("response_format", of(json!({"not": {}})), at),
        ("response_format", of(json!({"type": "integer", "minimum": 2, "maximum": 1})), at),
        ("response_format", of(json!({"enum": [long]})), at),
        ("guided_json", json!("{"), "guided_json"),
        ("guided_json", json!(5), "guided_json"),
        ("guided_regex", json!("("), "guided_regex"),
        ("guided_regex", json!(["a"]), "guided_regex"),
        ("guided_choice", json!([1]), "guided_choice[0]"),
        ("guided_grammar", json!("start: nothing"), "guided_grammar"),
        ("guided_grammar", json!("root ::= nothing"), "guided_grammar"),
        ("ebnf", json!("start: nothing"), "ebnf"),
        ("ebnf", json!(5), "ebnf"),
        ("structured_outputs", json!("json"), "structured_outputs"),
        ("structured_outputs", json!({"regex": "(?<=a)b"}), "structured_outputs.regex"),
        (
            "structured_outputs",
            json!({"structural_tag": "{}"}),
            "structured_outputs.structural_tag",
        ),
        ("structured_outputs", json!({"regex": "a", "choice": ["a"]}), "structured_outputs.choice"),
    ] {
        for path in [CHAT, COMPLETIONS, GENERATE] {
            let prefix = if path == GENERATE { "sampling_params." } else { "" };
            let (status, named, _) = site.post(path, &body(path, field, &value)).refusal();
            let want = format!("{prefix}{param}");
            assert_eq!((status, named), (400, want), "{path} {field} {value:.80}");
        }
    }
    let mut both = body(CHAT, "guided_regex", &json!("a"));
    both["guided_choice"] = json!(["a"]);
    let refused = site.post(CHAT, &both);
    assert_eq!(refused.refusal().1, "guided_choice");
    assert!(refused.text.contains("cannot be had with `guided_regex`"), "{}", refused.text);
}

/// However a schema was made, it is compiled or refused, and others are answered meanwhile.
#[test]
fn hostile_schemas_are_refused_and_hurt_nobody() {
    let site = Site::tiny(Setup::default());
    let branch = |i: usize| {
        json!({"anyOf": [{"properties": {format!("a{i}"): {"type": "null"}}},
            {"properties": {format!("b{i}"): {}}}]})
    };
    let product = json!({"allOf": (0..14).map(branch).collect::<Vec<_>>()});
    let deep = "{\"properties\":{\"a\":".repeat(300) + "{}" + &"}}".repeat(300);
    let lark: String = (0..60).map(|i| format!("R{i}: R{0} R{0}\n", i + 1)).collect();
    for (field, value) in [
        ("guided_json", product),
        ("guided_json", json!(deep)),
        ("guided_json", json!({"$ref": "#"})),
        ("guided_json", json!({"$ref": "http://127.0.0.1:9/x.json"})),
        ("guided_grammar", json!(format!("{lark}R60: \"y\"\nstart: R0\n"))),
        ("guided_regex", json!("(".repeat(50_000))),
    ] {
        let (status, param, _) = site.post(CHAT, &body(CHAT, field, &value)).refusal();
        assert_eq!((status, param.as_str()), (400, field), "{value:.80}");
    }
    let fine = site.ask(CHAT, &body(CHAT, "guided_choice", &json!(["left", "right"])));
    assert!(["left", "right"].contains(&said(CHAT, &fine).0.as_str()));
    assert_eq!(site.load(), (0, 0));
}

fn tools() -> Value {
    let unit = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "weather", "strict": true, "parameters": unit}},
        {"type": "function", "function": {"name": "time"}},
    ])
}

#[test]
fn tools_that_must_be_called_are_called() {
    let site = Site::tiny(Setup::default());
    for (choice, names) in
        [(json!("required"), &["weather", "time"][..]), (named("weather"), &["weather"])]
    {
        let mut whole = 0;
        for seed in 0..6 {
            let mut body = body(CHAT, "tool_choice", &choice);
            (body["tools"], body["seed"], body["parallel_tool_calls"]) =
                (tools(), seed.into(), false.into());
            body["max_tokens"] = 120.into();
            let answer = site.ask(CHAT, &body);
            let choice = &answer["choices"][0];
            // Bytes are tokens here, so an indented call may be longer than there is room for.
            if choice["finish_reason"] == "length" {
                continue;
            }
            whole += 1;
            // Where the request names the function, the model did not choose to call.
            let reason = if names.len() == 1 { "stop" } else { "tool_calls" };
            assert_eq!(choice["finish_reason"], reason, "{answer}");
            let calls = choice["message"]["tool_calls"].as_array().expect("calls");
            assert_eq!(calls.len(), 1);
            let function = &calls[0]["function"];
            let name = function["name"].as_str().expect("a name");
            assert!(names.contains(&name), "{answer}");
            let arguments: Value =
                serde_json::from_str(function["arguments"].as_str().expect("text")).expect("JSON");
            match name {
                "weather" => assert!(["C", "F"].map(Value::from).contains(&arguments["unit"])),
                _ => assert_eq!(arguments, json!({})),
            }
        }
        assert!(whole > 0, "no call came to its end");
    }
}

/// The schema at fault is named, whichever tool it is of; one that cannot be called harms nobody.
#[test]
fn a_schema_that_cannot_be_kept_to_is_named_by_its_tool() {
    let site = Site::tiny(Setup::default());
    let bad = json!({"type": "object", "not": {}});
    let tool = |name: &str, parameters: &Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let good = json!({"type": "object", "properties": {"a": {"type": "null"}}});
    let tools = json!([tool("f", &good), tool("g", &bad), tool("h", &good)]);
    for choice in [json!("required"), json!("auto"), named("g")] {
        let mut wrong = body(CHAT, "tool_choice", &choice);
        wrong["tools"] = tools.clone();
        if choice == "auto" {
            wrong["guided_choice"] = json!(["left"]);
        }
        let refusal = site.post(CHAT, &wrong).refusal();
        assert_eq!((refusal.0, &*refusal.1), (400, "tools[1].function.parameters"), "{choice}");
    }
    let flat = json!({"input": "hi", "tool_choice": "required", "tools": [
        {"type": "function", "name": "f"}, {"type": "function", "name": "g", "parameters": bad},
    ]});
    assert_eq!(site.post("/v1/responses", &flat).refusal().1, "tools[1].parameters");
    for choice in [json!("none"), named("f")] {
        let mut right = body(CHAT, "tool_choice", &choice);
        (right["tools"], right["max_tokens"]) = (tools.clone(), 2.into());
        assert_eq!(site.post(CHAT, &right).status, 200, "{choice}");
    }
    // Schemas that can be kept to are not blamed for a format that cannot.
    let mut wrong = body(CHAT, "guided_regex", &json!("("));
    wrong["tools"] = json!([tool("f", &good)]);
    assert_eq!(site.post(CHAT, &wrong).refusal().1, "guided_regex");
}

/// A choice that names a function.
fn named(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// With tools that may be called, an answer is calls or what the format says.
#[test]
fn a_format_leaves_room_for_calls() {
    let site = Site::tiny(Setup::default());
    for seed in 0..4 {
        let mut body = body(CHAT, "guided_choice", &json!(["left", "right"]));
        (body["tools"], body["seed"], body["parallel_tool_calls"]) =
            (tools(), seed.into(), false.into());
        let answer = site.ask(CHAT, &body);
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "stop" {
            assert!(["left", "right"].map(Value::from).contains(&choice["message"]["content"]));
        } else {
            assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        }
    }
}
