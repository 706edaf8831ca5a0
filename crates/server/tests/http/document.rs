//! The OpenAPI document, which every answer in these tests has to agree with. The checker knows the
//! keywords of JSON Schema that the document uses, and fails at any other.

use crate::client::Answer;
use serde_json::{Map, Value};

/// A document.
pub(crate) struct Document(Value);

impl Document {
    pub(crate) fn new() -> Document {
        Document(server::document())
    }

    /// What stands at a path of keys.
    pub(crate) fn at(&self, path: &[&str]) -> &Value {
        path.iter().fold(&self.0, |value, key| &value[*key])
    }

    /// What a reference leads to, if it is one, without the null beside it.
    pub(crate) fn resolved<'d>(&'d self, schema: &'d Value) -> &'d Value {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.resolved(self.target(reference));
        }
        match schema["anyOf"].as_array().map(Vec::as_slice) {
            Some([one, null]) if null["type"] == "null" => self.resolved(one),
            _ => schema,
        }
    }

    fn target(&self, reference: &str) -> &Value {
        let pointer = reference.strip_prefix('#').expect("within the document");
        self.0.pointer(pointer).expect("it leads somewhere")
    }

    /// Whether `answer` is one that the document knows of.
    pub(crate) fn answer(&self, method: &str, path: &str, answer: &Answer) {
        let kinds = ["/v1/models/{id}", "/page/{file}"];
        let of_kind = |kind: &&str| {
            let (folder, _) = kind.split_once('{').expect("a variable");
            path.starts_with(folder)
        };
        let path = kinds.into_iter().find(of_kind).unwrap_or(path);
        let error = self.at(&["components", "schemas", "Error"]);
        let operations = self.at(&["paths", path]);
        if operations.get(method).is_none() {
            let status = if operations.is_null() { 404 } else { 405 };
            assert_eq!(answer.status, status, "{method} of {path} is not described");
            return self.agrees(error, &answer.json());
        }
        let status = answer.status.to_string();
        let kinds = &operations[method]["responses"][&status]["content"];
        let header = answer.header("content-type").expect("a kind of content");
        let kind = header.split(';').next().expect("its name");
        let Some(schema) = kinds[kind].get("schema") else {
            panic!("{method} {path}: {status} with {kind} is not described")
        };
        let json = kind == "application/json";
        let body = if json { answer.json() } else { answer.text.clone().into() };
        self.agrees(schema, &body);
    }

    /// Whether `event` is one of the stream of `path`.
    pub(crate) fn event(&self, path: &str, event: &Value) {
        let whole = self.at(&["paths", path, "post", "responses", "200", "content"]);
        let data = &whole["text/event-stream"]["schema"]["properties"]["data"];
        let json = data["anyOf"].get(0).unwrap_or(data);
        assert_eq!(json["contentMediaType"], "application/json", "{path}");
        self.agrees(&json["contentSchema"], event);
    }

    /// Whether a body that was taken is one that may be sent.
    pub(crate) fn taken(&self, path: &str, body: &Value) {
        let content = self.at(&["paths", path, "post", "requestBody", "content"]);
        self.agrees(&content["application/json"]["schema"], body);
    }

    fn agrees(&self, schema: &Value, value: &Value) {
        if let Err(problem) = self.check(schema, value, "") {
            panic!("{problem}: {value}");
        }
    }

    /// # Errors
    /// Where `value`, found at `at`, is not of `schema`.
    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Value::Object(keywords) = schema else {
            return if *schema == true { Ok(()) } else { Err(format!("{at} may not be there")) };
        };
        for (keyword, rule) in keywords {
            let so = match (keyword.as_str(), value) {
                ("description", _) => true,
                ("$ref", _) => {
                    self.check(self.target(rule.as_str().expect("a text")), value, at)?;
                    true
                }
                ("anyOf", _) => {
                    self.check_any(rule, value, at)?;
                    true
                }
                ("const", _) => same(rule, value),
                ("enum", _) => {
                    rule.as_array().expect("values").iter().any(|rule| same(rule, value))
                }
                ("type", _) => match rule {
                    Value::Array(kinds) => kinds.iter().any(|kind| is(kind, value)),
                    kind => is(kind, value),
                },
                (_, Value::Number(_)) => number(keyword, rule, value),
                (_, Value::String(text)) => string(keyword, rule, text),
                (_, Value::Array(items)) => self.array(keyword, keywords, items, at)?,
                (_, Value::Object(fields)) => self.object(keyword, keywords, fields, at)?,
                (_, Value::Null | Value::Bool(_)) => true,
            };
            if !so {
                return Err(format!("{at} is {value}, against {keyword} {rule}"));
            }
        }
        Ok(())
    }

    fn check_any(&self, kinds: &Value, value: &Value, at: &str) -> Result<(), String> {
        let mut problems = Vec::new();
        for kind in kinds.as_array().expect("schemas") {
            match self.check(kind, value, at) {
                Ok(()) => return Ok(()),
                Err(problem) => problems.push(problem),
            }
        }
        Err(problems.join("\n"))
    }

    fn array(
        &self,
        keyword: &str,
        keywords: &Map<String, Value>,
        items: &[Value],
        at: &str,
    ) -> Result<bool, String> {
        let rule = &keywords[keyword];
        let first = keywords.get("prefixItems").and_then(Value::as_array).map_or(&[][..], |p| p);
        Ok(match keyword {
            "items" => {
                for item in items.iter().skip(first.len()) {
                    self.check(rule, item, &format!("{at}[]"))?;
                }
                true
            }
            "prefixItems" => {
                for (schema, item) in first.iter().zip(items) {
                    self.check(schema, item, &format!("{at}[]"))?;
                }
                true
            }
            "minItems" => items.len() as u64 >= rule.as_u64().expect("a count"),
            "maxItems" => items.len() as u64 <= rule.as_u64().expect("a count"),
            other => elsewhere(other),
        })
    }

    fn object(
        &self,
        keyword: &str,
        keywords: &Map<String, Value>,
        fields: &Map<String, Value>,
        at: &str,
    ) -> Result<bool, String> {
        let rule = &keywords[keyword];
        let known = |name: &str| keywords.get("properties").and_then(|known| known.get(name));
        Ok(match keyword {
            "required" => {
                let mut names = rule.as_array().expect("names").iter();
                names.all(|name| fields.contains_key(name.as_str().expect("a name")))
            }
            "properties" => {
                for (name, field) in fields {
                    if let Some(schema) = known(name) {
                        self.check(schema, field, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                for (name, field) in fields.iter().filter(|(name, _)| known(name).is_none()) {
                    self.check(rule, field, &format!("{at}.{name}"))?;
                }
                true
            }
            "maxProperties" => fields.len() as u64 <= rule.as_u64().expect("a count"),
            other => elsewhere(other),
        })
    }
}

/// Numbers are the same whatever way they are written.
fn same(rule: &Value, value: &Value) -> bool {
    rule == value || rule.is_number() && rule.as_f64() == value.as_f64()
}

fn is(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("the name of a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("{other} is no type"),
    }
}

fn number(keyword: &str, rule: &Value, value: &Value) -> bool {
    let (bound, value) = (rule.as_f64(), value.as_f64());
    match keyword {
        "minimum" => value >= bound,
        "maximum" => value <= bound,
        "exclusiveMinimum" => value > bound,
        other => elsewhere(other),
    }
}

fn string(keyword: &str, rule: &Value, text: &str) -> bool {
    let count = text.chars().count() as u64;
    match keyword {
        "minLength" => count >= rule.as_u64().expect("a count"),
        "maxLength" => count <= rule.as_u64().expect("a count"),
        // The one pattern of the document: names of functions.
        "pattern" => {
            assert_eq!(*rule, "^[A-Za-z0-9_-]{1,64}$", "a pattern that is not known here");
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            (1..=64).contains(&count) && text.chars().all(fits)
        }
        other => elsewhere(other),
    }
}

/// Keywords for values of other types hold; there are no others.
fn elsewhere(keyword: &str) -> bool {
    const KNOWN: [&str; 13] = [
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "required",
        "properties",
        "additionalProperties",
        "maxProperties",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "minLength",
        "maxLength",
    ];
    assert!(KNOWN.contains(&keyword) || keyword == "pattern", "{keyword} is not known here");
    true
}

#[test]
fn answers_that_are_not_described_are_noticed() {
    let document = Document::new();
    let schema = document.at(&["components", "schemas", "Error"]);
    let error = |more: Value| {
        let mut error = serde_json::json!({"error": {"message": "x", "type": "server_error",
            "param": null, "code": "x"}});
        for (key, value) in more.as_object().expect("an object") {
            error["error"][key] = value.clone();
        }
        document.check(schema, &error, "")
    };
    assert_eq!(error(serde_json::json!({})), Ok(()));
    for more in [
        serde_json::json!({"message": 5}),
        serde_json::json!({"type": "other"}),
        serde_json::json!({"param": 5}),
        serde_json::json!({"more": 5}),
    ] {
        assert!(error(more.clone()).is_err(), "{more}");
    }
    assert!(document.check(schema, &serde_json::json!({"error": {}}), "").is_err());
    let ids = document.at(&["components", "schemas", "DetokenizeRequest"]);
    for (tokens, fits) in [("[0, 2.0]", true), ("[-1]", false), ("[1.5]", false), ("5", false)] {
        let body = serde_json::from_str(&format!("{{\"tokens\": {tokens}}}")).expect("JSON");
        assert_eq!(document.check(ids, &body, "").is_ok(), fits, "{tokens}");
    }
}
