//! `serve` as operators run it: its one line, its signals, and what it refuses to start with.

use crate::{Run, command, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A server with the default pair, and its address.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start() -> Serving {
        crate::target();
        crate::drafter();
        let mut child = command(&["serve", "--port", "0", "--log", "off"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("it was asked for"));
        out.read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Serving { child, address }
    }

    /// A stream that would run for a long while, once its head has come.
    fn stream(&self) -> TcpStream {
        let body =
            "{\"prompt\": \"a\", \"max_tokens\": 8000, \"ignore_eos\": true, \"stream\": true}";
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        let length = body.len();
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").expect("the server reads");
        let mut status = [0; 15];
        stream.read_exact(&mut status).expect("an answer");
        assert_eq!(&status, b"HTTP/1.1 200 OK");
        stream
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().expect("kill runs");
        assert!(sent.success());
    }
}

#[test]
fn a_signal_drains_and_a_second_one_ends_at_once() {
    let mut idle = Serving::start();
    idle.signal("-TERM");
    assert_eq!(idle.child.wait().expect("it ends").code(), Some(0));

    let mut busy = Serving::start();
    let mut stream = busy.stream();
    busy.signal("-INT");
    // It listens no more, and goes on with what is open.
    while TcpStream::connect(&busy.address).is_ok() {
        stream.read_exact(&mut [0; 16]).expect("the stream goes on");
    }
    stream.read_exact(&mut [0; 64]).expect("the stream goes on");
    busy.signal("-INT");
    assert_eq!(busy.child.wait().expect("it ends").code(), Some(130));
}

#[test]
fn what_it_cannot_serve_with_is_named() {
    let path = tempfile::NamedTempFile::new().expect("a temporary file");
    let empty = path.path().to_str().expect("a path of text").to_owned();
    run(&["serve", "--api-key-file", "nowhere.txt"]).refused(&["--api-key-file nowhere.txt"]);
    run(&["serve", "--api-key-file", &empty]).refused(&["holds no key"]);
    std::fs::write(&empty, "# mine\n\ntwo words\n").expect("it is ours");
    run(&["serve", "--api-key-file", &empty]).refused(&["line 3", "visible ASCII"]);

    let collector = ["serve", "--plain", "--otlp-endpoint", "http://127.0.0.1:9"];
    run(&collector).refused(&["--otlp-endpoint http://127.0.0.1:9", "--features otel"]);
    let mut named = command(&["serve", "--plain"]);
    named.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let named: Run = named.output().expect("the program starts").into();
    named.refused(&["OTEL_EXPORTER_OTLP_ENDPOINT http://127.0.0.1:9", "--features otel"]);

    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    run(&["serve", "--port", &port, "--plain"]).refused(&[&port, "--port"]);
    for arguments in [
        ["--cors-origin", "example.org"],
        ["--api-key", "two words"],
        ["--max-running", "0"],
        ["--drain-timeout", "0"],
        ["--log", "loud"],
    ] {
        let Some(2) = run(&["serve", arguments[0], arguments[1]]).code else {
            panic!("{arguments:?} were taken")
        };
    }
}
