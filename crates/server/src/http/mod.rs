//! HTTP: routes, and what every request passes through on its way to a handler and back.

pub(crate) mod body;
pub(crate) mod caller;
pub(crate) mod connections;
pub(crate) mod error;
mod patient;

use crate::app::App;
use crate::record::Head;
use crate::{native, openai, openapi, page};
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use caller::{Caller, Connection, REQUEST_ID};
use error::ApiError;
use std::any::Any;
use std::sync::Arc;
use std::time::SystemTime;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// What anybody may ask, key or not: whether the server lives, what it can be asked, and the page,
/// which asks for the key.
const OPEN: [&str; 5] = ["/health", "/ready", "/version", "/openapi.json", "/"];

/// Whether a path takes no key.
pub(crate) fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path.starts_with(page::FOLDER)
}

/// A path, its method, and who answers.
type Route = (&'static str, Method, MethodRouter<Arc<App>>);

/// Everything that the server answers.
pub(crate) fn routes() -> Vec<Route> {
    let gets = [
        ("/v1/models", get(openai::models::list)),
        ("/v1/models/{*id}", get(openai::models::one)),
        ("/health", get(native::info::health)),
        ("/ready", get(native::info::ready)),
        ("/version", get(native::info::version)),
        ("/metrics", get(native::info::metrics)),
        ("/server_info", get(native::info::server)),
        ("/get_server_info", get(native::info::server)),
        ("/model_info", get(native::info::model)),
        ("/get_model_info", get(native::info::model)),
        ("/get_load", get(native::info::loads)),
        ("/v1/loads", get(native::info::loads)),
        ("/trace/recent", get(native::trace::recent)),
        ("/openapi.json", get(openapi::serve)),
        ("/", get(page::index)),
        ("/page/{file}", get(page::file)),
    ];
    let posts = [
        ("/v1/chat/completions", post(openai::chat::complete)),
        ("/v1/responses", post(openai::responses::respond)),
        ("/v1/completions", post(openai::completions::complete)),
        ("/generate", post(native::generate::generate)),
        ("/tokenize", post(native::tokens::tokenize)),
        ("/detokenize", post(native::tokens::detokenize)),
    ];
    let gets = gets.map(|(path, handler)| (path, Method::GET, handler));
    let posts = posts.map(|(path, handler)| (path, Method::POST, handler));
    gets.into_iter().chain(posts).collect()
}

/// The way to it.
pub(crate) fn router(app: Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, (path, _, handler): Route| router.route(path, handler);
    let routes = routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    let routes = routes.layer(from_fn_with_state(app.clone(), authorize));
    // Around the keys: a browser asks without one whether it may ask with one.
    let routes = match &app.config.origins[..] {
        [] => routes,
        origins => routes.layer(cors(origins)),
    };
    routes
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), trace))
        .with_state(app)
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::no_route(uri.path())
}

async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::no_method(method.as_str(), uri.path())
}

/// Gives the request its id and its place in the log, and counts the answer.
async fn trace(
    State(app): State<Arc<App>>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = caller::chosen_id(request.headers()).unwrap_or_else(|| app.ids.id());
    let connection = request.extensions_mut().remove::<Connection>().unwrap_or_default();
    let method = request.method().clone();
    let head = head(&request, id, matched.as_ref());
    let caller = Caller::new(head, connection, app.config.recorder.clone());
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    caller.answered(response.status());
    if let Some(error) = response.extensions().get::<ApiError>() {
        caller.failed(error);
    }
    response.headers_mut().insert(REQUEST_ID, caller::id_header(caller.id()));
    let route = matched.as_ref().map_or("none", MatchedPath::as_str);
    caller::count(&app.metrics, route, &method, response.status());
    response
}

/// What is known of a request when it comes.
fn head(request: &Request, id: String, matched: Option<&MatchedPath>) -> Head {
    let text = |name| request.headers().get(name)?.to_str().ok().map(str::to_owned);
    Head {
        id,
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        route: matched.map(|route| route.as_str().to_owned()),
        traceparent: text("traceparent"),
        tracestate: text("tracestate"),
        begun: SystemTime::now(),
    }
}

/// Lets through who has a key, when there are keys.
async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keys = &app.config.keys;
    let path = request.uri().path();
    if keys.is_empty() || is_open(path) {
        return next.run(request).await;
    }
    let offered = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let key = offered.and_then(|value| match value.split_at_checked("Bearer ".len()) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(key),
        _ => None,
    });
    // Every key is looked at: which of them it was does not show in the time.
    let opens = key.is_some_and(|key| keys.iter().fold(false, |any, own| own.opens(key) | any));
    if opens { next.run(request).await } else { ApiError::unauthorized().into_response() }
}

/// Which pages of other origins may read answers.
fn cors(origins: &[String]) -> CorsLayer {
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok()))
    };
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([REQUEST_ID, header::RETRY_AFTER])
}

/// A handler that broke an invariant of ours. The panic itself is in the log.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal().into_response()
}
