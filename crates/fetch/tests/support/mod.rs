//! A hub on the loopback interface, with the faults of a bad line on demand.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A repository served over HTTP as the hub does: the file list, and files with ranges.
pub(crate) struct FakeHub {
    /// `http://127.0.0.1:port`.
    pub(crate) endpoint: String,
    state: Arc<State>,
}

struct State {
    files: HashMap<String, Vec<u8>>,
    etags: HashMap<String, String>,
    /// Bytes after which the next whole-file answers break off.
    cuts: Mutex<Vec<usize>>,
    requests: Mutex<Vec<String>>,
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl FakeHub {
    /// Serves `org/model`, revision `main`, with these files.
    pub(crate) fn start(files: &[(&str, &[u8])]) -> FakeHub {
        FakeHub::with_faults(files, &[], &[])
    }

    /// As [`FakeHub::start`]; the first answers with content break off after `cuts` bytes, and
    /// `lies` replaces the checksum that the hub claims for a file.
    pub(crate) fn with_faults(
        files: &[(&str, &[u8])],
        cuts: &[usize],
        lies: &[(&str, &str)],
    ) -> FakeHub {
        let own = |(name, bytes): &(&str, &[u8])| (name.to_string(), bytes.to_vec());
        let files: HashMap<String, Vec<u8>> = files.iter().map(own).collect();
        let mut etags: HashMap<String, String> =
            files.iter().map(|(name, bytes)| (name.clone(), sha256(bytes))).collect();
        etags.extend(lies.iter().map(|(name, etag)| (name.to_string(), etag.to_string())));
        let cuts = Mutex::new(cuts.iter().rev().copied().collect());
        let state = Arc::new(State { files, etags, cuts, requests: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client that hangs up is no failure of the server.
                std::thread::spawn(move || drop(shared.answer(stream)));
            }
        });
        FakeHub { endpoint, state }
    }

    /// `METHOD path range` of every request so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let mut range = None;
        for line in lines {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("range: bytes=") {
                range = Some(value.to_owned());
            }
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let seen = format!("GET {path} {}", range.as_deref().unwrap_or("-"));
        self.requests.lock().unwrap().push(seen);
        if path == "/api/models/org/model/revision/main" {
            let names = self.files.keys().map(|name| format!(r#"{{"rfilename":"{name}"}}"#));
            let names = names.collect::<Vec<_>>().join(",");
            let body = format!(r#"{{"sha":"c0ffee","siblings":[{names}]}}"#);
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{body}",
                body.len()
            );
        }
        let name = path.strip_prefix("/org/model/resolve/main/").unwrap_or_default();
        match self.files.get(name) {
            Some(bytes) => self.send(stream, name, bytes, &range.unwrap_or("0-".into())),
            None => write!(
                stream,
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            ),
        }
    }

    fn send(
        &self,
        mut stream: TcpStream,
        name: &str,
        bytes: &[u8],
        range: &str,
    ) -> std::io::Result<()> {
        let (from, to) = range.split_once('-').unwrap();
        let from: usize = from.parse().unwrap();
        let to = to.parse().map_or(bytes.len(), |last: usize| last + 1).min(bytes.len());
        if from >= bytes.len() {
            return write!(
                stream,
                "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        let body = &bytes[from..to];
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{}/{}\r\n\
             etag: \"{}\"\r\nx-repo-commit: c0ffee\r\nconnection: close\r\n\r\n",
            body.len(),
            to - 1,
            bytes.len(),
            self.etags[name],
        )?;
        let whole = range.ends_with('-');
        let cut = if whole { self.cuts.lock().unwrap().pop() } else { None };
        stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])
    }
}
