//! How streams are framed, and what is told in them when something goes wrong.

use crate::site::{Gate, Script, Setup, Site, eventually};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_role_comes_first_and_then_a_delta_a_step() {
    let gate = Arc::new(Gate::default());
    let site = Site::scripted(Script::letters().behind(&gate), Setup::default());
    let body = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 3,
        "ignore_eos": true, "stream": true});
    let mut stream = site.open("/v1/chat/completions", &body);
    assert_eq!(stream.header("cache-control"), Some("no-cache"));
    // Before anything is computed.
    let first = stream.json_event();
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(first["slipstream"]["seed"].is_u64());
    // The prompt's pass gives the first token, and each further one another.
    for _ in 0..3 {
        gate.give(1);
        let event = stream.json_event();
        let text = event["choices"][0]["delta"]["content"].as_str().expect("content");
        assert_eq!((text.len(), &event["choices"][0]["finish_reason"]), (1, &json!(null)));
    }
    let last = stream.json_event();
    assert_eq!(
        (&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]),
        (&json!({}), &json!("length"))
    );
    assert_eq!(stream.event().expect("the end").as_deref(), Some("[DONE]"));
    assert_eq!(stream.event().expect("the end"), None);
    gate.open();
}

/// How long a request may take here.
const TIME: Duration = Duration::from_millis(100);

#[test]
fn a_request_whose_time_is_up_is_told_so() {
    let gate = Arc::new(Gate::default());
    let mut setup = Setup { running: 1, ..Setup::default() };
    setup.config.limits.request_time = Some(TIME);
    let site = Site::scripted(Script::letters().behind(&gate), setup);
    let body = json!({"prompt": [10, 11], "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut running = site.open("/v1/completions", &body);
    gate.give(1);
    assert_eq!(running.json_event()["choices"][0]["text"], "");
    // This one never starts.
    let queued = std::thread::scope(|scope| {
        let ask = scope
            .spawn(|| site.post("/v1/completions", &json!({"prompt": [10, 11], "max_tokens": 4})));
        eventually("two open requests", || site.load().0 + site.load().1 == 2);
        // The time of both runs from before this moment.
        std::thread::sleep(TIME);
        gate.open();
        ask.join().expect("an answer")
    });
    assert_eq!(queued.refusal(), (503, String::new(), "request_timeout".into()));
    assert!(queued.header("retry-after").is_some());
    let events = running.events();
    assert_eq!(events.last().expect("events")["error"]["code"], "request_timeout");
    assert_eq!(site.load(), (0, 0));
}
