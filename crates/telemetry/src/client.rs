//! The HTTP client that takes spans to a collector. It is used on the one thread that sends them, which
//! has nothing else to do: it may block.

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::Agent;

/// Most bytes of an answer that are read: it says how many spans were refused, and why.
const LONGEST_ANSWER: u64 = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    /// The last spans did not arrive.
    failing: AtomicBool,
}

impl Client {
    /// Waits for an answer no longer than `patience`.
    pub(crate) fn new(patience: Duration) -> Client {
        let config = Agent::config_builder()
            .timeout_global(Some(patience))
            .http_status_as_error(false)
            .build();
        Client { agent: config.into(), failing: AtomicBool::new(false) }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, body.to_vec());
        let mut response = self.agent.run(request)?;
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec()?;
        Ok(response.map(|_| Bytes::from(body)))
    }

    /// Tells the log when it begins to fail and when it works again, not each time.
    fn note(&self, problem: Option<String>) {
        let failed = self.failing.swap(problem.is_some(), Ordering::Relaxed);
        match (failed, problem) {
            (false, Some(problem)) => {
                tracing::warn!(problem, "the collector takes no spans; requests go on without");
            }
            (true, None) => tracing::info!("the collector takes spans again"),
            (true, Some(_)) | (false, None) => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.send(request);
        self.note(match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(error.to_string()),
        });
        Ok(sent?)
    }
}
