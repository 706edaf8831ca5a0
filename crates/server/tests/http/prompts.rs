//! What answers tell of their prompts: the text in front, and how likely each of its tokens was.

use crate::site::{Setup, Site, tokenizer};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";
const LISTS: [&str; 5] = ["tokens", "token_logprobs", "top_logprobs", "text_offset", "bytes"];

fn merged(mut body: Value, more: &Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn completion(more: &Value) -> Value {
    let body = json!({"prompt": "the sea ", "max_tokens": 12, "seed": 5, "temperature": 0,
        "ignore_eos": true});
    merged(body, more)
}

/// The prompt and its completion, with log-probabilities of both.
fn echoed(more: &Value) -> Value {
    merged(completion(&json!({"echo": true, "logprobs": 2})), more)
}

fn list<'a>(choice: &'a Value, name: &str) -> &'a [Value] {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("no {name} in {choice}"))
}

/// The choices that a stream adds up to.
fn joined(events: &[Value], choices: usize) -> Vec<Value> {
    let lists: serde_json::Map<String, Value> =
        LISTS.iter().map(|name| ((*name).to_owned(), json!([]))).collect();
    let empty =
        |index| json!({"index": index, "text": "", "logprobs": lists, "finish_reason": null});
    let mut all: Vec<Value> = (0..choices).map(empty).collect();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let own = &mut all[choice["index"].as_u64().expect("an index") as usize];
        assert_eq!(own["finish_reason"], Value::Null, "nothing follows a finish reason: {choice}");
        let text = own["text"].as_str().expect("text").to_owned();
        own["text"] = (text + choice["text"].as_str().expect("text")).into();
        own["finish_reason"] = choice["finish_reason"].clone();
        if choice["logprobs"].is_null() {
            continue;
        }
        for name in LISTS {
            let more = list(choice, name).to_vec();
            own["logprobs"][name].as_array_mut().expect("a list").extend(more);
        }
    }
    all
}

/// The prompt's tokens come first, and what is said of a token does not depend on which side of the
/// prompt's end it is.
#[test]
fn an_echo_is_as_likely_as_the_same_text_generated() {
    let site = Site::tiny(Setup::default());
    let plain = site.ask(COMPLETIONS, &completion(&json!({"logprobs": 2})));
    let answer = site.ask(COMPLETIONS, &echoed(&json!({})));
    let (plain, choice) = (&plain["choices"][0], &answer["choices"][0]);
    let text = format!("the sea {}", plain["text"].as_str().expect("text"));
    assert_eq!(choice["text"], text);
    let prompt = tokenizer().encode_prompt("the sea ").len();
    for name in LISTS {
        assert_eq!(list(choice, name).len(), prompt + 12, "{name}");
        if name != "text_offset" {
            assert_eq!(list(choice, name)[prompt..], *list(plain, name), "{name}");
        }
    }
    let (own, top) = (list(choice, "token_logprobs"), list(choice, "top_logprobs"));
    assert_eq!((&own[0], &top[0]), (&Value::Null, &Value::Null), "nothing precedes the first");
    assert!(own[1..].iter().all(|logprob| logprob.as_f64().expect("a number") <= 0.0));
    // Pieces of characters are written alike, and have one place between them.
    let places = |top: &Value| top.as_object().map_or(0, serde_json::Map::len);
    assert!(top[1..].iter().all(|top| (1..=2).contains(&places(top))));

    // The ids of prompt and output, as a prompt.
    let generated = json!({"text": "the sea ", "sampling_params": {"max_new_tokens": 12,
        "temperature": 0, "ignore_eos": true}});
    let ids = site.ask(GENERATE, &generated)["output_ids"].clone();
    let ids: Vec<u32> = serde_json::from_value(ids).expect("ids");
    let whole = [tokenizer().encode_prompt("the sea "), ids].concat();
    let alone = site.ask(COMPLETIONS, &echoed(&json!({"prompt": whole, "max_tokens": 0})));
    let alone = &alone["choices"][0];
    assert_eq!(alone["finish_reason"], "length");
    for name in ["tokens", "token_logprobs", "top_logprobs", "bytes"] {
        assert_eq!(list(alone, name), list(choice, name), "{name}");
    }
}

/// Offsets count the characters of the text that is in the answer, whatever tokens make of it.
#[test]
fn offsets_point_into_the_text() {
    let site = Site::tiny(Setup::default());
    for prompt in ["the sea ", "Gr\u{fc}\u{df}e \u{1f600}!", "a<|im_end|>b", "<|im_start|>x"] {
        let answer = site.ask(COMPLETIONS, &echoed(&json!({"prompt": prompt})));
        let choice = &answer["choices"][0];
        let text: Vec<char> = choice["text"].as_str().expect("text").chars().collect();
        let begins: Vec<usize> = list(choice, "text_offset")
            .iter()
            .map(|offset| offset.as_u64().expect("an offset") as usize)
            .collect();
        let tokens = tokenizer().encode_prompt(prompt).len();
        assert!(begins.is_sorted() && begins[begins.len() - 1] <= text.len());
        assert_eq!((begins[0], begins[tokens]), (0, prompt.chars().count()), "{prompt}");
        for (at, name) in list(choice, "tokens").iter().enumerate() {
            let name = name.as_str().expect("a name");
            if !name.contains(char::REPLACEMENT_CHARACTER) && at < tokens {
                let said: String = text[begins[at]..begins[at + 1]].iter().collect();
                assert_eq!(said, name, "token {at} of {prompt}");
            }
        }
    }
}

/// However the answer comes: streamed, drafted or not, beside other choices, warm.
#[test]
fn an_echo_is_the_same_in_every_way() {
    let site = Site::tiny(Setup::default());
    let prompts = json!(["the sea ".repeat(12), "a ship "]);
    for more in [
        json!({}),
        json!({"max_tokens": 0}),
        json!({"logprobs": 0, "max_tokens": 1}),
        json!({"n": 2, "temperature": 1, "prompt": prompts}),
        json!({"prompt": [[10]], "logprobs": 5}),
    ] {
        let body = echoed(&more);
        let whole = site.ask(COMPLETIONS, &body);
        let choices = &whole["choices"];
        let count = choices.as_array().expect("choices").len();
        let events = site.stream(COMPLETIONS, &body);
        assert_eq!(Value::from(joined(&events, count)), *choices, "{more}");
        let plain = json!({"speculation": {"enabled": false}});
        assert_eq!(site.ask(COMPLETIONS, &merged(body.clone(), &plain))["choices"], *choices);
        assert_eq!(site.ask(COMPLETIONS, &body)["choices"], *choices, "warm");
    }
    let usage = site.ask(COMPLETIONS, &echoed(&json!({"max_tokens": 0})))["usage"].clone();
    let prompt = tokenizer().encode_prompt("the sea ").len();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(0)));
}

/// Without `echo` the prompt is none of the answer, and without `logprobs` only its text is.
#[test]
fn only_what_is_asked_for_is_told() {
    let site = Site::tiny(Setup::default());
    let nothing = site.ask(COMPLETIONS, &completion(&json!({"max_tokens": 0, "logprobs": 2})));
    let choice = &nothing["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("length")));
    assert_eq!(list(choice, "tokens"), [] as [Value; 0]);
    let text = site.ask(COMPLETIONS, &completion(&json!({"max_tokens": 0, "echo": true})));
    let choice = &text["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("the sea "), &Value::Null));
}

#[test]
fn generate_tells_of_the_prompt_from_any_token_on() {
    let site = Site::tiny(Setup::default());
    let ids = tokenizer().encode_prompt("the sea is wide");
    let body = |from: i64| {
        json!({"input_ids": ids, "return_logprob": true, "top_logprobs_num": 2,
            "logprob_start_len": from, "sampling_params":
            {"max_new_tokens": 4, "temperature": 0, "ignore_eos": true}})
    };
    let whole = site.ask(GENERATE, &body(0))["meta_info"].clone();
    let (own, top) = (&whole["input_token_logprobs"], &whole["input_top_logprobs"]);
    let own = own.as_array().expect("entries").clone();
    let told: Vec<u64> = own.iter().map(|entry| entry[1].as_u64().expect("an id")).collect();
    assert_eq!(told, ids.iter().map(|&id| u64::from(id)).collect::<Vec<_>>());
    assert_eq!((&own[0][0], &top[0]), (&Value::Null, &Value::Null));
    assert_eq!(top[1].as_array().expect("alternatives").len(), 2);
    for from in [1, ids.len() - 1] {
        let part = site.ask(GENERATE, &body(from as i64))["meta_info"].clone();
        assert_eq!(part["input_token_logprobs"].as_array().expect("entries")[..], own[from..]);
        assert_eq!(part["output_token_logprobs"], whole["output_token_logprobs"]);
        let events = site.stream(GENERATE, &body(from as i64));
        let entries =
            events.iter().filter_map(|e| e["meta_info"]["input_token_logprobs"].as_array());
        assert_eq!(entries.flatten().cloned().collect::<Vec<_>>(), own[from..]);
    }
    let output = site.ask(GENERATE, &body(-1));
    assert!(output["meta_info"].get("input_token_logprobs").is_none());
    let mut alone = body(0);
    alone["sampling_params"]["max_new_tokens"] = 0.into();
    let alone = site.ask(GENERATE, &alone);
    assert_eq!(alone["output_ids"], json!([]));
    assert_eq!(alone["meta_info"]["input_token_logprobs"], whole["input_token_logprobs"]);
    assert_eq!(alone["meta_info"]["finish_reason"], json!({"type": "length", "length": 0}));
}
