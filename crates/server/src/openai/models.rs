//! `/v1/models`: what is served. All names mean one model.

use crate::app::App;
use crate::http::error::{ApiError, json_ok};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The first of its names.
    root: &'a str,
    /// Most tokens of prompt and answer together.
    max_model_len: usize,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

fn model<'a>(app: &'a App, id: &'a str) -> Model<'a> {
    Model {
        id,
        object: "model",
        created: app.started,
        owned_by: "slipstream",
        root: &app.config.names[0],
        max_model_len: app.engine.info().context,
    }
}

/// All of them.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response {
    let data = app.config.names.iter().map(|name| model(&app, name)).collect();
    json_ok(&List { object: "list", data })
}

/// One of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Ok(Path(id)) = id else {
        // What is no text is nobody's name.
        return Err(ApiError::no_model(uri.path(), &app.config.names));
    };
    let id = app.served(Some(id))?;
    Ok(json_ok(&model(&app, &id)))
}
