//! Responses: the same answers as a chat's in other words, items that grow by events that add up, and
//! what is refused by name.

use crate::site::{Gate, NAME, Script, Setup, Site, eventually, spell, thinking};
use model::chat::ChatTemplate;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

fn merged(mut body: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn request(more: &Value) -> Value {
    let body = json!({"model": NAME, "input": "Say something about ships.",
        "max_output_tokens": 24, "seed": 5});
    merged(body, more)
}

/// The text of all messages of a response.
fn text(response: &Value) -> String {
    let items = response["output"].as_array().expect("items").iter();
    let parts = items.filter(|item| item["type"] == "message").flat_map(|item| {
        assert_eq!(item["role"], "assistant");
        item["content"].as_array().expect("parts")
    });
    parts.map(|part| part["text"].as_str().expect("text")).collect()
}

/// What the events of a stream add up to, checked on the way: they are numbered, each item is
/// announced, grows and is done before the next one, and what is done is the sum of its deltas.
fn added_up(events: &[(String, Value)]) -> Value {
    let mut items: Vec<Value> = Vec::new();
    let mut sum = String::new();
    let mut logprobs = Vec::new();
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
        let place = event["output_index"].as_u64().unwrap_or_default() as usize;
        if let Some(id) = event.get("item_id") {
            assert_eq!((place, id), (items.len() - 1, &items[place]["id"]), "{event}");
        }
        match name.as_str() {
            "response.created" | "response.in_progress" => {
                assert_eq!(number, usize::from(name == "response.in_progress"));
                assert_eq!(event["response"]["status"], "in_progress");
                assert_eq!(event["response"]["output"], json!([]));
                assert_eq!(event["response"]["usage"], Value::Null);
            }
            "response.output_item.added" => {
                assert_eq!((place, &event["item"]["status"]), (items.len(), &json!("in_progress")));
                assert!(items.iter().all(|item| item["id"] != event["item"]["id"]));
                items.push(event["item"].clone());
                (sum, logprobs) = (String::new(), Vec::new());
            }
            "response.content_part.added" => assert_eq!(event["part"]["text"], ""),
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                sum.push_str(event["delta"].as_str().expect("text"));
                logprobs.extend(event["logprobs"].as_array().cloned().unwrap_or_default());
            }
            "response.output_text.done" => {
                assert_eq!((&event["text"], &event["logprobs"]), (&json!(sum), &json!(logprobs)));
            }
            "response.reasoning_text.done" => assert_eq!(event["text"], sum),
            "response.function_call_arguments.done" => assert_eq!(event["arguments"], sum),
            "response.content_part.done" => assert_eq!(event["part"]["text"], sum),
            "response.output_item.done" => {
                assert_eq!(event["item"]["id"], items[place]["id"]);
                match event["item"]["type"].as_str() {
                    Some("function_call") => assert_eq!(event["item"]["arguments"], sum),
                    _ => assert_eq!(event["item"]["content"][0]["text"], sum),
                }
                items[place] = event["item"].clone();
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!(number, events.len() - 1, "nothing follows the end");
                assert_eq!(
                    format!("response.{}", event["response"]["status"].as_str().unwrap()),
                    *name
                );
                assert_eq!(event["response"]["output"], json!(items));
                assert_eq!(event["response"]["id"], events[0].1["response"]["id"]);
            }
            other => panic!("{other} is no event of an answer that went well"),
        }
    }
    events.last().expect("events").1["response"].clone()
}

fn streamed(site: &Site, body: &Value) -> Value {
    let response = site.open(RESPONSES, &merged(body.clone(), &json!({"stream": true})));
    assert_eq!(response.status, 200, "{body}");
    let events = response.named_events();
    events.iter().for_each(|(_, event)| site.document.event(RESPONSES, event));
    added_up(&events)
}

/// Without what belongs to one request only.
fn comparable(response: &Value) -> Value {
    let key = response["id"].as_str().and_then(|id| id.strip_prefix("resp_")).expect("an id");
    let mut response: Value =
        serde_json::from_str(&response.to_string().replace(key, "key")).expect("JSON");
    for field in ["created_at", "completed_at"] {
        assert!(response[field].is_u64(), "{field}");
        response[field] = Value::Null;
    }
    for item in response["output"].as_array_mut().expect("items") {
        if item["type"] == "function_call" {
            assert!(item["call_id"].as_str().is_some_and(|id| id.starts_with("call_")));
            item["call_id"] = Value::Null;
        }
    }
    // What was found in the cache depends on what came before.
    response["usage"]["input_tokens_details"] = Value::Null;
    response
}

#[test]
fn a_response_is_the_chat_in_other_words_streamed_or_whole() {
    let site = Site::tiny(Setup::default());
    for variant in [
        json!({"temperature": 0}),
        json!({"temperature": 1.0}),
        json!({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.01}),
        json!({"stop": ["e", "zz"]}),
        json!({"speculation": {"enabled": false}}),
        json!({"speculation": {"max_width": 8, "report": true}}),
    ] {
        let body = request(&variant);
        let whole = site.ask(RESPONSES, &body);
        assert_eq!(comparable(&whole), comparable(&streamed(&site, &body)), "{variant}");
        let messages = json!([{"role": "user", "content": body["input"]}]);
        let chat = merged(json!({"messages": messages, "max_tokens": 24, "seed": 5}), &variant);
        let chat = site.ask(CHAT, &chat);
        assert_eq!(chat["choices"][0]["message"]["content"], text(&whole), "{variant}");
        let cut = chat["choices"][0]["finish_reason"] == "length";
        let (status, details) = match cut {
            true => ("incomplete", json!({"reason": "max_output_tokens"})),
            false => ("completed", Value::Null),
        };
        assert_eq!((&whole["status"], &whole["incomplete_details"]), (&json!(status), &details));
        assert_eq!(whole["output"][0]["status"], status);
        for (own, chats) in
            [("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")]
        {
            assert_eq!(whole["usage"][own], chat["usage"][chats], "{variant}");
        }
        assert_eq!(whole["usage"]["total_tokens"], chat["usage"]["total_tokens"]);
        assert_eq!(whole["slipstream"]["seed"], 5);
        assert_eq!(whole["speculation"].is_object(), variant["speculation"]["report"] == true);
    }
}

#[test]
fn what_was_asked_is_repeated() {
    let site = Site::scripted(Script::letters(), Setup::default());
    let tool = json!({"type": "function", "name": "time", "parameters": {"type": "object"},
        "strict": null, "description": "the time"});
    let told = json!({
        "instructions": "Be brief.", "max_output_tokens": 3, "metadata": {"a": "b"},
        "temperature": 0.7, "top_p": 0.9, "tools": [tool], "tool_choice": "none", "user": "me",
        "parallel_tool_calls": false, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "store": false,
        "truncation": "disabled", "include": ["reasoning.encrypted_content"], "top_logprobs": 0,
        "service_tier": "auto", "background": false, "previous_response_id": null,
        "safety_identifier": "x", "prompt_cache_key": "y", "max_tool_calls": 3, "stream": false,
    });
    let answer = site.ask(RESPONSES, &request(&told));
    for field in [
        "instructions",
        "max_output_tokens",
        "metadata",
        "temperature",
        "top_p",
        "tools",
        "tool_choice",
        "user",
        "parallel_tool_calls",
        "text",
        "store",
        "truncation",
    ] {
        assert_eq!(answer[field], told[field], "{field}");
    }
    assert_eq!(answer["reasoning"], json!({"effort": "low", "summary": null}));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("response"), &json!(NAME)));
    let bare = site.ask(RESPONSES, &json!({"input": "go", "max_output_tokens": 2}));
    for (field, value) in [
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("temperature", json!(1.0)),
        ("top_p", json!(1.0)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("text", json!({"format": {"type": "text"}})),
        ("store", json!(false)),
        ("previous_response_id", Value::Null),
        ("error", Value::Null),
    ] {
        assert_eq!(bare[field], value, "{field}");
    }
}

const TOOLS: &str = r#"[
    {"type": "function", "name": "weather", "parameters": {"type": "object"}},
    {"type": "function", "name": "time", "parameters": {"type": "object"}}
]"#;

fn tools() -> Value {
    serde_json::from_str(TOOLS).expect("JSON")
}

/// A site that answers `body` with `says`, in blocks of `block`.
fn saying(says: &str, block: usize, body: &Value) -> Site {
    saying_by(None, says, block, body)
}

/// The same with a template of its own.
fn saying_by(template: Option<Arc<ChatTemplate>>, says: &str, block: usize, body: &Value) -> Site {
    let setup = || Setup { context: 1024, template: template.clone(), ..Setup::default() };
    let probe = Site::scripted(Script::letters(), setup());
    let answer = probe.ask(RESPONSES, &merged(body.clone(), &json!({"max_output_tokens": 1})));
    let prompt = answer["usage"]["input_tokens"].as_u64().expect("a count") as usize;
    let script = Script::of(prompt, spell(says)).in_blocks(block);
    Site::scripted(script, setup())
}

const CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
                     \"Rome }\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": \
                     {\"zone\": [1, 2]}}\n</tool_call>";

#[test]
fn calls_are_items_however_many_tokens_a_step_brings() {
    let body = request(&json!({"tools": tools(), "max_output_tokens": 200}));
    let mut first: Option<Value> = None;
    for block in [1, 2, 3, 8] {
        let site = saying(CALLS, block, &body);
        let whole = site.ask(RESPONSES, &body);
        assert_eq!(comparable(&whole), comparable(&streamed(&site, &body)));
        let items = comparable(&whole)["output"].clone();
        assert_eq!(*first.get_or_insert_with(|| items.clone()), items, "in blocks of {block}");
        let output = whole["output"].as_array().expect("items");
        let kinds: Vec<&str> = output.iter().filter_map(|item| item["type"].as_str()).collect();
        assert_eq!(kinds, ["message", "function_call", "function_call"]);
        assert_eq!(text(&whole), "Let me see.\n");
        for (item, name, arguments) in [
            (&output[1], "weather", json!({"city": "Rome }"})),
            (&output[2], "time", json!({"zone": [1, 2]})),
        ] {
            assert_eq!((&item["name"], &item["status"]), (&json!(name), &json!("completed")));
            let own = item["arguments"].as_str().expect("text");
            assert_eq!(serde_json::from_str::<Value>(own).expect("JSON"), arguments);
        }
        assert_eq!(whole["status"], "completed");
    }
    let one = merged(body, &json!({"parallel_tool_calls": false}));
    let site = saying(CALLS, 8, &one);
    let whole = site.ask(RESPONSES, &one);
    assert_eq!(whole["output"].as_array().expect("items").len(), 2);
    assert_eq!(comparable(&whole)["output"], comparable(&streamed(&site, &one))["output"]);
    assert_eq!(site.load(), (0, 0));
}

#[test]
fn reasoning_is_an_item_of_its_own_and_its_tokens_are_not_of_the_text() {
    let include = json!(["message.output_text.logprobs"]);
    let body = request(&json!({"max_output_tokens": 200, "include": include}));
    let says = "<think>\nTwo and two.\n</think>\n\nFour.";
    let mut first: Option<Value> = None;
    for block in [1, 3, 8] {
        let site = saying_by(Some(thinking()), says, block, &body);
        let whole = site.ask(RESPONSES, &body);
        assert_eq!(comparable(&whole), comparable(&streamed(&site, &body)));
        let output = comparable(&whole)["output"].clone();
        assert_eq!(*first.get_or_insert_with(|| output.clone()), output, "in blocks of {block}");
        assert_eq!(output[0]["type"], "reasoning");
        assert_eq!(output[0]["content"][0]["text"], "Two and two.");
        assert_eq!((text(&whole), &whole["status"]), ("Four.".into(), &json!("completed")));
        let thought = &whole["usage"]["output_tokens_details"]["reasoning_tokens"];
        let thought = thought.as_u64().expect("a count") as usize;
        let entries = output[1]["content"][0]["logprobs"].as_array().expect("entries");
        assert_eq!(whole["usage"]["output_tokens"], thought + entries.len());
        let bytes = entries.iter().flat_map(|entry| entry["bytes"].as_array().expect("bytes"));
        let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().expect("a byte") as u8).collect();
        assert!(String::from_utf8_lossy(&bytes).ends_with("Four."));
    }
}

#[test]
fn what_is_cut_is_incomplete() {
    let body = request(&json!({"tools": tools(), "max_output_tokens": 200}));
    let site = saying(CALLS, 1, &body);
    let long = site.ask(RESPONSES, &body)["usage"]["output_tokens"].as_u64().expect("a count");
    for left_out in [8, 15] {
        let cut = merged(body.clone(), &json!({"max_output_tokens": long - left_out}));
        let answer = streamed(&site, &cut);
        let last = answer["output"].as_array().and_then(|items| items.last()).expect("an item");
        assert_eq!(
            (&last["type"], &last["status"]),
            (&json!("function_call"), &json!("incomplete"))
        );
        assert_eq!(answer["status"], "incomplete");
    }
    // Nothing at all is an empty message.
    let site = saying("", 1, &body);
    let answer = streamed(&site, &body);
    assert_eq!((text(&answer), &answer["status"]), (String::new(), &json!("completed")));
    assert_eq!(answer["output"].as_array().expect("items").len(), 1);
}

#[test]
fn log_probabilities_are_those_of_a_chat() {
    let site = Site::tiny(Setup::default());
    let include = json!(["message.output_text.logprobs"]);
    let body = request(&json!({"include": include, "top_logprobs": 2, "temperature": 0}));
    let whole = site.ask(RESPONSES, &body);
    let part = &whole["output"][0]["content"][0];
    let entries = part["logprobs"].as_array().expect("entries");
    assert_eq!(whole["usage"]["output_tokens"], entries.len());
    let messages = json!([{"role": "user", "content": body["input"]}]);
    let chat = site.ask(
        CHAT,
        &json!({"messages": messages, "max_tokens": 24, "temperature": 0,
        "logprobs": true, "top_logprobs": 2}),
    );
    let chats = chat["choices"][0]["logprobs"]["content"].as_array().expect("entries");
    for (own, chats) in entries.iter().zip(chats) {
        assert_eq!((&own["token"], &own["bytes"]), (&chats["token"], &chats["bytes"]));
        assert_eq!(
            own["logprob"].as_f64().map(|x| x as f32),
            chats["logprob"].as_f64().map(|x| x as f32)
        );
        assert_eq!(own["top_logprobs"].as_array().expect("alternatives").len(), 2);
    }
    assert_eq!(comparable(&whole), comparable(&streamed(&site, &body)));
    let none = site.ask(RESPONSES, &request(&json!({})));
    assert_eq!(none["output"][0]["content"][0]["logprobs"], json!([]));
}

/// A conversation with every kind of item, and the same as a chat's messages.
fn conversation() -> (Value, Value) {
    let call = |id: &str, name: &str| json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{}"});
    let items = json!([
        {"role": "developer", "content": "Use tools."},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "What time"}, {"type": "input_text", "text": "is it?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [],
            "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        call("call_a", "time"),
        call("call_b", "weather"),
        {"type": "function_call_output", "call_id": "call_b", "output": "rain"},
        {"type": "function_call_output", "call_id": "call_a",
            "output": [{"type": "input_text", "text": "noon"}]},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "And now?"},
        call("call_c", "time"),
        {"type": "function_call_output", "call_id": "call_c", "output": ""},
    ]);
    let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Use tools."},
        {"role": "user", "content": "What time\nis it?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Look.",
            "tool_calls": [call("call_a", "time"), call("call_b", "weather")]},
        {"role": "tool", "tool_call_id": "call_b", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_a", "content": "noon"},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "tool_calls": [call("call_c", "time")]},
        {"role": "tool", "tool_call_id": "call_c", "content": ""},
    ]);
    (items, messages)
}

#[test]
fn items_are_the_messages_of_a_chat() {
    let site = Site::scripted(Script::letters(), Setup { context: 2048, ..Setup::default() });
    let (items, messages) = conversation();
    let body = request(&json!({"input": items, "instructions": "Be brief.", "tools": tools(),
        "temperature": 0}));
    let own = site.ask(RESPONSES, &body);
    let nested: Vec<Value> = tools()
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| {
            let function = json!({"name": tool["name"], "parameters": tool["parameters"]});
            json!({"type": "function", "function": function})
        })
        .collect();
    let chat = site.ask(
        CHAT,
        &json!({"messages": messages, "tools": nested, "max_tokens": 24,
        "temperature": 0}),
    );
    assert_eq!(own["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(text(&own), chat["choices"][0]["message"]["content"].as_str().unwrap_or_default());
}

#[test]
fn an_answer_can_be_sent_back() {
    let body = request(&json!({"tools": tools(), "max_output_tokens": 200}));
    let site = saying(CALLS, 4, &body);
    let first = site.ask(RESPONSES, &body);
    let mut items = vec![json!({"role": "user", "content": body["input"]})];
    let output = first["output"].as_array().expect("items");
    items.extend(output.iter().cloned());
    for call in output.iter().filter(|item| item["type"] == "function_call") {
        items.push(json!({"type": "function_call_output", "call_id": call["call_id"],
            "output": "fine"}));
    }
    let next = merged(body, &json!({"input": items, "max_output_tokens": 2}));
    let next = site.ask(RESPONSES, &next);
    let tokens = |answer: &Value| answer["usage"]["input_tokens"].as_u64().expect("a count");
    assert!(tokens(&next) > tokens(&first) + 20, "the turn is kept");
}

fn items_at_fault() -> Vec<(Value, &'static str)> {
    let user = json!({"role": "user", "content": "x"});
    let call = json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
    vec![
        (Value::Null, "input"),
        (json!(5), "input"),
        (json!([]), "input"),
        (json!(["x"]), "input[0]"),
        (json!([user, {"role": "tool", "content": "x"}]), "input[1].role"),
        (json!([{"content": "x"}]), "input[0].role"),
        (json!([{"role": "user"}]), "input[0].content"),
        (json!([{"role": "user", "content": 5}]), "input[0].content"),
        (
            json!([user, {"role": "user", "content": [{"type": "input_image"}]}]),
            "input[1].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "input_text"}]}]),
            "input[0].content[0].text",
        ),
        (json!([{"type": "item_reference", "id": "msg_1"}]), "input[0].type"),
        (json!([{"type": "web_search_call"}]), "input[0].type"),
        (json!([{"type": 5}]), "input[0].type"),
        (
            json!([user, {"type": "function_call", "name": "f", "arguments": ""}]),
            "input[1].call_id",
        ),
        (json!([user, merged(call.clone(), &json!({"arguments": {}}))]), "input[1].arguments"),
        (json!([user, merged(call.clone(), &json!({"name": ""}))]), "input[1].name"),
        (json!([user, merged(call.clone(), &json!({"call_id": ""}))]), "input[1].call_id"),
        (
            json!([user, call, {"type": "function_call_output", "call_id": "b", "output": "x"}]),
            "input[2].call_id",
        ),
        (json!([user, call, {"type": "function_call_output", "call_id": "a"}]), "input[2].output"),
        (
            json!([user, {"type": "reasoning", "content": [{"text": 5}]}]),
            "input[1].content[0].text",
        ),
    ]
}

#[test]
fn what_is_at_fault_is_named_by_its_own_name() {
    let site = Site::scripted(Script::letters(), Setup { context: 64, ..Setup::default() });
    for (input, param) in items_at_fault() {
        let refusal = site.post(RESPONSES, &json!({"input": input})).refusal();
        assert_eq!((refusal.0, refusal.1.as_str()), (400, param), "{input}");
    }
    let tool = |name: &str| json!({"type": "function", "name": name});
    for (field, value, param) in [
        ("tools", json!([tool("two words")]), "tools[0].name"),
        ("tools", json!([tool("a"), tool("a")]), "tools[1].name"),
        ("tools", json!([{"type": "web_search"}]), "tools[0].type"),
        (
            "tools",
            json!([{"type": "function", "name": "a", "parameters": 5}]),
            "tools[0].parameters",
        ),
        ("tools", json!("all"), "tools"),
        ("tool_choice", json!("sometimes"), "tool_choice"),
        ("tool_choice", json!({"type": "allowed_tools"}), "tool_choice"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("temperature", json!(3), "temperature"),
        ("text", json!({"format": {"type": "grammar"}}), "text.format.type"),
        ("text", json!({"shape": 5}), "text.shape"),
        ("text", json!(5), "text"),
        ("reasoning", json!({"summary": "detailed"}), "reasoning.summary"),
        ("reasoning", json!({"depth": 5}), "reasoning.depth"),
        ("include", json!(["everything"]), "include[0]"),
        ("include", json!("everything"), "include"),
        ("top_logprobs", json!(3), "top_logprobs"),
        ("top_logprobs", json!(21), "top_logprobs"),
        ("metadata", json!({"a": 5}), "metadata.a"),
        ("metadata", json!("a"), "metadata"),
        ("store", json!(true), "store"),
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("conversation", json!("conv_1"), "conversation"),
        ("prompt", json!({"id": "x"}), "prompt"),
        ("background", json!(true), "background"),
        ("truncation", json!("auto"), "truncation"),
        ("messages", json!([]), "messages"),
        ("max_tokens", json!(5), "max_tokens"),
        ("n", json!(1), "n"),
        ("misspelt", json!(1), "misspelt"),
        ("stream_options", json!({}), "stream_options"),
        ("model", json!(5), "model"),
    ] {
        let body = merged(json!({"input": "x"}), &json!({ field: value }));
        let answer = site.post(RESPONSES, &body);
        let (status, named, _) = answer.refusal();
        assert_eq!((status, named.as_str()), (400, param), "{body}");
        let message = answer.json()["error"]["message"].as_str().expect("text").to_owned();
        assert!(message.starts_with(&format!("{param}: ")), "{message}");
    }
    let logprobs = json!({"input": "x", "include": ["message.output_text.logprobs"],
        "tools": [tool("a")]});
    assert_eq!(site.post(RESPONSES, &logprobs).refusal().1, "include");
    let long = site.post(RESPONSES, &json!({"input": "word ".repeat(200)}));
    assert_eq!(long.refusal(), (400, "input".into(), "context_length_exceeded".into()));
    let other = site.post(RESPONSES, &json!({"input": "x", "model": "gpt-4"}));
    assert_eq!(other.refusal(), (404, "model".into(), "model_not_found".into()));
}

#[test]
fn a_failure_inside_a_stream_is_its_last_event() {
    let gate = Arc::new(Gate::default());
    let mut setup = Setup { running: 1, ..Setup::default() };
    setup.config.limits.request_time = Some(Duration::from_millis(100));
    let site = Site::scripted(Script::letters().behind(&gate), setup);
    let body = json!({"input": "go", "max_output_tokens": 400, "ignore_eos": true, "stream": true});
    let stream = site.open(RESPONSES, &body);
    eventually("an open request", || site.load() != (0, 0));
    std::thread::sleep(Duration::from_millis(100));
    gate.open();
    let events = stream.named_events();
    events.iter().for_each(|(_, event)| site.document.event(RESPONSES, event));
    let (name, last) = events.last().expect("events");
    assert_eq!((name.as_str(), &last["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "request_timeout");
    assert_eq!(last["sequence_number"], events.len() - 1);
}
