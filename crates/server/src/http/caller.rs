//! Who asks: a request's id, the line that the log gets about it, and a way to cut its connection.

use crate::http::error::ApiError;
use crate::metrics::Metrics;
use crate::record::{Account, Asked, Failure, Head, Record, Recorder};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use engine::{Finished, Request};
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

/// A request, for as long as anybody works on it. When the last clone goes the log gets its line, and
/// the operator's recorder its record.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Inner>);

struct Inner {
    head: Head,
    connection: Connection,
    started: Instant,
    account: Mutex<Account>,
    recorder: Option<Arc<dyn Recorder>>,
}

impl Caller {
    pub(crate) fn new(
        head: Head,
        connection: Connection,
        recorder: Option<Arc<dyn Recorder>>,
    ) -> Caller {
        let (started, account) = (Instant::now(), Mutex::default());
        Caller(Arc::new(Inner { head, connection, started, account, recorder }))
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &str {
        &self.0.head.id
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// The request is answered under an id of the answer's own, as from `model`.
    pub(crate) fn answered_as(&self, id: &str, model: &str) {
        self.account(|account| {
            account.answer = Some(id.to_owned());
            account.model = Some(model.to_owned());
        });
    }

    /// The request becomes these of the engine.
    pub(crate) fn asked(&self, requests: &[Request]) {
        let after = self.0.started.elapsed();
        let asked = requests.first().map(|first| {
            // The choices of each prompt begin with the same seed.
            let seed = first.sampling.seed;
            let prompts = requests.iter().filter(|r| r.sampling.seed == seed).count();
            (first, prompts)
        });
        let asked = asked.map(|(first, prompts)| Asked {
            after,
            prompts,
            choices: requests.len() / prompts,
            max_tokens: first.limits.max_tokens,
            temperature: first.sampling.temperature,
            top_p: first.sampling.top_p,
            top_k: first.sampling.top_k,
            seed: first.sampling.seed,
        });
        self.account(|account| account.asked = asked);
    }

    /// The answer's head is known.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.account(|account| account.status = Some(status.as_u16()));
    }

    /// The request failed, perhaps after its head was sent.
    pub(crate) fn failed(&self, error: &ApiError) {
        let failure = Failure { name: error.name(), message: error.message() };
        self.account(|account| account.failure = Some(failure));
    }

    /// Generation `number` of the request ended.
    pub(crate) fn finished(&self, number: usize, finished: &Finished) {
        self.account(|account| account.ends.push((number, finished.clone())));
    }

    fn account(&self, note: impl FnOnce(&mut Account)) {
        note(&mut self.0.account.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let account = self.account.get_mut().unwrap_or_else(PoisonError::into_inner);
        let record = Record { head: &self.head, account, lasted: self.started.elapsed() };
        log(&record);
        if let Some(recorder) = self.recorder.as_ref().filter(|_| !record.is_routine()) {
            recorder.record(&record);
        }
    }
}

/// A request's line in the log.
fn log(record: &Record<'_>) {
    let (Record { head, account, .. }, status) = (record, record.status());
    let (id, method, path) = (head.id.as_str(), head.method.as_str(), head.path.as_str());
    let milliseconds = record.lasted.as_secs_f64() * 1e3;
    let error = account.failure.as_ref().map(|failure| failure.message.as_str());
    if record.is_routine() {
        // Those who watch ask every second.
        tracing::debug!(request = id, method, path, status, milliseconds, "answered");
        return;
    }
    let Some((_, first)) = account.ends.first() else {
        if account.asked.is_some() && account.failure.is_none() {
            tracing::info!(request = id, method, path, status, milliseconds, "abandoned");
        } else {
            tracing::info!(request = id, method, path, status, milliseconds, error, "refused");
        }
        return;
    };
    let reasons = account.ends.iter().map(|(_, end)| end.reason.name());
    tracing::info!(
        request = id,
        answer = account.answer,
        method,
        path,
        status,
        milliseconds,
        error,
        finish = reasons.collect::<Vec<_>>().join(","),
        prompt_tokens = first.stats.prompt_tokens,
        cached_tokens = first.stats.cached_tokens,
        output_tokens = record.sum(|stats| stats.output_tokens),
        passes = record.sum(|stats| stats.steps),
        tau = record.tau(),
        queued_ms = first.stats.queued.as_secs_f64() * 1e3,
        first_token_ms = first.stats.first_token.as_secs_f64() * 1e3,
        "generated"
    );
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
