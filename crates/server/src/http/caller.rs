//! Who asks: a request's id, the line that the log gets about it, and a way to cut its connection.

use crate::http::error::ApiError;
use crate::metrics::Metrics;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use engine::{Finished, Stats};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// The header that carries a request's id, in both directions.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest id that a client may choose.
const LONGEST_ID: usize = 128;

/// One connection, which only its own request may cut.
#[derive(Clone, Default)]
pub(crate) struct Connection(Arc<Notify>);

impl Connection {
    /// Closes the connection without a further byte.
    pub(crate) fn cut(&self) {
        self.0.notify_one();
    }

    /// Waits until somebody cuts it.
    pub(crate) async fn is_cut(&self) {
        self.0.notified().await;
    }
}

/// A request, for as long as anybody works on it. When the last clone goes the log gets its line.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Inner>);

struct Inner {
    id: String,
    method: Method,
    path: String,
    connection: Connection,
    started: Instant,
    account: Mutex<Account>,
}

/// What became known of a request.
#[derive(Default)]
struct Account {
    status: Option<StatusCode>,
    /// The id of what it is answered with.
    answer: Option<String>,
    error: Option<String>,
    /// The engine's requests that ended, in the order of their ends.
    ends: Vec<Finished>,
}

impl Caller {
    pub(crate) fn new(id: String, method: Method, path: String, connection: Connection) -> Caller {
        let (started, account) = (Instant::now(), Mutex::default());
        Caller(Arc::new(Inner { id, method, path, connection, started, account }))
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// The request is answered under an id of the answer's own.
    pub(crate) fn answered_as(&self, id: &str) {
        self.account(|account| account.answer = Some(id.to_owned()));
    }

    /// The answer's head is known.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.account(|account| account.status = Some(status));
    }

    /// The request failed, perhaps after its head was sent.
    pub(crate) fn failed(&self, error: &ApiError) {
        self.account(|account| account.error = Some(error.message()));
    }

    /// A generation of the request ended.
    pub(crate) fn finished(&self, finished: &Finished) {
        self.account(|account| account.ends.push(finished.clone()));
    }

    fn account(&self, note: impl FnOnce(&mut Account)) {
        note(&mut self.0.account.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let account = self.account.get_mut().unwrap_or_else(PoisonError::into_inner);
        // nginx's number for a client that did not wait.
        let status = account.status.map_or(499, |status| status.as_u16());
        let milliseconds = self.started.elapsed().as_secs_f64() * 1e3;
        let error = account.error.as_deref();
        let (id, method, path) = (&self.id, self.method.as_str(), &self.path);
        if account.ends.is_empty() && error.is_none() && status < 400 {
            // Those who watch ask every second.
            tracing::debug!(request = id, method, path, status, milliseconds, "answered");
            return;
        }
        if account.ends.is_empty() {
            tracing::info!(request = id, method, path, status, milliseconds, error, "refused");
            return;
        }
        let sum =
            |of: fn(&Stats) -> usize| account.ends.iter().map(|end| of(&end.stats)).sum::<usize>();
        let first = &account.ends[0].stats;
        let (passes, committed) = (sum(|stats| stats.steps), sum(|stats| stats.committed));
        tracing::info!(
            request = id,
            answer = account.answer,
            method,
            path,
            status,
            milliseconds,
            error,
            finish = account.ends.iter().map(|end| end.reason.name()).collect::<Vec<_>>().join(","),
            prompt_tokens = first.prompt_tokens,
            cached_tokens = first.cached_tokens,
            output_tokens = sum(|stats| stats.output_tokens),
            passes,
            tau = committed as f64 / passes.max(1) as f64,
            queued_ms = first.queued.as_secs_f64() * 1e3,
            first_token_ms = first.first_token.as_secs_f64() * 1e3,
            "generated"
        );
    }
}

/// The id that a client chose, if it is one that a log can hold.
pub(crate) fn chosen_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

/// An id as a header.
pub(crate) fn id_header(id: &str) -> HeaderValue {
    HeaderValue::from_str(id).expect("ids are visible ASCII")
}

/// What is counted of an answer: the route it came from, not its path.
pub(crate) fn count(metrics: &Metrics, route: &str, method: &Method, status: StatusCode) {
    // Whatever else a client writes there is one method more.
    let method = match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::OPTIONS => "OPTIONS",
        Method::HEAD => "HEAD",
        _ => "other",
    };
    metrics.answered(route, method, status.as_u16());
}
