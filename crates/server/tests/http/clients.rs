//! Clients that vanish, clients that do not read, and more of them than there is room for.

use crate::client::{self, connect, head, receive};
use crate::site::{Gate, Script, Setup, Site, eventually};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

const COMPLETIONS: &str = "/v1/completions";

/// A completion of `tokens` tokens.
fn long(tokens: usize) -> Value {
    json!({"prompt": [10, 11], "max_tokens": tokens, "ignore_eos": true})
}

fn streamed(tokens: usize) -> Value {
    let mut body = long(tokens);
    body["stream"] = true.into();
    body
}

/// A site that runs one request at a time, behind a gate.
fn single(waiting: usize) -> (Site, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let setup = Setup { running: 1, waiting, context: 8192, ..Setup::default() };
    (Site::scripted(Script::letters().behind(&gate), setup), gate)
}

/// Sends a request and does not wait for the answer.
fn send(site: &Site, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = connect(site.address);
    let json = [("content-type", "application/json")];
    stream.write_all(&head("POST", COMPLETIONS, &json, body.len())).expect("the head is read");
    stream.write_all(body.as_bytes()).expect("the body is read");
    stream
}

/// Lets one pass after another run until nothing is left; far fewer than the request would take.
fn ends_early(site: &Site, gate: &Gate) {
    let mut passes = 0;
    eventually("an idle engine", || {
        gate.give(1);
        passes += 1;
        site.load() == (0, 0)
    });
    assert!(passes < 4000, "the request ran on for {passes} passes");
    let pages = site.control.engine().snapshot().pages;
    assert_eq!(pages.held, 0);
    assert_eq!(pages.free + pages.cached, pages.total);
}

#[test]
fn a_stream_whose_client_hangs_up_ends() {
    let (site, gate) = single(4);
    gate.give(6);
    let mut stream = site.open(COMPLETIONS, &streamed(4096));
    for _ in 0..5 {
        stream.json_event();
    }
    drop(stream);
    ends_early(&site, &gate);
    gate.open();
    assert_eq!(site.ask(COMPLETIONS, &long(3))["usage"]["completion_tokens"], 3);
}

#[test]
fn a_client_that_hangs_up_before_its_answer_costs_nothing_further() {
    let (site, gate) = single(4);
    gate.give(6);
    let waiting = send(&site, &long(4096));
    eventually("a running request", || site.load().0 == 1);
    drop(waiting);
    ends_early(&site, &gate);
    gate.open();
}

#[test]
fn a_client_that_hangs_up_in_the_queue_is_never_computed() {
    let (site, gate) = single(4);
    let mut first = site.open(COMPLETIONS, &streamed(40));
    gate.give(1);
    first.json_event();
    let queued: Vec<TcpStream> =
        [long(4096), streamed(4096)].iter().map(|b| send(&site, b)).collect();
    eventually("a queue", || site.load() == (1, 2));
    drop(queued);
    eventually("an empty queue", || {
        gate.give(1);
        site.load().1 == 0
    });
    gate.open();
    first.events();
    let admitted = site.control.engine().snapshot().tally.admitted_tokens;
    assert_eq!(admitted, 2, "only the first request's prompt was ever looked at");
}

#[test]
fn a_full_queue_refuses_with_a_time_to_come_back() {
    let (site, gate) = single(2);
    let held: Vec<TcpStream> = (0..3).map(|_| send(&site, &long(5))).collect();
    eventually("a full queue", || site.load() == (1, 2));
    for body in [long(5), streamed(5)] {
        let answer = site.post(COMPLETIONS, &body);
        assert_eq!(answer.refusal(), (429, String::new(), "queue_full".into()));
        assert!(answer.header("retry-after").and_then(|s| s.parse::<u32>().ok()).is_some());
    }
    // More choices than there are places are refused as one, and hold none.
    let mut many = long(5);
    many["n"] = 3.into();
    assert_eq!(site.post(COMPLETIONS, &many).refusal().0, 429);
    assert_eq!(site.metric("slipstream_num_requests_waiting"), 2.0);
    assert_eq!(site.get("/health").status, 200);
    gate.open();
    for stream in held {
        assert_eq!(receive(stream).whole().json()["usage"]["completion_tokens"], 5);
    }
    assert_eq!(site.post(COMPLETIONS, &many).status, 200);
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_others_go_on() {
    let mut setup = Setup { running: 2, context: 1 << 17, ..Setup::default() };
    setup.config.limits.buffered_updates = 64;
    let site = Site::scripted(Script::letters(), setup);
    // More than sockets hold: every token with twenty alternatives.
    let mut body = streamed(100_000);
    body["logprobs"] = 20.into();
    let mut lazy = send(&site, &body);
    eventually("a running request", || site.metric("slipstream_generation_tokens_total") > 0.0);
    assert_eq!(site.ask(COMPLETIONS, &long(50))["usage"]["completion_tokens"], 50);
    eventually("an end to it", || site.load() == (0, 0));
    assert!(site.metric("slipstream_generation_tokens_total") < 100_000.0);
    // What was on its way is read; the end never comes.
    let mut rest = Vec::new();
    let _ = lazy.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"));
    assert_eq!(site.control.engine().snapshot().pages.held, 0);
}

#[test]
fn vanishing_clients_in_crowds_leave_nothing_behind() {
    let setup = Setup { running: 4, waiting: 1000, context: 1024, ..Setup::default() };
    let site = Site::scripted(Script::letters().in_blocks(4), setup);
    let address = site.address;
    let threads: Vec<_> = (0..8)
        .map(|thread: usize| {
            std::thread::spawn(move || {
                for round in 0..250 {
                    let body =
                        if (thread + round).is_multiple_of(2) { long(500) } else { streamed(500) };
                    let mut stream = client::connect(address);
                    let body = body.to_string();
                    let json = [("content-type", "application/json")];
                    stream.write_all(&head("POST", COMPLETIONS, &json, body.len())).unwrap();
                    // Half of the body, all of it, or all of it and some of the answer.
                    let some = if round % 3 == 0 { body.len() / 2 } else { body.len() };
                    stream.write_all(&body.as_bytes()[..some]).unwrap();
                    if round % 3 == 2 {
                        let _ = stream.read(&mut [0; 64]);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the crowd leaves"));
    // A request may still come of what the last of them sent.
    eventually("an idle engine with all its pages", || {
        let pages = site.control.engine().snapshot().pages;
        site.load() == (0, 0) && (pages.held, pages.free + pages.cached) == (0, pages.total)
    });
    assert_eq!(site.ask(COMPLETIONS, &long(7))["usage"]["completion_tokens"], 7);
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_health_is_answered() {
    let mut setup = Setup::default();
    setup.config.limits.connections = 3;
    let site = Site::tiny(setup);
    let held: Vec<TcpStream> = (0..3).map(|_| connect(site.address)).collect();
    eventually("refusals", || {
        let answer = site.post(COMPLETIONS, &long(2));
        answer.status == 503
            && answer.refusal().2 == "overloaded"
            && answer.header("retry-after").is_some()
    });
    assert_eq!(site.get("/health").status, 200);
    drop(held);
    eventually("a place", || site.post(COMPLETIONS, &long(2)).status == 200);
}
