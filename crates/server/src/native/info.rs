//! What operators and routers ask: whether the server lives and works, what it is, what it holds.

use crate::app::{App, Phase, now};
use crate::http::error::{ApiError, json_ok};
use crate::metrics::CONTENT_TYPE;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

/// Whether the engine lives.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match &*app.phase.borrow() {
        Phase::Serving | Phase::Draining => Ok(json_ok(&json!({"status": "ok"}))),
        Phase::Lost(lost) => Err(ApiError::lost(lost)),
    }
}

/// Whether requests are taken.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.accepting()?;
    Ok(json_ok(&json!({"status": "ready"})))
}

/// What serves.
pub(crate) async fn version() -> Response {
    json_ok(&json!({"name": "slipstream", "version": env!("CARGO_PKG_VERSION")}))
}

/// For Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = Response::new(Body::from(app.metrics.text()));
    let kind = header::HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// What the model is.
pub(crate) async fn model(State(app): State<Arc<App>>) -> Response {
    let info = app.engine.info();
    json_ok(&json!({
        "model_path": app.config.names[0],
        "served_model_names": app.config.names,
        "is_generation": true,
        "context_length": info.context,
        "vocab_size": app.model.tokenizer.len(),
        "has_chat_template": app.model.chat.is_some(),
    }))
}

/// What the server works with.
pub(crate) async fn server(State(app): State<Arc<App>>) -> Response {
    let (info, snapshot) = (app.engine.info(), app.engine.snapshot());
    let draft =
        info.draft.as_ref().map(|draft| json!({"block": draft.block, "width": draft.width}));
    json_ok(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model_path": app.config.names[0],
        "served_model_name": app.config.names[0],
        "context_length": info.context,
        "max_total_num_tokens": info.kv_tokens,
        "speculation": draft,
        "num_requests_running": snapshot.running,
        "num_requests_waiting": snapshot.waiting,
        "uptime_seconds": now().saturating_sub(app.started),
        "dp_size": 1,
        "tp_size": 1,
    }))
}

/// How much there is to do, for routers that spread it.
pub(crate) async fn loads(State(app): State<Arc<App>>) -> Response {
    let snapshot = app.engine.snapshot();
    let pages = snapshot.pages;
    let page = app.engine.info().kv_tokens / pages.total.max(1);
    json_ok(&json!([{
        "dp_rank": 0,
        "num_reqs": snapshot.running + snapshot.waiting,
        "num_running_reqs": snapshot.running,
        "num_waiting_reqs": snapshot.waiting,
        "num_tokens": pages.held * page,
        "max_total_num_tokens": pages.total * page,
    }]))
}
