//! A small HTTP/1.1 client that can do what a bad one does: send half a request, stop reading, hang
//! up.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No test waits longer than this for a byte; it is there to fail instead of hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer whose head has come.
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: BufReader<Body>,
}

/// An answer as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) text: String,
}

/// A body as it is framed.
struct Body {
    stream: BufReader<TcpStream>,
    frame: Frame,
}

enum Frame {
    /// So many bytes are left.
    Length(usize),
    /// So many bytes are left of the chunk.
    Chunk(usize),
    End,
}

/// Sends a request and waits for the head of the answer.
pub(crate) fn open(address: SocketAddr, method: &str, path: &str, body: &str) -> Response {
    let json = [("content-type", "application/json")];
    let headers: &[(&str, &str)] = if body.is_empty() { &[] } else { &json };
    open_with(address, method, path, headers, body.as_bytes())
}

/// The same with headers of the caller's.
pub(crate) fn open_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut stream = connect(address);
    stream.write_all(&head(method, path, headers, body.len())).expect("the server reads heads");
    // A server may answer and hang up before it has read all.
    let _ = stream.write_all(body);
    receive(stream)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a valid time");
    stream
}

/// The head of a request with a body of `length` bytes.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if length > 0 {
        text.push_str(&format!("content-length: {length}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

/// Waits for the head of an answer.
pub(crate) fn receive(stream: TcpStream) -> Response {
    let mut stream = BufReader::new(stream);
    let status = line(&mut stream);
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.expect("an HTTP status line");
    let mut headers = Vec::new();
    loop {
        let line = line(&mut stream);
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value);
    let frame = match find("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => Frame::Length(length),
        None => Frame::Chunk(0),
    };
    Response { status, headers, body: BufReader::new(Body { stream, frame }) }
}

fn line(stream: &mut impl BufRead) -> String {
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line of text");
    line.trim_end().to_owned()
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Frame::Chunk(0) = self.frame {
            let size = match line(&mut self.stream) {
                empty if empty.is_empty() => line(&mut self.stream),
                size => size,
            };
            self.frame = match usize::from_str_radix(&size, 16) {
                Ok(0) => Frame::End,
                Ok(size) => Frame::Chunk(size),
                // The connection was cut between two chunks.
                Err(_) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let left = match &mut self.frame {
            Frame::End | Frame::Length(0) => return Ok(0),
            Frame::Length(left) | Frame::Chunk(left) => left,
        };
        let most = buffer.len().min(*left);
        let read = self.stream.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        *left -= read;
        Ok(read)
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The data of the next event; `None` at the end.
    ///
    /// # Errors
    /// A connection that was cut.
    pub(crate) fn event(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.body.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Ok(Some(data.trim_end().to_owned()));
            }
        }
    }

    /// The next event as JSON.
    pub(crate) fn json_event(&mut self) -> Value {
        let data = self.event().expect("the connection holds").expect("an event");
        serde_json::from_str(&data).expect("JSON")
    }

    /// All events that are left, which end with `[DONE]`.
    pub(crate) fn events(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let data = self.event().expect("the connection holds").expect("an event");
            if data == "[DONE]" {
                assert_eq!(self.event().expect("the end"), None, "nothing follows [DONE]");
                return events;
            }
            events.push(serde_json::from_str(&data).expect("JSON"));
        }
    }

    /// All events that are left, each with its name, up to the end of the answer.
    pub(crate) fn named_events(mut self) -> Vec<(String, Value)> {
        let mut text = String::new();
        self.body.read_to_string(&mut text).expect("the connection holds");
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').expect("a name and data");
            let name = name.strip_prefix("event: ").expect("a name");
            let data = data.strip_prefix("data: ").expect("data");
            (name.to_owned(), serde_json::from_str(data).expect("JSON"))
        };
        text.split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(event).collect()
    }

    /// The rest of the answer.
    pub(crate) fn whole(mut self) -> Answer {
        let mut text = String::new();
        self.body.read_to_string(&mut text).expect("the connection holds");
        Answer { status: self.status, headers: self.headers, text }
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("JSON: {}", self.text))
    }

    /// Status, `error.param` and `error.code` of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{}", self.text);
        assert!(error["type"].is_string(), "{}", self.text);
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (self.status, text("param"), text("code"))
    }
}
