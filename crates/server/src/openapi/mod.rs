//! The API in the words of machines: an OpenAPI 3.1 document of every route, field, range and answer,
//! served at `/openapi.json`. Bodies of requests are read field by field and not by a type, so the
//! document is put together by hand, out of the readers' own bounds and tables; that it is true is
//! what tests hold: every route is in it, every field that a reader knows is in it and no other, and
//! every answer that a test gets is one that it describes.

mod answers;
mod requests;
mod schema;

use crate::http::error::json_ok;
use axum::response::Response;
use schema::of;
use serde_json::{Map, Value, json};

/// The document.
pub(crate) async fn serve() -> Response {
    json_ok(&document())
}

/// The document: what every server of this version answers.
pub fn document() -> Value {
    let mut schemas = requests::schemas();
    schemas.extend(answers::schemas());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Slipstream",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models with DFlash speculative decoding. A field that is null \
                            is as good as absent, a field that does not exist is refused, and the \
                            same seed gives the same bytes.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {
                "type": "http", "scheme": "bearer",
                "description": "One of the server's keys, where it has any.",
            }},
        },
    })
}

fn paths() -> Map<String, Value> {
    let generations = [
        (
            "/v1/chat/completions",
            "The next message of a conversation",
            ["ChatRequest", "ChatCompletion", "ChatChunk"],
        ),
        (
            "/v1/responses",
            "The same as items; nothing is stored",
            ["ResponseRequest", "Response", "ResponseEvent"],
        ),
        (
            "/v1/completions",
            "What follows a prompt",
            ["CompletionRequest", "Completion", "CompletionChunk"],
        ),
        (
            "/generate",
            "Token ids in and out, with statistics; an array where `n` is more than 1",
            ["GenerateRequest", "Outputs", "OutputEvent"],
        ),
    ];
    let mut paths = Map::new();
    for (path, summary, [request, whole, event]) in generations {
        let mut content = json_content(&of(whole));
        content["text/event-stream"] = json!({ "schema": events(path, &of(event)) });
        paths.insert(path.into(), posted(summary, &of(request), &content, Generates::Yes));
    }
    let tokenize = schema::any_of([of("TokenizeText"), of("TokenizeChat")]);
    for (path, summary, request, answer) in [
        ("/tokenize", "The ids of a text or of a conversation", tokenize, "Tokens"),
        ("/detokenize", "The text of ids", of("DetokenizeRequest"), "Text"),
    ] {
        let content = json_content(&of(answer));
        paths.insert(path.into(), posted(summary, &request, &content, Generates::No));
    }
    for (path, summary, answer) in [
        ("/v1/models", "What is served", "Models"),
        ("/v1/models/{id}", "One of them", "Model"),
        ("/server_info", "Settings", "ServerInfo"),
        ("/get_server_info", "The same", "ServerInfo"),
        ("/model_info", "What the model is", "ModelInfo"),
        ("/get_model_info", "The same", "ModelInfo"),
        ("/get_load", "How much there is to do", "Loads"),
        ("/v1/loads", "The same", "Loads"),
        ("/health", "Whether the engine lives", "Health"),
        ("/ready", "Whether requests are taken", "Ready"),
        ("/version", "What serves", "Version"),
        ("/trace/recent", "When the newest steps were where", "Steps"),
    ] {
        paths.insert(path.into(), got(path, summary, &json_content(&of(answer))));
    }
    let text = json!({"text/plain": {"schema": {"type": "string"}}});
    let metrics = json!({"application/openmetrics-text": text["text/plain"]});
    paths.insert("/metrics".into(), got("/metrics", "For Prometheus", &metrics));
    let page = json!({"text/html": text["text/plain"]});
    paths.insert("/".into(), got("/", "A page to try the model and see drafting", &page));
    let kinds = ["text/css", "text/javascript", "image/svg+xml"];
    let parts = kinds.map(|kind| (kind.to_owned(), text["text/plain"].clone()));
    let parts = Value::Object(parts.into_iter().collect());
    paths.insert("/page/{file}".into(), got("/page/{file}", "A part of it", &parts));
    let document = json_content(&json!({"type": "object"}));
    paths.insert("/openapi.json".into(), got("/openapi.json", "This document", &document));
    paths
}

/// Each event of a stream, as the object of its fields that OpenAPI takes it for.
fn events(path: &str, event: &Value) -> Value {
    let json = json!({
        "type": "string", "contentMediaType": "application/json", "contentSchema": event,
    });
    let data = match path {
        // Its last event says by its name that it is the last.
        "/v1/responses" => json,
        _ => schema::any_of([json, schema::constant("[DONE]")]),
    };
    json!({"type": "object", "required": ["data"], "properties": {
        "event": {"type": "string"}, "data": data,
    }})
}

fn json_content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

/// Whether a request may wait in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generates {
    Yes,
    No,
}

/// Every way a request can fail.
const FAILURES: [(&str, &str); 10] = [
    ("400", "A field is wrong, or the prompt is too long; the error says which and what to do."),
    ("401", "No key, or a wrong one."),
    ("404", "The model is not served."),
    ("408", "The body did not arrive in time."),
    ("413", "The body is too large."),
    ("415", "The body does not call itself JSON."),
    ("422", "What the answer has to be left no token to go on with."),
    ("429", "The queue is full."),
    ("500", "A mistake of the server."),
    (
        "503",
        "Too many connections, the request's time is up, the server ends, or its engine failed.",
    ),
];

fn answers(content: &Value, failures: &[&str]) -> Value {
    let mut answers = json!({"200": {"description": "It went well.", "content": content}});
    for (status, what) in FAILURES.iter().filter(|(status, _)| failures.contains(status)) {
        let mut answer = json!({"description": what, "content": json_content(&of("Error"))});
        if *status == "429" {
            answer["headers"] = json!({"retry-after": {
                "required": true, "description": "Seconds.", "schema": {"type": "integer"},
            }});
        }
        answers[*status] = answer;
    }
    answers
}

fn posted(summary: &str, request: &Value, content: &Value, generates: Generates) -> Value {
    let mut failures = vec!["400", "401", "404", "408", "413", "415", "500", "503"];
    if generates == Generates::Yes {
        failures.extend(["422", "429"]);
    }
    json!({"post": {
        "summary": summary,
        "security": [{"key": []}, {}],
        "requestBody": {"required": true, "content": json_content(request)},
        "responses": answers(content, &failures),
    }})
}

fn got(path: &str, summary: &str, content: &Value) -> Value {
    let open = crate::http::is_open(path);
    let mut failures = vec!["500", "503"];
    if !open {
        failures.push("401");
    }
    let mut operation = json!({"summary": summary});
    for (name, what) in [("id", "A served name, which may have slashes."), ("file", "Its name.")] {
        if path.contains(&format!("{{{name}}}")) {
            failures.push("404");
            operation["parameters"] = json!([{
                "name": name, "in": "path", "required": true, "description": what,
                "schema": {"type": "string"},
            }]);
        }
    }
    operation["security"] = if open { json!([{}]) } else { json!([{"key": []}, {}]) };
    operation["responses"] = answers(content, &failures);
    json!({ "get": operation })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_and_no_other() {
        let document = document();
        let described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .expect("paths")
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().expect("operations").keys();
                methods.map(|method| (path.clone(), method.to_uppercase()))
            })
            .collect();
        let routes: BTreeSet<(String, String)> = crate::http::routes()
            .into_iter()
            .map(|(path, method, _)| (path.replace("{*", "{"), method.to_string()))
            .collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn references<'v>(value: &'v Value, found: &mut BTreeSet<&'v str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for reference in &found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        assert_eq!(schemas.len(), found.len(), "every schema is used");
    }
}
