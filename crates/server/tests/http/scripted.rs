//! Answers whose text is known beforehand: characters, stop strings, reasoning and calls, whatever
//! the number of tokens that a step brings.

use crate::site::{NAME, Script, Setup, Site, spell};
use serde_json::{Value, json};

const PROMPT: [u32; 3] = [10, 11, 12];

/// A site that says `ids` behind [`PROMPT`], in blocks of `block`.
fn saying(ids: Vec<u32>, block: usize) -> Site {
    Site::scripted(Script::of(PROMPT.len(), ids).in_blocks(block), Setup::default())
}

/// Text and finish reason of a completion, whole and streamed, which agree.
fn completed(site: &Site, more: &Value) -> (String, String, u64) {
    let mut body = json!({"model": NAME, "prompt": PROMPT, "max_tokens": 100});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    let whole = site.ask("/v1/completions", &body);
    let choice = &whole["choices"][0];
    let events = site.stream("/v1/completions", &body);
    let pieces = events.iter().map(|event| event["choices"][0]["text"].as_str().expect("text"));
    let streamed: String = pieces.collect();
    assert_eq!(choice["text"], streamed);
    assert_eq!(
        events.last().expect("events")["choices"][0]["finish_reason"],
        choice["finish_reason"]
    );
    let reason = choice["finish_reason"].as_str().expect("a reason").to_owned();
    (streamed, reason, whole["usage"]["completion_tokens"].as_u64().expect("a count"))
}

/// The ids of single bytes.
fn bytes(text: &str) -> Vec<u32> {
    let tokenizer = crate::site::tokenizer();
    let id = |byte: u8| {
        let id = (0..320).find(|&id| tokenizer.piece(id) == [byte]);
        id.expect("a byte-level vocabulary has every byte")
    };
    text.bytes().map(id).collect()
}

#[test]
fn characters_that_tokens_split_come_out_whole() {
    for block in [1, 2, 8] {
        let site = saying(bytes("😀中é!"), block);
        assert_eq!(completed(&site, &json!({})), ("😀中é!".into(), "stop".into(), 10));
        // Cut inside a character: it is not part of the text, streamed or not.
        for (most, text) in [(1, ""), (4, "😀"), (6, "😀"), (8, "😀中")] {
            let cut = completed(&site, &json!({"max_tokens": most}));
            assert_eq!(cut, (text.into(), "length".into(), most));
        }
    }
}

#[test]
fn the_beginning_of_a_stop_string_is_never_sent() {
    for block in [1, 3, 8] {
        let stop = json!({"stop": ["beta gamma"]});
        let site = saying(spell("alpha beta gamma delta"), block);
        let (text, reason, _) = completed(&site, &stop);
        assert_eq!((text.as_str(), reason.as_str()), ("alpha ", "stop"));
        let site = saying(spell("alpha bean soup"), block);
        let (text, reason, _) = completed(&site, &stop);
        assert_eq!((text.as_str(), reason.as_str()), ("alpha bean soup", "stop"));
        for (says, text) in
            [("alpha beta gamma delta", "alpha "), ("alpha bean soup", "alpha bean soup")]
        {
            let (whole, events, _) = chat(says, block, &stop);
            let (content, _, _, reason) = reply(&events);
            assert_eq!((content.as_str(), reason.as_str()), (text, "stop"));
            assert_eq!(whole["choices"][0]["message"]["content"], text);
        }
    }
}

#[test]
fn end_of_text_and_stop_ids_end_an_answer_unless_told_otherwise() {
    let mut ids = spell("ab");
    ids.push(crate::site::END);
    ids.extend(spell("cd"));
    let site = saying(ids, 4);
    assert_eq!(completed(&site, &json!({})), ("ab".into(), "stop".into(), 2));
    let on = completed(&site, &json!({"ignore_eos": true, "max_tokens": 5}));
    assert_eq!(on, ("abcd".into(), "length".into(), 5));
    let (b, d) = (spell("b")[0], spell("d")[0]);
    let stopped = json!({"ignore_eos": true, "stop_token_ids": [d], "max_tokens": 50});
    assert_eq!(completed(&site, &stopped), ("abc".into(), "stop".into(), 4));
    assert_eq!(completed(&site, &json!({"stop_token_ids": [b]})), ("a".into(), "stop".into(), 1));
}

/// A chat whose answer is `text`, in blocks of `block`: the whole answer and the stream's deltas.
fn chat(text: &str, block: usize, more: &Value) -> (Value, Vec<Value>, Site) {
    let mut body = json!({
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 200,
        "tools": [
            {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}},
        ],
    });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    // The prompt's length decides where the script begins.
    let probe = Site::scripted(Script::letters(), Setup::default());
    let mut conversation = json!({"messages": body["messages"], "tools": body["tools"]});
    conversation["tool_choice"] = body["tool_choice"].clone();
    let tokens = probe.ask("/tokenize", &conversation);
    let prompt = tokens["count"].as_u64().expect("a count") as usize;
    let script = Script::of(prompt, spell(text)).in_blocks(block);
    let site = Site::scripted(script, Setup { context: 1024, ..Setup::default() });
    let whole = site.ask("/v1/chat/completions", &body);
    let events = site.stream("/v1/chat/completions", &body);
    (whole, events, site)
}

/// What deltas add up to.
fn reply(events: &[Value]) -> (String, String, Vec<(String, String, String)>, String) {
    let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    let mut reason = String::new();
    for choice in events.iter().map(|event| &event["choices"][0]) {
        let delta = &choice["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().expect("an index") as usize;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if index == calls.len() {
                calls.push((text(&call["id"]), text(&call["function"]["name"]), String::new()));
            }
            calls[index].2.push_str(&text(&call["function"]["arguments"]));
        }
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    (content, reasoning, calls, reason)
}

const TWO_CALLS: &str = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \
                         \"Rome }\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": \
                         {\"zone\": [1, 2]}}\n</tool_call>";

#[test]
fn calls_are_the_same_however_many_tokens_a_step_brings() {
    for block in [1, 2, 3, 5, 8] {
        let (whole, events, _) = chat(TWO_CALLS, block, &json!({}));
        let (content, reasoning, calls, reason) = reply(&events);
        assert_eq!((content.as_str(), reasoning.as_str()), ("Let me see.\n", ""));
        assert_eq!(reason, "tool_calls");
        let read = |(id, name, arguments): &(String, String, String)| {
            assert!(id.starts_with("call_"));
            let arguments: Value = serde_json::from_str(arguments).expect("JSON");
            (name.clone(), arguments)
        };
        let want = [
            ("weather".to_owned(), json!({"city": "Rome }"})),
            ("time".into(), json!({"zone": [1, 2]})),
        ];
        assert_eq!(calls.iter().map(read).collect::<Vec<_>>(), want);
        let message = &whole["choices"][0]["message"];
        assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(message["content"], "Let me see.\n");
        for (call, (_, name, arguments)) in
            message["tool_calls"].as_array().expect("calls").iter().zip(&calls)
        {
            assert_eq!(
                (&call["function"]["name"], &call["type"]),
                (&json!(name), &json!("function"))
            );
            assert_eq!(call["function"]["arguments"], **arguments);
        }
    }
}

#[test]
fn one_call_ends_an_answer_that_may_make_only_one() {
    let one = json!({"parallel_tool_calls": false});
    for block in [1, 8] {
        let (whole, events, site) = chat(TWO_CALLS, block, &one);
        let (_, _, calls, reason) = reply(&events);
        assert_eq!((calls.len(), reason.as_str()), (1, "tool_calls"));
        assert_eq!(
            whole["choices"][0]["message"]["tool_calls"].as_array().expect("calls").len(),
            1
        );
        let whole_tokens = spell(TWO_CALLS).len() as u64;
        assert!(whole["usage"]["completion_tokens"].as_u64().expect("a count") < whole_tokens);
        assert_eq!(site.load(), (0, 0));
    }
}

/// A call that the request named is no choice of the model's, and an answer with it just ends.
#[test]
fn a_named_function_is_called_and_the_answer_stops() {
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>";
    for (choice, expected) in [
        (json!({"type": "function", "function": {"name": "weather"}}), "stop"),
        (json!("required"), "tool_calls"),
        (json!("auto"), "tool_calls"),
    ] {
        let (whole, events, _) = chat(call, 4, &json!({"tool_choice": choice}));
        let (_, _, calls, reason) = reply(&events);
        assert_eq!((calls.len(), reason.as_str()), (1, expected), "{choice}");
        let whole = &whole["choices"][0];
        assert_eq!(whole["message"]["tool_calls"][0]["function"]["name"], "weather");
        assert_eq!(whole["finish_reason"], expected);
    }
}

#[test]
fn a_strict_call_that_the_model_begins_keeps_to_its_schema() {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": false});
    let tool = |strict: bool| {
        let function = json!({"name": "weather", "strict": strict, "parameters": schema});
        json!({"tools": [{"type": "function", "function": function}]})
    };
    let says = "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": 5}}\n\
                </tool_call>";
    let mut first = None;
    for block in [1, 2, 8] {
        let (whole, events, _) = chat(says, block, &tool(true));
        let (content, _, calls, reason) = reply(&events);
        assert!(
            content.starts_with("Let me see.\n"),
            "what comes before is the model's: {content}"
        );
        assert_eq!((calls.len(), reason.as_str(), &*calls[0].1), (1, "tool_calls", "weather"));
        let arguments: Value = serde_json::from_str(&calls[0].2).expect("JSON");
        assert!(["Rome", "Oslo"].map(Value::from).contains(&arguments["city"]), "{arguments}");
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], *calls[0].2);
        let answer = (content, calls[0].2.clone());
        assert_eq!(first.get_or_insert_with(|| answer.clone()), &answer, "in blocks of {block}");
    }
    // Functions that are not strict are called as the model likes.
    let (_, events, _) = chat(says, 4, &tool(false));
    assert_eq!(reply(&events).2[0].2, "{\"city\": 5}");
}

#[test]
fn without_tools_a_call_is_content() {
    let (whole, events, _) = chat(TWO_CALLS, 4, &json!({"tool_choice": "none"}));
    let (content, _, calls, reason) = reply(&events);
    assert_eq!((content.as_str(), calls.len(), reason.as_str()), (TWO_CALLS, 0, "stop"));
    assert_eq!(whole["choices"][0]["message"]["content"], TWO_CALLS);
    assert!(whole["choices"][0]["message"].get("tool_calls").is_none());
}

#[test]
fn unusual_but_legal_messages_are_taken() {
    let site = Site::scripted(Script::letters(), Setup::default());
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "time", "arguments": "{}"}});
    for messages in [
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""},
            {"role": "user", "content": "b"}]),
        json!([{"role": "developer", "content": "be brief"}, {"role": "user", "content": "a"}]),
        json!([{"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"}]),
    ] {
        let body = json!({"messages": messages, "max_tokens": 2});
        let answer = site.ask("/v1/chat/completions", &body);
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{messages}");
    }
    let going_on =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]);
    let count = |more: bool| {
        let body = json!({"messages": going_on, "continue_final_message": more});
        site.ask("/tokenize", &body)["count"].as_u64().expect("a count")
    };
    assert!(count(true) < count(false), "a message that goes on has no end and no new turn");
}
