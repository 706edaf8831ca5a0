//! The OpenAPI document names every field that a reader knows, and no other: whatever the sources
//! write between quotes is tried as a field, at every place where fields are.

use crate::site::{Script, Setup, Site};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// What may be a field's name, of all that is quoted in the sources of the server.
fn words() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a text");
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let quoted = text.split('"').filter(|word| (1..40).contains(&word.len()));
            words.extend(quoted.filter(|word| word.chars().all(fits)).map(str::to_owned));
        }
    }
    words
}

/// A path, a request that it takes, and a place in it that has fields.
fn places() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
    let stream = |mut body: Value| {
        body["stream"] = true.into();
        body["stream_options"] = json!({});
        body
    };
    let drafts = |mut body: Value| {
        body["speculation"] = json!({});
        body
    };
    let completion = json!({"prompt": "hi", "max_tokens": 2});
    let generate = json!({"text": "hi", "sampling_params": {"max_new_tokens": 2}});
    let response = json!({"input": "hi", "max_output_tokens": 2, "text": {}, "reasoning": {}});
    vec![
        ("/v1/chat/completions", chat.clone(), &[]),
        ("/v1/chat/completions", drafts(chat.clone()), &["speculation"]),
        ("/v1/chat/completions", stream(chat), &["stream_options"]),
        ("/v1/completions", completion.clone(), &[]),
        ("/v1/completions", drafts(completion), &["speculation"]),
        ("/generate", generate.clone(), &[]),
        ("/generate", generate, &["sampling_params"]),
        ("/v1/responses", response.clone(), &[]),
        ("/v1/responses", response.clone(), &["text"]),
        ("/v1/responses", response, &["reasoning"]),
        ("/tokenize", json!({"prompt": "hi"}), &[]),
        ("/tokenize", json!({"messages": [{"role": "user", "content": "hi"}]}), &[]),
        ("/detokenize", json!({"tokens": [5]}), &[]),
    ]
}

/// The fields that the document has at a place.
fn described(site: &Site, path: &str, body: &Value, place: &[&str]) -> BTreeSet<String> {
    let content = site.document.at(&["paths", path, "post", "requestBody", "content"]);
    let mut schema = site.document.resolved(&content["application/json"]["schema"]);
    if let (None, Some(kinds)) = (schema.get("properties"), schema["anyOf"].as_array()) {
        // The kind whose required fields are there.
        let fits = |kind: &&Value| {
            let mut required = kind["required"].as_array().expect("required fields").iter();
            required.all(|name| body.get(name.as_str().expect("a name")).is_some())
        };
        let mut kinds = kinds.iter().map(|kind| site.document.resolved(kind));
        schema = kinds.find(fits).expect("a kind for every request");
    }
    for name in place {
        schema = site.document.resolved(&schema["properties"][name]);
    }
    assert_eq!(schema["additionalProperties"], json!({"type": "null"}), "{path} {place:?}");
    schema["properties"].as_object().expect("fields").keys().cloned().collect()
}

#[test]
fn every_field_is_described_and_no_other() {
    let site = Site::scripted(Script::letters(), Setup::default());
    let words = words();
    assert!(words.contains("temperature") && words.contains("tool_call_id"));
    for (path, body, place) in places() {
        let all = described(&site, path, &body, place);
        assert!(all.is_subset(&words), "{path}: names that are not tried");
        let whole = site.open(path, &body).whole();
        assert_eq!(whole.status, 200, "{path}: {}", whole.text);
        for word in &words {
            let mut body = body.clone();
            let at = place.iter().fold(&mut body, |value, name| &mut value[name]);
            // Nobody takes such a value but who takes any.
            at[word] = json!({"?": []});
            // A field may make another kind of request of it.
            let described = described(&site, path, &body, place).contains(word);
            let answer = site.open(path, &body).whole();
            let full = [place, &[word.as_str()]].concat().join(".");
            let unknown = answer.status == 400 && {
                let error = &answer.json()["error"];
                let says = error["message"].as_str().expect("a message");
                error["param"] == *full && says.contains("is not a field of this request")
            };
            assert_eq!(!unknown, described, "{path}: {full}: {}", answer.text);
        }
    }
}
