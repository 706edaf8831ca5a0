//! What an operator decides, fixed when the server starts.

use crate::record::Recorder;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// A server's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name or address to listen on.
    pub host: String,
    /// Port; 0 for any that is free.
    pub port: u16,
    /// The model's names, as clients say them; at least one. The first is what answers carry.
    pub names: Vec<String>,
    /// Keys, one of which every request must bring; none for a server that is open.
    pub keys: Vec<ApiKey>,
    /// Origins whose pages may read answers (`https://example.org`, or `*`); none otherwise.
    pub origins: Vec<String>,
    /// Bounds.
    pub limits: Limits,
    /// Who is told of each request when it is over, besides the log.
    pub recorder: Option<Arc<dyn Recorder>>,
}

impl Config {
    /// A server for the model called `name`, open to this machine only.
    pub fn new(name: impl Into<String>) -> Config {
        Config {
            host: "127.0.0.1".into(),
            port: 8080,
            names: vec![name.into()],
            keys: Vec::new(),
            origins: Vec::new(),
            limits: Limits::default(),
            recorder: None,
        }
    }
}

/// What one client may take of the server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most connections at once; the system may allow fewer.
    pub connections: usize,
    /// Longest wait for a request's head, on an idle connection too.
    pub head_time: Duration,
    /// Longest wait for a request's body.
    pub body_time: Duration,
    /// Longest time of a generation, waiting included; `None` for ever.
    pub request_time: Option<Duration>,
    /// Longest wait for a client that takes nothing of what is sent to it.
    pub stall_time: Duration,
    /// Most updates kept for a client that reads slower than the model writes, for each choice. A
    /// client with more is cut off.
    pub buffered_updates: usize,
    /// Longest time that open requests get once the server is told to end.
    pub drain_time: Duration,
    /// How long a server whose engine failed goes on saying so.
    pub failure_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 32 << 20,
            connections: 4096,
            head_time: Duration::from_secs(60),
            body_time: Duration::from_secs(60),
            request_time: Some(Duration::from_secs(600)),
            stall_time: Duration::from_secs(30),
            buffered_updates: 1024,
            drain_time: Duration::from_secs(30),
            failure_time: Duration::from_secs(5),
        }
    }
}

/// A key that opens the server. It is never printed.
#[derive(Clone)]
pub struct ApiKey(String);

/// A text that cannot be a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is one or more visible ASCII characters, without spaces")]
pub struct BadKey;

impl ApiKey {
    /// The key that clients send as `Authorization: Bearer <key>`.
    ///
    /// # Errors
    /// A text that no header can carry.
    pub fn new(key: impl Into<String>) -> Result<ApiKey, BadKey> {
        let key = key.into();
        let fits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(ApiKey(key)) } else { Err(BadKey) }
    }

    /// Whether `offered` is the key, in a time that depends on lengths only.
    pub(crate) fn opens(&self, offered: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(offered).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_by_their_whole_text_and_are_not_printed() {
        let key = ApiKey::new("sk-secret").expect("a key");
        for (offered, opens) in
            [("sk-secret", true), ("sk-secreT", false), ("sk-secre", false), ("", false)]
        {
            assert_eq!(key.opens(offered.as_bytes()), opens, "{offered}");
        }
        assert!(!format!("{key:?}").contains("secret"));
        for bad in ["", "two words", "kéy", "line\n"] {
            assert_eq!(ApiKey::new(bad).unwrap_err(), BadKey, "{bad:?}");
        }
    }
}
