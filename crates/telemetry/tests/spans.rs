//! What a collector gets of requests to a server, and what requests notice of a collector.

use device::Cpu;
use engine::{Engine, EngineOptions, Pair, PairOptions};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use server::{Config, Control, Model, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use telemetry::{Options, Telemetry};

/// No test waits longer than this; it is there to fail instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// A collector: its address, and what it was sent.
fn collector() -> (String, Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (send, sent) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            while let Some((head, body)) = message(&mut stream) {
                assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
                assert!(head.contains("application/x-protobuf"), "{head}");
                let spans = ExportTraceServiceRequest::decode(&body[..]).expect("spans");
                if send.send(spans).is_err() {
                    return;
                }
                let done = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.get_mut().write_all(done).expect("the client reads");
            }
        }
    });
    (format!("http://{address}"), sent)
}

/// Head and body of a message whose length is told; `None` at the end of a connection.
fn message(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
    });
    let mut body = vec![0; length?];
    stream.read_exact(&mut body).expect("a body");
    Some((head, body))
}

/// A server over the tiny pair whose requests become spans.
struct Site {
    telemetry: Telemetry,
    server: Server,
    control: Control,
    address: SocketAddr,
}

impl Site {
    fn start(options: &Options) -> Site {
        let fixture =
            |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
        let (target, draft) = (fixture("qwen3"), fixture("dflash"));
        let pair = Pair::load(&Cpu::new(2), &target, Some(&draft), &PairOptions::default());
        let pair = pair.expect("the committed models load");
        let model = Model::of(&pair);
        let telemetry = Telemetry::start(options).expect("an endpoint");
        let config =
            Config { port: 0, recorder: Some(telemetry.recorder()), ..Config::new("tiny") };
        let engine =
            Engine::new(pair, EngineOptions { max_running: 4, ..EngineOptions::default() });
        let server = Server::start(engine, model, config).expect("a free port");
        let (control, address) = (server.control(), server.address());
        Site { telemetry, server, control, address }
    }

    /// Status and body of an answer.
    fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> (String, String) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a valid time");
        let mut head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        for (name, value) in headers.iter().chain(&[("content-type", "application/json")]) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().expect("a status").to_owned(), body.to_owned())
    }

    /// Ends the server and then what sends spans.
    fn end(self) {
        self.control.drain();
        self.server.wait().expect("it ends well");
        self.telemetry.end();
    }
}

/// The spans that have arrived so far, once they are `count`.
fn spans(sent: &Receiver<ExportTraceServiceRequest>, count: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    while spans.len() < count {
        let export = sent.recv_timeout(PATIENCE).expect("spans arrive");
        for resource in export.resource_spans {
            let own = resource.resource.expect("a resource").attributes;
            assert_eq!(text(&own, "service.name"), "slipstream");
            spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    spans
}

fn value<'a>(attributes: &'a [KeyValue], name: &str) -> &'a Any {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    let value = found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
    value.unwrap_or_else(|| panic!("no {name} in {attributes:?}"))
}

fn text<'a>(attributes: &'a [KeyValue], name: &str) -> &'a str {
    match value(attributes, name) {
        Any::StringValue(text) => text,
        other => panic!("{name} is {other:?}"),
    }
}

fn number(attributes: &[KeyValue], name: &str) -> f64 {
    match value(attributes, name) {
        Any::IntValue(number) => *number as f64,
        Any::DoubleValue(number) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

fn quick(endpoint: &str) -> Options {
    Options { pace: Some(Duration::from_millis(20)), ..Options::new(endpoint) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn chat(more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "ships"}], "max_tokens": 12,
        "temperature": 0, "seed": 7});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

#[test]
fn a_request_is_a_span_of_its_callers_trace() {
    let (endpoint, sent) = collector();
    let site = Site::start(&quick(&endpoint));
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "mine")];
    let (status, answer) = site.post("/v1/chat/completions", &headers, &chat(&json!({"n": 2})));
    assert_eq!(status, "HTTP/1.1 200 OK", "{answer}");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let [span] = &spans(&sent, 1)[..] else { panic!("expected one span") };
    assert_eq!(
        (hex(&span.trace_id), hex(&span.parent_span_id)),
        (TRACE.into(), "00f067aa0ba902b7".into())
    );
    assert_eq!((span.name.as_str(), span.kind), ("chat tiny", 2), "a server's");
    assert!(span.start_time_unix_nano < span.end_time_unix_nano);
    let own = &span.attributes;
    for (name, want) in [
        ("slipstream.request.id", "mine"),
        ("http.request.method", "POST"),
        ("http.route", "/v1/chat/completions"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "tiny"),
        ("gen_ai.response.id", answer["id"].as_str().expect("an id")),
    ] {
        assert_eq!(text(own, name), want);
    }
    let usage = &answer["usage"];
    let details = &usage["completion_tokens_details"];
    for (name, want) in [
        ("http.response.status_code", &json!(200)),
        ("gen_ai.request.max_tokens", &json!(12)),
        ("gen_ai.request.temperature", &json!(0)),
        ("gen_ai.request.seed", &json!(7)),
        ("gen_ai.request.choice.count", &json!(2)),
        ("gen_ai.usage.input_tokens", &usage["prompt_tokens"]),
        ("gen_ai.usage.output_tokens", &usage["completion_tokens"]),
        ("slipstream.cached_tokens", &usage["prompt_tokens_details"]["cached_tokens"]),
        ("slipstream.drafts.accepted", &details["accepted_prediction_tokens"]),
        ("slipstream.drafts.refused", &details["rejected_prediction_tokens"]),
    ] {
        assert_eq!(Some(number(own, name)), want.as_f64(), "{name}");
    }
    assert!(number(own, "slipstream.tau") >= 1.0);
    let Any::ArrayValue(reasons) = value(own, "gen_ai.response.finish_reasons") else {
        panic!("expected a list")
    };
    let length = AnyValue { value: Some(Any::StringValue("length".into())) };
    assert_eq!(reasons.values, [length.clone(), length]);
    let events: Vec<&str> = span.events.iter().map(|event| event.name.as_str()).collect();
    let one = ["slipstream.started", "slipstream.first_token", "slipstream.ended"];
    assert_eq!(events, [&["slipstream.queued"][..], &one, &one].concat());
    for event in &span.events {
        assert!(event.time_unix_nano >= span.start_time_unix_nano, "{}", event.name);
    }
    site.end();
}

#[test]
fn refused_and_unsampled_requests_are_told_apart_from_others() {
    let (endpoint, sent) = collector();
    let site = Site::start(&quick(&endpoint));
    // A caller that keeps no trace gets none.
    let unsampled = format!("00-{TRACE}-00f067aa0ba902b7-00");
    site.post("/v1/chat/completions", &[("traceparent", &unsampled)], &chat(&json!({})));
    // What is no place in a trace begins one.
    let bad = [("traceparent", "00-nonsense-01")];
    let (status, _) = site.post("/v1/chat/completions", &bad, &chat(&json!({"n": 0})));
    assert_eq!(status, "HTTP/1.1 400 Bad Request");
    // Asking how the server is leaves no span.
    let (status, _) = site.post("/tokenize", &[], &json!({"prompt": "the sea"}));
    assert_eq!(status, "HTTP/1.1 200 OK");
    let generate = json!({"text": "the sea", "sampling_params": {"max_new_tokens": 3, "top_k": 5}});
    site.post("/generate", &[], &generate);
    site.end();
    let [refused, generated] = &spans(&sent, 2)[..] else { panic!("expected two spans") };
    assert_eq!(refused.name, "POST /v1/chat/completions");
    assert_eq!(text(&refused.attributes, "error.type"), "invalid_request_error");
    assert_eq!(refused.status.as_ref().map_or(0, |status| status.code), 0, "the client's fault");
    assert!(refused.parent_span_id.is_empty());
    assert_eq!(generated.name, "text_completion tiny");
    assert_eq!(number(&generated.attributes, "gen_ai.request.top_k"), 5.0);
    assert_eq!(number(&generated.attributes, "gen_ai.usage.output_tokens"), 3.0);
    assert!(sent.try_recv().is_err(), "nothing else was sent");
}

#[test]
fn a_collector_that_is_gone_or_stuck_is_nobodys_trouble() {
    // One that nobody listens at, and one that takes connections and never answers.
    let gone =
        TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let stuck = TcpListener::bind("127.0.0.1:0").expect("a free port");
    for address in [gone, stuck.local_addr().expect("an address")] {
        let patience = Duration::from_millis(200);
        let queue = Some(4);
        let options = Options { queue, patience, ..quick(&format!("http://{address}")) };
        let site = Site::start(&options);
        let alone = site.post("/v1/chat/completions", &[], &chat(&json!({}))).1;
        let text = |answer: &str| {
            let answer: Value = serde_json::from_str(answer).expect("JSON");
            answer["choices"][0]["message"]["content"].clone()
        };
        // Many times what the queue holds.
        for _ in 0..50 {
            let (status, answer) = site.post("/v1/chat/completions", &[], &chat(&json!({})));
            assert_eq!((status.as_str(), text(&answer)), ("HTTP/1.1 200 OK", text(&alone)));
        }
        site.end();
    }
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    for endpoint in ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://exa mple"] {
        let error = Telemetry::start(&Options::new(endpoint)).expect_err(endpoint).to_string();
        assert!(error.starts_with(endpoint) && error.contains("give the address"), "{error}");
    }
}
