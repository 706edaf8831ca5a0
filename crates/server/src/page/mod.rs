//! The playground: one page at `/` that chats, shows which tokens were drafted, races drafting
//! against plain decoding and draws the lanes. It is part of the binary, asks nobody but this server,
//! and is open to everybody: what it shows takes a key where the server has keys.

use crate::http::error::ApiError;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::Response;

/// Where the page's parts lie.
pub(crate) const FOLDER: &str = "/page/";

/// A browser that shows the page runs no script and asks no server but this one, and takes no text
/// for markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Name, type and text of the parts.
const PARTS: [(&str, &str, &str); 10] = [
    ("style.css", STYLE, include_str!("style.css")),
    ("icon.svg", IMAGE, include_str!("icon.svg")),
    ("app.js", SCRIPT, include_str!("app.js")),
    ("answer.js", SCRIPT, include_str!("answer.js")),
    ("chat.js", SCRIPT, include_str!("chat.js")),
    ("keys.js", SCRIPT, include_str!("keys.js")),
    ("lanes.js", SCRIPT, include_str!("lanes.js")),
    ("race.js", SCRIPT, include_str!("race.js")),
    ("server.js", SCRIPT, include_str!("server.js")),
    ("tabs.js", SCRIPT, include_str!("tabs.js")),
];

/// The page.
pub(crate) async fn index() -> Response {
    respond(HTML, include_str!("index.html"))
}

/// One of its parts.
pub(crate) async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    let part = PARTS.iter().find(|(own, ..)| *own == name);
    let &(_, kind, text) = part.ok_or_else(|| ApiError::no_route(&format!("{FOLDER}{name}")))?;
    Ok(respond(kind, text))
}

fn respond(kind: &'static str, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A newer binary has newer parts.
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
