//! Every way a request can fail, as a status and the JSON that OpenAI's clients read.

use crate::error::BadRequest;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::{EngineLost, Reject, RequestError, SubmitError};
use serde_json::{Value, json};

/// A request that gets no answer but this.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    /// `error.type`
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    /// What is wrong and what to do about it, without the name of the field.
    problem: String,
    /// When to try again, in seconds.
    retry_after: Option<u32>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// Seconds after which a full queue or a server that ends is worth another try.
const RETRY_AFTER: u32 = 1;

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, problem: impl Into<String>) -> ApiError {
        let problem = problem.into();
        ApiError { status, kind, code: None, param: None, problem, retry_after: None }
    }

    fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    fn retry(self) -> ApiError {
        ApiError { retry_after: Some(RETRY_AFTER), ..self }
    }

    /// A prompt that leaves no room for an answer. `param` is the field it came in.
    pub(crate) fn too_long(param: &str, tokens: usize, context: usize) -> ApiError {
        let most = context - 1;
        let message = format!(
            "the prompt has {tokens} tokens, the model's context is {context}; shorten it to at most \
             {most} tokens, so that one can follow"
        );
        let error = ApiError::new(StatusCode::BAD_REQUEST, INVALID, message);
        ApiError { param: Some(param.into()), ..error.code("context_length_exceeded") }
    }

    /// A model that is not served.
    pub(crate) fn no_model(name: &str, served: &[String]) -> ApiError {
        let served = served.join(", ");
        let message = format!("`{name}` is not served here; use {served}");
        let error = ApiError::new(StatusCode::NOT_FOUND, INVALID, message);
        ApiError { param: Some("model".into()), ..error.code("model_not_found") }
    }

    /// A path that leads nowhere.
    pub(crate) fn no_route(path: &str) -> ApiError {
        let message =
            format!("there is nothing at {path}; see the API reference for what there is");
        ApiError::new(StatusCode::NOT_FOUND, INVALID, message).code("not_found")
    }

    /// A path that takes another method.
    pub(crate) fn no_method(method: &str, path: &str) -> ApiError {
        let message =
            format!("{path} does not take {method}; the header `allow` says what it takes");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        ApiError::new(status, INVALID, message).code("method_not_allowed")
    }

    /// No key, or a wrong one.
    pub(crate) fn unauthorized() -> ApiError {
        let message = "the API key is missing or wrong; send `Authorization: Bearer <key>`";
        ApiError::new(StatusCode::UNAUTHORIZED, INVALID, message).code("invalid_api_key")
    }

    /// A body that is over the limit.
    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message =
            format!("the body is larger than the server's limit of {limit} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message).code("body_too_large")
    }

    /// A body that is not JSON by its own word.
    pub(crate) fn media_type() -> ApiError {
        let message = "the body is read as JSON; send the header `Content-Type: application/json`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        ApiError::new(status, INVALID, message).code("unsupported_media_type")
    }

    /// A body that did not come in time, or not to its end.
    pub(crate) fn body_incomplete(problem: &str) -> ApiError {
        let message = format!("the body did not arrive: {problem}");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).code("body_incomplete")
    }

    /// A generation whose time was up.
    pub(crate) fn timed_out() -> ApiError {
        let message = "the request took longer than the server's limit; ask for fewer tokens, or try \
                       again when the server is less busy";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, SERVER, message).code("request_timeout").retry()
    }

    /// A generation whose constraint left no way on.
    pub(crate) fn stuck() -> ApiError {
        let message = "the answer came to where its grammar has no way on that the model can write, or \
                       where following it takes too long; simplify the grammar or the schema";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        ApiError::new(status, INVALID, message).code("constraint_stuck")
    }

    /// The server ends.
    pub(crate) fn shutting_down() -> ApiError {
        let message = "the server is shutting down; try again, or another server";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, SERVER, message).code("shutting_down").retry()
    }

    /// More connections than there is room for.
    pub(crate) fn overloaded() -> ApiError {
        let message = "the server has as many connections as it can hold; try again";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, SERVER, message).code("overloaded").retry()
    }

    /// The engine failed.
    pub(crate) fn lost(lost: &EngineLost) -> ApiError {
        let message = format!("the engine failed: {lost}");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        ApiError::new(status, SERVER, message).code("engine_failed")
    }

    /// A client that reads slower than the model writes. Nobody is likely to see it.
    pub(crate) fn slow_reader() -> ApiError {
        let message = "the answer was not read as fast as it came, and has been cut off";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, message).code("slow_reader")
    }

    /// A broken invariant of ours.
    pub(crate) fn internal() -> ApiError {
        let message = "the server made a mistake over this request; its log says more";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, message).code("internal_error")
    }

    /// The engine's refusal of a request whose fields are called what `name` says.
    pub(crate) fn submit(error: SubmitError, name: impl Fn(&'static str) -> String) -> ApiError {
        match error {
            SubmitError::Rejected(Reject::Invalid(RequestError { field, problem })) => {
                BadRequest::new(name(field), problem).into()
            }
            SubmitError::Rejected(full @ Reject::QueueFull { .. }) => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                ApiError::new(status, "rate_limit_error", full.to_string())
                    .code("queue_full")
                    .retry()
            }
            SubmitError::Closed => ApiError::shutting_down(),
            SubmitError::Lost(lost) => ApiError::lost(&lost),
        }
    }

    /// The same about a field that the client knows by another name.
    pub(crate) fn renamed(self, name: impl FnOnce(&str) -> String) -> ApiError {
        ApiError { param: self.param.map(|param| name(&param)), ..self }
    }

    /// What is wrong, the field that is at fault included.
    pub(crate) fn message(&self) -> String {
        match &self.param {
            Some(param) => format!("{param}: {}", self.problem),
            None => self.problem.clone(),
        }
    }

    /// The name of the failure; the server's own have one of their kind at least.
    pub(crate) fn name(&self) -> &'static str {
        self.code.unwrap_or(self.kind)
    }

    /// The JSON of it.
    pub(crate) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message(),
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<BadRequest> for ApiError {
    fn from(bad: BadRequest) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, INVALID, bad.problem);
        ApiError { param: Some(bad.param).filter(|param| !param.is_empty()), ..error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A JSON answer.
pub(crate) fn json_response(status: StatusCode, value: &impl serde::Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("answers have text keys only");
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A JSON answer to a request that went well.
pub(crate) fn json_ok(value: &impl serde::Serialize) -> Response {
    json_response(StatusCode::OK, value)
}
