//! Every refusal: the status, the field and the code, and that nobody else notices.

use crate::client::{self, connect, head, open_with, receive};
use crate::site::{NAME, Script, Setup, Site, eventually};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use server::ApiKey;
use std::io::Write;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";
const RESPONSES: &str = "/v1/responses";
const V: u64 = 320;

fn usual(path: &str) -> Value {
    match path {
        CHAT => json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
        COMPLETIONS => json!({"prompt": "hi", "max_tokens": 2}),
        GENERATE => json!({"text": "hi", "sampling_params": {"max_new_tokens": 2}}),
        RESPONSES => json!({"input": "hi", "max_output_tokens": 2}),
        "/tokenize" => json!({"prompt": "hi"}),
        _ => json!({"tokens": [5]}),
    }
}

fn with(path: &str, field: &str, value: &Value) -> Value {
    let mut body = usual(path);
    let mut place = &mut body;
    for name in field.split('.') {
        place = &mut place[name];
    }
    *place = value.clone();
    body
}

/// Field, value, and the field that the refusal names when it is another.
fn bad_sampling() -> Vec<(&'static str, Value)> {
    vec![
        ("temperature", json!(-1)),
        ("temperature", json!(1e9)),
        ("temperature", json!("NaN")),
        ("top_p", json!(-1)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("min_p", json!(2)),
        ("top_k", json!(0.01)),
        ("top_k", json!(-2)),
        ("seed", json!(1.5)),
        ("seed", json!("x")),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("n", json!(1.5)),
        ("n", json!(4_000_000)),
        ("stop", json!(5)),
        ("ignore_eos", json!("yes")),
        ("logit_bias", json!({"320": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"sea": 1})),
        ("logit_bias", json!({"5": 100.5})),
        ("logit_bias", json!({"5": "1"})),
        ("logit_bias", json!([5, 1])),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(-1)),
        ("repetition_penalty", json!(1e300)),
        ("presence_penalty", json!(2.5)),
        ("presence_penalty", json!("0.5")),
        ("frequency_penalty", json!(-2.1)),
        ("min_tokens", json!(5)),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(0.5)),
        ("min_new_tokens", json!(3)),
        ("use_beam_search", json!(true)),
        ("misspelt", json!(1)),
    ]
}

/// Endpoint, field, value, and the field that the refusal names.
type Fault = (&'static str, &'static str, Value, &'static str);

fn chats_at_fault() -> Vec<Fault> {
    vec![
        (CHAT, "stop", json!([""]), "stop[0]"),
        (CHAT, "stop", json!(["x".repeat(2000)]), "stop[0]"),
        (CHAT, "stop", json!(vec!["x"; 100]), "stop"),
        (CHAT, "stop", json!([1]), "stop[0]"),
        (CHAT, "stop_token_ids", json!([V]), "stop_token_ids[0]"),
        (CHAT, "stop_token_ids", json!([-1]), "stop_token_ids[0]"),
        (CHAT, "top_logprobs", json!(3), "top_logprobs"),
        (CHAT, "max_tokens", json!(0), "max_tokens"),
        (CHAT, "max_completion_tokens", json!(-3), "max_completion_tokens"),
        (CHAT, "messages", json!([]), "messages"),
        (CHAT, "messages", json!(null), "messages"),
        (CHAT, "messages", json!("hi"), "messages"),
        (CHAT, "messages", json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (CHAT, "messages", json!([{"role": "wizard", "content": "x"}]), "messages[0].role"),
        (
            CHAT,
            "messages",
            json!([{"role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
        ),
        (CHAT, "stream_options", json!({"include_usage": true}), "stream_options"),
        (CHAT, "stream", json!("true"), "stream"),
        (CHAT, "speculation", json!({"max_width": 0}), "speculation.max_width"),
        (CHAT, "speculation", json!({"max_width": 9}), "speculation.max_width"),
        (CHAT, "speculation", json!({"enabled": false, "max_width": 2}), "speculation.max_width"),
        (CHAT, "speculation", json!({"on": true}), "speculation.on"),
        (CHAT, "speculation", json!(true), "speculation"),
        (CHAT, "model", json!(5), "model"),
    ]
}

fn others_at_fault() -> Vec<Fault> {
    vec![
        (COMPLETIONS, "prompt", json!([-1]), "prompt[0]"),
        (COMPLETIONS, "prompt", json!([V]), "prompt[0]"),
        (COMPLETIONS, "prompt", json!([5, 9_223_372_036_854_775_807_u64]), "prompt[1]"),
        (COMPLETIONS, "prompt", json!([[5], [1.5]]), "prompt[1][0]"),
        (COMPLETIONS, "prompt", json!(["a", 5]), "prompt[1]"),
        (COMPLETIONS, "prompt", json!([]), "prompt"),
        (COMPLETIONS, "prompt", json!(""), "prompt"),
        (COMPLETIONS, "prompt", json!(["a", ""]), "prompt"),
        (COMPLETIONS, "prompt", json!(null), "prompt"),
        (COMPLETIONS, "prompt", json!({}), "prompt"),
        (COMPLETIONS, "suffix", json!("end"), "suffix"),
        (COMPLETIONS, "best_of", json!(2), "best_of"),
        (COMPLETIONS, "best_of", json!(0), "best_of"),
        (COMPLETIONS, "logprobs", json!(100_000_000), "logprobs"),
        (COMPLETIONS, "logprobs", json!(true), "logprobs"),
        (COMPLETIONS, "echo", json!(1), "echo"),
        (COMPLETIONS, "max_tokens", json!(-1), "max_tokens"),
        (COMPLETIONS, "prompt_logprobs", json!(1), "prompt_logprobs"),
        (GENERATE, "input_ids", json!([5]), "input_ids"),
        (GENERATE, "sampling_params", json!([]), "sampling_params"),
        (GENERATE, "sampling_params.max_new_tokens", json!(-1), "sampling_params.max_new_tokens"),
        (GENERATE, "logprob_start_len", json!(-2), "logprob_start_len"),
        (GENERATE, "logprob_start_len", json!(0), "logprob_start_len"),
        (GENERATE, "prompt_logprobs", json!(1), "prompt_logprobs"),
        (GENERATE, "top_logprobs_num", json!(21), "top_logprobs_num"),
        ("/tokenize", "prompt", json!(5), "prompt"),
        ("/tokenize", "prompt", json!(null), "prompt"),
        ("/detokenize", "tokens", json!([V]), "tokens[0]"),
        ("/detokenize", "tokens", json!("x"), "tokens"),
        ("/detokenize", "extra", json!("x"), "extra"),
    ]
}

#[test]
fn every_field_out_of_its_range_is_named() {
    let site = Site::tiny(Setup::default());
    for path in [CHAT, COMPLETIONS, GENERATE, RESPONSES] {
        let prefix = if path == GENERATE { "sampling_params." } else { "" };
        for (field, value) in bad_sampling() {
            let field = format!("{prefix}{field}");
            let (status, param, _) = site.post(path, &with(path, &field, &value)).refusal();
            assert_eq!((status, param.as_str()), (400, field.as_str()), "{path} {field} {value}");
        }
    }
    for (path, field, value, param) in chats_at_fault().into_iter().chain(others_at_fault()) {
        let (status, named, _) = site.post(path, &with(path, field, &value)).refusal();
        assert_eq!((status, named.as_str()), (400, param), "{path} {field} {value}");
    }
    let both = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true,
        "top_logprobs": 100_000_000});
    assert_eq!(site.post(CHAT, &both).refusal().1, "top_logprobs");
    let few = json!({"prompt": "x", "n": 3, "best_of": 2, "stream": true});
    assert_eq!(site.post(COMPLETIONS, &few).refusal().1, "best_of");
    let late = json!({"input_ids": [5, 6], "return_logprob": true, "logprob_start_len": 2});
    assert_eq!(site.post(GENERATE, &late).refusal().1, "logprob_start_len");
    for path in [CHAT, COMPLETIONS, GENERATE, RESPONSES, "/tokenize", "/detokenize"] {
        let other = site.post(path, &with(path, "model", &json!("gpt-4"))).refusal();
        assert_eq!(other, (404, "model".into(), "model_not_found".into()));
        assert_eq!(site.post(path, &with(path, "model", &json!(NAME))).status, 200, "{path}");
    }
}

#[test]
fn refusals_leave_a_running_stream_alone() {
    let setup = || Setup { context: 4096, ..Setup::default() };
    // Fewer tokens than are buffered: however late they are read, the client is not cut off.
    let body =
        json!({"text": "go", "sampling_params": {"max_new_tokens": 1000, "ignore_eos": true}});
    let alone = Site::scripted(Script::letters(), setup()).ask(GENERATE, &body);
    let site = Site::scripted(Script::letters(), setup());
    let mut streaming = body.clone();
    streaming["stream"] = true.into();
    let mut stream = site.open(GENERATE, &streaming);
    let mut ids = stream.json_event()["output_ids"].as_array().expect("ids").clone();
    let more = [("stop_token_ids", json!([V])), ("top_logprobs", json!(100_000_000))];
    for (field, value) in bad_sampling().into_iter().chain(more) {
        assert_eq!(site.post(CHAT, &with(CHAT, field, &value)).status, 400);
    }
    for prompt in [json!([-1]), json!([V]), json!([9_223_372_036_854_775_807_u64])] {
        assert_eq!(site.post(COMPLETIONS, &json!({"prompt": prompt})).status, 400);
    }
    for event in stream.events() {
        ids.extend(event["output_ids"].as_array().expect("ids").iter().cloned());
    }
    assert_eq!(alone["output_ids"], Value::Array(ids));
}

#[test]
fn a_stream_that_cannot_be_is_refused_before_it_begins() {
    let site = Site::tiny(Setup::default());
    for n in [json!(0), json!(-1), json!(1.5), json!(4_000_000)] {
        for path in [CHAT, COMPLETIONS] {
            let mut body = with(path, "n", &n);
            body["stream"] = true.into();
            let answer = site.post(path, &body);
            // Its end was read: the connection is closed.
            assert_eq!(answer.refusal(), (400, "n".into(), String::new()), "{body}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
        }
    }
    assert_eq!(site.load(), (0, 0));
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let site = Site::tiny(Setup::default());
    let floats = json!({"prompt": [5.0, 6.0], "max_tokens": 2.0, "n": 1.0, "seed": 7.0});
    let whole = json!({"prompt": [5, 6], "max_tokens": 2, "n": 1, "seed": 7});
    assert_eq!(site.ask(COMPLETIONS, &floats)["choices"], site.ask(COMPLETIONS, &whole)["choices"]);
    // Above 0, however little.
    let least = json!({"prompt": "x", "max_tokens": 1, "top_p": 1e-300});
    assert_eq!(site.post(COMPLETIONS, &least).status, 200);
    let beyond = json!({"prompt": "x", "temperature": 2.000_000_01});
    assert_eq!(site.post(COMPLETIONS, &beyond).refusal().1, "temperature");
}

#[test]
fn prompts_that_fill_the_context_are_refused_with_both_numbers() {
    let setup = Setup { context: 128, ..Setup::default() };
    let site = Site::scripted(Script::letters().in_blocks(8), setup);
    let ask = |tokens: usize, more: Value| {
        let mut body = json!({"prompt": vec![10; tokens], "ignore_eos": true});
        body["max_tokens"] = more;
        site.post(COMPLETIONS, &body)
    };
    for tokens in [128, 129, 135, 200] {
        let answer = ask(tokens, json!(null));
        assert_eq!(answer.refusal(), (400, "prompt".into(), "context_length_exceeded".into()));
        let error = answer.json();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        let message = error["error"]["message"].as_str().expect("a message");
        assert!(message.contains(&tokens.to_string()) && message.contains("128"), "{message}");
    }
    for (prompt, most, made) in [(120, json!(50), 8), (127, json!(1), 1), (127, json!(null), 1)] {
        let answer = ask(prompt, most).json();
        assert_eq!(answer["usage"]["completion_tokens"], made, "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(200)}]});
    let refusal = site.post(CHAT, &long).refusal();
    assert_eq!(refusal, (400, "messages".into(), "context_length_exceeded".into()));
}

#[test]
fn routes_and_methods_that_do_not_exist_say_so() {
    let site = Site::tiny(Setup::default());
    for path in ["/page", "/v1", "/v1/embeddings", "/v1/chat/completions/x"] {
        assert_eq!(site.get(path).refusal(), (404, String::new(), "not_found".into()), "{path}");
    }
    let answer = site.get(CHAT);
    assert_eq!(answer.refusal(), (405, String::new(), "method_not_allowed".into()));
    assert_eq!(answer.header("allow"), Some("POST"));
    assert_eq!(site.post("/health", &json!({})).status, 405);
}

#[test]
fn bodies_that_are_no_json_say_where_and_large_ones_are_not_read() {
    let mut setup = Setup { context: 4096, ..Setup::default() };
    setup.config.limits.body_bytes = 4 << 20;
    let site = Site::scripted(Script::letters(), setup);
    let send = |body: &[u8]| {
        let json = [("content-type", "application/json; charset=utf-8")];
        open_with(site.address, "POST", CHAT, &json, body).whole()
    };
    let nested = "[".repeat(100_000);
    for (body, says) in [
        (b"{\"messages\": [".to_vec(), "line 1 column 14"),
        (b"{\"messages\":\n nope}".to_vec(), "line 2"),
        (b"{\"model\": \"\xff\xfe\"}".to_vec(), "line 1"),
        (format!("{{\"messages\": {nested}").into_bytes(), "recursion limit"),
        (b"[]".to_vec(), "an array"),
        (b"\"hi\"".to_vec(), "\"hi\""),
    ] {
        let answer = send(&body);
        assert_eq!(answer.refusal().0, 400);
        assert!(answer.text.contains(&says.replace('"', "\\\"")), "{says}: {}", answer.text);
    }
    // Three megabytes reach the check of the context, thirty do not.
    let prompt = |bytes: usize| json!({"prompt": "a ".repeat(bytes / 2)}).to_string();
    let json = [("content-type", "application/json")];
    let post = |body: &[u8]| open_with(site.address, "POST", COMPLETIONS, &json, body).whole();
    assert_eq!(post(prompt(3 << 20).as_bytes()).refusal().2, "context_length_exceeded");
    assert_eq!(
        post(prompt(30 << 20).as_bytes()).refusal(),
        (413, String::new(), "body_too_large".into())
    );
    let mut huge = connect(site.address);
    huge.write_all(&head("POST", CHAT, &json, 1 << 30)).expect("the head is read");
    assert_eq!(receive(huge).whole().refusal().0, 413);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let kind = [("content-type", kind)];
        let answer = open_with(site.address, "POST", CHAT, &kind, b"{}").whole();
        assert_eq!(answer.refusal().0, 415);
    }
    assert_eq!(site.get("/health").status, 200);
}

#[test]
fn a_body_that_does_not_come_is_waited_for_so_long_and_no_longer() {
    let mut setup = Setup::default();
    setup.config.limits.body_time = std::time::Duration::from_millis(50);
    let site = Site::tiny(setup);
    let mut slow = connect(site.address);
    slow.write_all(&head("POST", CHAT, &[("content-type", "application/json")], 100)).unwrap();
    slow.write_all(b"{\"mess").unwrap();
    assert_eq!(receive(slow).whole().refusal(), (408, String::new(), "body_incomplete".into()));
}

#[test]
fn keys_open_the_server_and_health_needs_none() {
    let mut setup = Setup::default();
    setup.config.keys = ["one", "two"].map(|key| ApiKey::new(key).expect("a key")).to_vec();
    let site = Site::tiny(setup);
    let get = |path: &str, headers: &[(&str, &str)]| {
        open_with(site.address, "GET", path, headers, b"").whole()
    };
    for headers in [
        &[][..],
        &[("authorization", "Bearer three")],
        &[("authorization", "Bearer on")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Basic one")],
        &[("authorization", "one")],
    ] {
        for path in ["/v1/models", "/metrics", "/server_info"] {
            let answer = get(path, headers);
            assert_eq!(answer.refusal(), (401, String::new(), "invalid_api_key".into()));
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        for path in ["/health", "/ready", "/version", "/openapi.json"] {
            assert_eq!(get(path, headers).status, 200);
        }
    }
    for key in ["Bearer one", "Bearer two", "bearer one"] {
        assert_eq!(get("/v1/models", &[("authorization", key)]).status, 200, "{key}");
    }
}

#[test]
fn other_origins_read_nothing_unless_they_are_named() {
    let ask = |site: &Site, origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization, content-type"),
        ];
        let preflight = open_with(site.address, "OPTIONS", CHAT, &headers, b"").whole();
        let real = open_with(site.address, "GET", "/v1/models", &headers[..1], b"").whole();
        let allowed = "access-control-allow-origin";
        (preflight.header(allowed).map(str::to_owned), real.header(allowed).map(str::to_owned))
    };
    let closed = Site::tiny(Setup::default());
    assert_eq!(ask(&closed, "https://a.example"), (None, None));
    let mut setup = Setup::default();
    setup.config.origins = vec!["https://a.example".into()];
    setup.config.keys = vec![ApiKey::new("key").expect("a key")];
    let named = Site::tiny(setup);
    let own = Some("https://a.example".to_owned());
    assert_eq!(ask(&named, "https://a.example"), (own.clone(), own));
    assert_eq!(ask(&named, "https://b.example"), (None, None));
    let mut setup = Setup::default();
    setup.config.origins = vec!["*".into()];
    let any = Some("*".to_owned());
    assert_eq!(ask(&Site::tiny(setup), "https://b.example"), (any.clone(), any));
}

#[test]
fn request_ids_are_kept_or_made() {
    let site = Site::tiny(Setup::default());
    let id = |own: &str| {
        let answer = open_with(site.address, "GET", "/health", &[("x-request-id", own)], b"");
        answer.header("x-request-id").expect("an id").to_owned()
    };
    assert_eq!(id("trace-7/b"), "trace-7/b");
    for bad in ["", "two words", &"x".repeat(200)] {
        let made = id(bad);
        assert!(made.len() == 32 && made != bad, "{made}");
    }
    let refused = client::open(site.address, "POST", CHAT, "{").whole();
    assert!(refused.header("x-request-id").is_some_and(|id| id.len() == 32));
}

#[test]
fn a_storm_of_bad_requests_hurts_nobody() {
    let site = Site::tiny(Setup::default());
    let address = site.address;
    let storm: Vec<_> = (0..8)
        .map(|thread| {
            std::thread::spawn(move || {
                for round in 0..25 {
                    let mut stream = connect(address);
                    let bytes: &[u8] = match (thread + round) % 4 {
                        0 => b"GET / HTTP/9.9\r\n\r\n",
                        1 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                        2 => b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 9999999999999\r\n",
                        _ => b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                               content-length: 40\r\n\r\n{\"text\"",
                    };
                    let _ = stream.write_all(bytes);
                }
            })
        })
        .collect();
    let good = json!({"prompt": "the sea ", "max_tokens": 12, "temperature": 0});
    let first = site.ask(COMPLETIONS, &good);
    for _ in 0..10 {
        assert_eq!(site.ask(COMPLETIONS, &good)["choices"], first["choices"]);
    }
    storm.into_iter().for_each(|thread| thread.join().expect("the storm passes"));
    eventually("an idle engine", || site.load() == (0, 0));
}

/// Any JSON, small.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..30).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        Just(json!({"role": "user", "content": "x"})),
        Just(json!({"type": "text", "text": "x"})),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,8}", inner), 0..3)
                .prop_map(|fields| fields.into_iter().collect::<Value>()),
        ]
    })
}

/// What fields a body may have, somewhere.
const FIELDS: [&str; 51] = [
    "ebnf",
    "return_logprob",
    "logprob_start_len",
    "guided_json",
    "structured_outputs",
    "model",
    "messages",
    "prompt",
    "text",
    "input_ids",
    "tokens",
    "tools",
    "tool_choice",
    "n",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "min_new_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "speculation",
    "echo",
    "best_of",
    "response_format",
    "sampling_params",
    "chat_template_kwargs",
    "parallel_tool_calls",
    "input",
    "instructions",
    "max_output_tokens",
    "reasoning",
    "include",
    "metadata",
    "user",
    "truncation",
    "store",
    "suffix",
];

#[test]
fn no_body_breaks_the_server() {
    let setup = Setup { context: 64, running: 8, waiting: 500, ..Setup::default() };
    let site = Site::scripted(Script::letters(), setup);
    let body = prop::collection::vec((prop::sample::select(&FIELDS[..]), anything()), 0..4);
    let paths = vec![CHAT, COMPLETIONS, GENERATE, RESPONSES, "/tokenize", "/detokenize"];
    let path = prop::sample::select(paths);
    let mut runner = TestRunner::new(ProptestConfig { cases: 400, ..ProptestConfig::default() });
    let outcome = runner.run(&(path, body, any::<bool>()), |(path, fields, from_usual)| {
        let mut body = if from_usual { usual(path) } else { json!({}) };
        for (field, value) in fields {
            body[field] = value;
        }
        let answer = site.post(path, &body);
        prop_assert!(matches!(answer.status, 200 | 400 | 404), "{path} {body}: {}", answer.text);
        Ok(())
    });
    outcome.expect("every body is answered or refused");
    eventually("an idle engine", || site.load() == (0, 0));
}
