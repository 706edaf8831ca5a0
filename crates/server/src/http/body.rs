//! A request's body: JSON, within the server's bounds of size and time.

use crate::app::App;
use crate::http::error::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use tokio::time::timeout;

/// The bytes of a body that calls itself JSON.
pub(crate) struct JsonBody(pub(crate) Bytes);

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<JsonBody, ApiError> {
        let limits = &app.config.limits;
        if !is_json(request.headers()) {
            return Err(ApiError::media_type());
        }
        if declared(request.headers()).is_some_and(|bytes| bytes > limits.body_bytes as u64) {
            return Err(ApiError::too_large(limits.body_bytes));
        }
        let body = Limited::new(request.into_body(), limits.body_bytes).collect();
        match timeout(limits.body_time, body).await {
            Ok(Ok(body)) => Ok(JsonBody(body.to_bytes())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                Err(ApiError::too_large(limits.body_bytes))
            }
            Ok(Err(error)) => Err(ApiError::body_incomplete(&error.to_string())),
            Err(_) => {
                let seconds = limits.body_time.as_secs_f64();
                let problem = format!("it was not complete after {seconds} s");
                Err(ApiError::body_incomplete(&problem))
            }
        }
    }
}

/// What forms and pages of other origins send without asking is not JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
