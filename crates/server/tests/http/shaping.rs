//! Penalties, `logit_bias` and least lengths, asked for as clients do.

use crate::site::{Script, Setup, Site, spell, tokenizer};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";

/// What the tiny pair says greedily behind "the sea ", as ids.
fn ids(site: &Site, more: Value) -> Vec<u32> {
    let mut params = json!({"temperature": 0, "max_new_tokens": 24, "ignore_eos": true});
    for (key, value) in more.as_object().expect("an object") {
        params[key] = value.clone();
    }
    let body = json!({"text": "the sea ", "sampling_params": params});
    serde_json::from_value(site.ask(GENERATE, &body)["output_ids"].clone()).expect("ids")
}

#[test]
fn a_bias_rules_a_token_out_or_in() {
    let site = Site::tiny(Setup::default());
    let plain = ids(&site, json!({}));
    let first = plain[0].to_string();
    let without = ids(&site, json!({"logit_bias": {&first: -100}}));
    assert!(!without.contains(&plain[0]), "{without:?}");
    assert_eq!(ids(&site, json!({"logit_bias": {"77": 100.0}})), vec![77; 24]);
    assert_eq!(ids(&site, json!({"logit_bias": {}})), plain);
}

#[test]
fn penalties_make_tokens_rarer() {
    let site = Site::tiny(Setup::default());
    let most = |ids: &[u32]| ids.iter().map(|a| ids.iter().filter(|b| a == *b).count()).max();
    // A bias that makes one token the likeliest every time, by far; and then a penalty against it.
    let bias = json!({"77": 100, "78": 99});
    let plain = ids(&site, json!({"logit_bias": bias}));
    assert_eq!(most(&plain), Some(24));
    let frequency = ids(&site, json!({"logit_bias": bias, "frequency_penalty": 2}));
    assert!(frequency.contains(&77) && frequency.contains(&78), "{frequency:?}");
    // Of so many tokens none has to come twice.
    let repetition = ids(&site, json!({"repetition_penalty": 1e6}));
    assert_eq!(most(&repetition), Some(1), "{repetition:?}");
    let prompt = tokenizer().encode_prompt("the sea ");
    assert!(repetition.iter().all(|id| !prompt.contains(id)), "the prompt counts too");
}

#[test]
fn drafting_changes_no_byte_of_a_shaped_answer() {
    let site = Site::tiny(Setup::default());
    let shapes = json!({
        "presence_penalty": 0.7, "frequency_penalty": -0.2, "repetition_penalty": 1.2,
        "logit_bias": {"12": 3, "40": -100}, "min_tokens": 12, "seed": 5, "temperature": 0.8,
    });
    for path in [CHAT, COMPLETIONS, GENERATE] {
        let ask = |speculation: Value| {
            let mut body = match path {
                CHAT => json!({"messages": [{"role": "user", "content": "hi"}]}),
                COMPLETIONS => json!({"prompt": "the sea "}),
                _ => json!({"text": "the sea ", "sampling_params": shapes}),
            };
            if path == GENERATE {
                body["sampling_params"]["max_new_tokens"] = json!(30);
            } else {
                body["max_tokens"] = json!(30);
                let own = shapes.as_object().expect("an object");
                own.iter().for_each(|(key, value)| body[key] = value.clone());
            }
            body["speculation"] = speculation;
            let answer = site.ask(path, &body);
            if path == GENERATE { answer["output_ids"].clone() } else { answer["choices"].clone() }
        };
        let plain = ask(json!({"enabled": false}));
        for width in [2, 4, 8] {
            assert_eq!(ask(json!({"max_width": width})), plain, "{path}, width {width}");
        }
    }
}

#[test]
fn nothing_ends_an_answer_before_its_least_length() {
    let site = Site::tiny(Setup::default());
    let first = ids(&site, json!({}))[0];
    for name in ["min_tokens", "min_new_tokens"] {
        let stop = json!({"stop_token_ids": [first]});
        assert_eq!(ids(&site, stop.clone()), [] as [u32; 0]);
        let long = ids(&site, json!({"stop_token_ids": [first], name: 7}));
        assert!(long.len() >= 7 && !long[..7].contains(&first), "{long:?}");
    }
    // Letters in order, one a token, however many are drafted: a stop string that comes too early
    // is text.
    let letters: Vec<u32> =
        "abcdefgh".chars().map(|letter| spell(&letter.to_string())[0]).collect();
    for block in [1, 8] {
        let letters = letters.clone();
        let script = Script::new(move |position| letters[position % 8]).in_blocks(block);
        let site = Site::scripted(script, Setup::default());
        for (least, text) in [
            (0, "ab"),
            (4, "ab"),
            (5, "abcdefghab"),
            (12, "abcdefghab"),
            (13, "abcdefghabcdefghab"),
        ] {
            let body = json!({
                "prompt": vec![5; 8], "max_tokens": 40, "stop": "cd", "min_tokens": least,
            });
            let choice = &site.ask(COMPLETIONS, &body)["choices"][0];
            let told = (choice["text"].as_str(), choice["finish_reason"].as_str());
            assert_eq!(told, (Some(text), Some("stop")), "{least} at least, blocks of {block}");
        }
    }
}

#[test]
fn a_least_length_that_cannot_be_is_named() {
    let site = Site::tiny(Setup { kv_tokens: Some(160), ..Setup::default() });
    for (path, body, param) in [
        (CHAT, json!({"min_tokens": 9, "max_completion_tokens": 8}), "min_tokens"),
        // The length that holds when none is asked for.
        (COMPLETIONS, json!({"min_tokens": 17}), "min_tokens"),
        (COMPLETIONS, json!({"min_tokens": 200, "max_tokens": 300}), "min_tokens"),
        (
            GENERATE,
            json!({"sampling_params": {"min_new_tokens": 129}}),
            "sampling_params.min_new_tokens",
        ),
    ] {
        let mut body = body;
        match path {
            CHAT => body["messages"] = json!([{"role": "user", "content": "hi"}]),
            COMPLETIONS => body["prompt"] = json!("hi"),
            _ => body["text"] = json!("hi"),
        }
        let (status, named, _) = site.post(path, &body).refusal();
        assert_eq!((status, named.as_str()), (400, param), "{path} {body}");
    }
}
