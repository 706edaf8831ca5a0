//! How a server ends: told to, told to while it works, and because its engine failed.

use crate::client::{connect, head, receive};
use crate::site::{Gate, Script, Setup, Site, eventually};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";

fn body(tokens: usize) -> Value {
    json!({"prompt": [10, 11], "max_tokens": tokens, "ignore_eos": true, "stream": true})
}

#[test]
fn an_idle_server_ends_at_once() {
    let site = Site::tiny(Setup::default());
    assert_eq!(site.get("/ready").status, 200);
    let address = site.address;
    assert_eq!(site.end(), Ok(()));
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn draining_finishes_what_is_open_and_takes_nothing_new() {
    let gate = Arc::new(Gate::default());
    let setup = Setup { running: 2, ..Setup::default() };
    let site = Site::scripted(Script::letters().behind(&gate), setup);
    let streams: Vec<_> = (0..3).map(|_| site.open(COMPLETIONS, &body(20))).collect();
    // Two run and one waits; which of them the engine has looked at yet does not matter.
    eventually("three open requests", || site.load().0 + site.load().1 == 3);
    // One that is in the middle of its body.
    let late = body(5).to_string();
    let mut half = connect(site.address);
    let json = [("content-type", "application/json")];
    half.write_all(&head("POST", COMPLETIONS, &json, late.len())).unwrap();
    half.write_all(&late.as_bytes()[..10]).unwrap();
    // It has been accepted when a later connection has been answered.
    assert_eq!(site.get("/ready").status, 200);
    site.control.drain();
    eventually("a closed door", || TcpStream::connect(site.address).is_err());
    half.write_all(&late.as_bytes()[10..]).unwrap();
    let refused = receive(half).whole();
    assert_eq!(refused.refusal(), (503, String::new(), "shutting_down".into()));
    assert!(refused.header("retry-after").is_some());
    gate.open();
    for stream in streams {
        let events = stream.events();
        assert_eq!(events.last().expect("events")["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(site.end(), Ok(()));
}

#[test]
fn what_does_not_finish_in_time_is_ended_with_an_error() {
    let gate = Arc::new(Gate::default());
    let mut setup = Setup { running: 1, ..Setup::default() };
    setup.config.limits.drain_time = Duration::from_millis(50);
    let site = Site::scripted(Script::letters().behind(&gate), setup);
    let running = site.open(COMPLETIONS, &body(400));
    let waiting = site.open(COMPLETIONS, &body(400));
    eventually("one running, one waiting", || site.load() == (1, 1));
    site.control.drain();
    std::thread::sleep(Duration::from_millis(200));
    gate.open();
    for stream in [running, waiting] {
        let events = stream.events();
        let last = events.last().expect("events");
        // The first may have been fast enough once the gate was open.
        let done = last["choices"][0]["finish_reason"] == "length";
        assert!(done || last["error"]["code"] == "shutting_down", "{last}");
    }
    assert_eq!(site.end(), Ok(()));
}

#[test]
fn a_failed_engine_fails_what_is_open_and_the_server_with_it() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let script = Script::letters().before(move |pass| {
        held.pass();
        assert!(pass < 3, "the model broke");
    });
    let mut setup = Setup { running: 1, ..Setup::default() };
    setup.config.limits.failure_time = Duration::from_secs(3600);
    let site = Site::scripted(script, setup);
    let streaming = site.open(COMPLETIONS, &body(50));
    let answers = std::thread::scope(|scope| {
        let mut whole = body(50);
        whole["stream"] = false.into();
        let site = &site;
        let waiting = scope.spawn(move || site.post(COMPLETIONS, &whole));
        eventually("one running, one waiting", || site.load() == (1, 1));
        gate.open();
        waiting.join().expect("an answer")
    });
    assert_eq!(answers.refusal(), (503, String::new(), "engine_failed".into()));
    assert!(answers.text.contains("the model broke"));
    let events = streaming.events();
    assert_eq!(events.last().expect("events")["error"]["code"], "engine_failed");
    eventually("a health that says so", || site.get("/health").status == 503);
    assert_eq!(site.get("/ready").refusal().2, "engine_failed");
    assert_eq!(site.post(COMPLETIONS, &body(5)).refusal().2, "engine_failed");
    assert_eq!(site.get("/metrics").status, 200);
    let lost = site.end().expect_err("the server says why it ended");
    assert!(lost.to_string().contains("the model broke"));
}
