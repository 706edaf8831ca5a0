//! `GET /trace/recent`: when the engine's newest steps were where, for pages that draw the lanes. The
//! engine keeps a bounded list in any case; asking costs it a copy of that.

use crate::app::App;
use crate::http::error::json_ok;
use axum::extract::State;
use axum::response::Response;
use device::LaneId;
use engine::{Span, StepRecord};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The endpoint. Times are seconds by the engine's clock; a span is its begin and its end.
pub(crate) async fn recent(State(app): State<Arc<App>>) -> Response {
    let steps = app.engine.recent();
    let snapshot = app.engine.snapshot();
    json_ok(&json!({
        "now": app.engine.now().as_secs_f64(),
        "num_requests_running": snapshot.running,
        "num_requests_waiting": snapshot.waiting,
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
    }))
}

fn step(step: &StepRecord) -> Value {
    let lane = |lane: LaneId| (lane.name().to_owned(), json!(step.lanes[lane.index()].map(span)));
    json!({
        "step": step.number,
        "chunks": step.chunks,
        "blocks": step.blocks,
        "tokens": step.tokens,
        "drafted": step.drafted,
        "accepted": step.accepted,
        "kept": step.kept,
        "host": {
            "plan": span(step.planned),
            "land": span(step.landing),
            "commit": span(step.committed),
        },
        "lanes": LaneId::ALL.into_iter().map(lane).collect::<Map<String, Value>>(),
        "parts": {
            "draft": step.times.draft.as_secs_f64(),
            "verify": step.times.verify.as_secs_f64(),
            "absorb": step.times.absorb.as_secs_f64(),
        },
    })
}

fn span(span: Span) -> [f64; 2] {
    [span.start.as_secs_f64(), span.end.as_secs_f64()]
}
