//! The fields of a request's body, taken one by one. Each reader says what its field may be; what
//! nobody took is refused in the end, so a misspelt field is never passed over in silence.

use crate::error::{self, BadRequest};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of an object that nobody has taken yet. A field that is `null` is one that is absent.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// What stands in front of their names: empty, or `speculation.`.
    at: String,
}

impl Fields {
    /// Of a body.
    ///
    /// # Errors
    /// A body that is not JSON (with the place), or not an object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, BadRequest> {
        match error::read::<Value>(body)? {
            Value::Object(map) => Ok(Fields::new(map, String::new())),
            other => Err(BadRequest::new(
                "",
                format!("the body is {}; send a JSON object", describe(&other)),
            )),
        }
    }

    fn new(mut map: Map<String, Value>, at: String) -> Fields {
        map.retain(|_, value| !value.is_null());
        Fields { map, at }
    }

    /// The path of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.at)
    }

    /// Whether a field is there and nobody took it yet.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// A field as it is.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name)
    }

    fn wrong(&self, name: &str, value: &Value, wanted: &str) -> BadRequest {
        BadRequest::new(self.path(name), format!("is {}; give {wanted}", describe(value)))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, BadRequest> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, &other, "true or false")),
        }
    }

    /// A whole number in `range`.
    pub(crate) fn integer(
        &mut self,
        name: &str,
        range: RangeInclusive<i128>,
    ) -> Result<Option<i128>, BadRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match integer(&value).filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let wanted = format!("a whole number from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &value, &wanted))
            }
        }
    }

    /// A count from `least` on.
    pub(crate) fn count(&mut self, name: &str, least: usize) -> Result<Option<usize>, BadRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().and_then(|count| usize::try_from(count).ok()) {
            Some(count) if count >= least => Ok(Some(count)),
            _ => Err(self.wrong(name, &value, &format!("a whole number from {least}"))),
        }
    }

    /// A number that `allowed` takes; `wanted` says which these are.
    pub(crate) fn number(
        &mut self,
        name: &str,
        wanted: &str,
        allowed: impl Fn(f32) -> bool,
    ) -> Result<Option<f32>, BadRequest> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32).filter(|number| allowed(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(name, &value, wanted)),
        }
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, BadRequest> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, &other, "a string")),
        }
    }

    /// A text or a list of texts.
    pub(crate) fn texts(&mut self, name: &str) -> Result<Vec<String>, BadRequest> {
        let wanted = "a string or an array of strings";
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => {
                let texts = items.into_iter().enumerate().map(|(index, item)| match item {
                    Value::String(text) => Ok(text),
                    other => Err(self.wrong(&format!("{name}[{index}]"), &other, "a string")),
                });
                texts.collect()
            }
            Some(other) => Err(self.wrong(name, &other, wanted)),
        }
    }

    /// A list of token ids below `vocabulary`.
    pub(crate) fn ids(
        &mut self,
        name: &str,
        vocabulary: usize,
    ) -> Result<Option<Vec<u32>>, BadRequest> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => ids(&items, &self.path(name), vocabulary).map(Some),
            Some(other) => Err(self.wrong(name, &other, "an array of token ids")),
        }
    }

    /// An object, whose fields are taken in turn.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, BadRequest> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields::new(map, format!("{}.", self.path(name))))),
            Some(other) => Err(self.wrong(name, &other, "an object")),
        }
    }

    /// Several fields that belong together, by their type.
    pub(crate) fn typed<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<T, BadRequest> {
        let part = names.iter().filter_map(|name| Some(((*name).to_owned(), self.take(name)?)));
        let part = Value::Object(part.collect());
        serde_path_to_error::deserialize(part).map_err(|error| {
            let inner = error.path().to_string();
            let param = if inner == "." { String::new() } else { self.path(&inner) };
            BadRequest::new(param, error.into_inner().to_string())
        })
    }

    /// What nobody took yet, by name.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// What nobody took, in the order of the body.
    pub(crate) fn rest(self) -> impl Iterator<Item = (String, Value)> {
        let at = self.at;
        self.map.into_iter().map(move |(name, value)| (format!("{at}{name}"), value))
    }

    /// Refuses what nobody took.
    pub(crate) fn end(self) -> Result<(), BadRequest> {
        match self.rest().next() {
            None => Ok(()),
            Some((path, _)) => Err(unknown(&path)),
        }
    }
}

/// The refusal of a field that does not exist.
pub(crate) fn unknown(path: &str) -> BadRequest {
    BadRequest::new(path, "is not a field of this request; leave it out")
}

/// Token ids out of JSON; `path` is that of the list.
pub(crate) fn ids(items: &[Value], path: &str, vocabulary: usize) -> Result<Vec<u32>, BadRequest> {
    let id = |(index, item): (usize, &Value)| {
        let id = item.as_u64().filter(|id| *id < vocabulary as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            let problem =
                format!("is {}; token ids are whole numbers below {vocabulary}", describe(item));
            BadRequest::new(format!("{path}[{index}]"), problem)
        })
    };
    items.iter().enumerate().map(id).collect()
}

/// A number without a fraction.
fn integer(value: &Value) -> Option<i128> {
    value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from))
}

/// A value, short enough for a message.
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 40 => value.to_string(),
        Value::String(_) => "a long string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        Fields::parse(json.as_bytes()).expect("an object")
    }

    #[test]
    fn every_reader_names_the_field_and_what_it_may_be() {
        let json =
            r#"{"a": "NaN", "b": 1.5, "c": -1, "d": [1], "e": 3, "f": {"g": 2}, "h": [5, -1]}"#;
        let mut body = fields(json);
        let errors = [
            body.number("a", "a number from 0 to 2", |_| true).unwrap_err(),
            body.integer("b", 1..=9).unwrap_err(),
            body.count("c", 1).unwrap_err(),
            body.texts("d").unwrap_err(),
            body.text("e").unwrap_err(),
            body.object("f").unwrap().unwrap().boolean("g").unwrap_err(),
            body.ids("h", 9).unwrap_err(),
        ];
        let says: Vec<String> = errors.iter().map(BadRequest::to_string).collect();
        let want = [
            "a: is \"NaN\"; give a number from 0 to 2",
            "b: is 1.5; give a whole number from 1 to 9",
            "c: is -1; give a whole number from 1",
            "d[0]: is 1; give a string",
            "e: is 3; give a string",
            "f.g: is 2; give true or false",
            "h[1]: is -1; token ids are whole numbers below 9",
        ];
        assert_eq!(says, want);
        assert_eq!(body.end(), Ok(()));
    }

    #[test]
    fn null_is_absent_and_the_rest_is_refused_by_name() {
        let mut body = fields(r#"{"n": null, "x": null, "seed": 18446744073709551615, "oops": 1}"#);
        assert_eq!(body.integer("n", 1..=2), Ok(None));
        let seeds = i128::from(i64::MIN)..=i128::from(u64::MAX);
        assert_eq!(body.integer("seed", seeds), Ok(Some(i128::from(u64::MAX))));
        assert_eq!(body.end().unwrap_err().param, "oops");
    }

    #[test]
    fn bodies_that_are_no_object_say_where_they_go_wrong() {
        for (body, says) in [
            ("", "line 1 column 0"),
            ("{\"a\": 1", "line 1 column 7"),
            ("{\n\"a\" 1}", "line 2 column 5"),
            ("[1]", "the body is an array"),
            ("{} {}", "trailing characters"),
        ] {
            let error = Fields::parse(body.as_bytes()).unwrap_err();
            assert_eq!(error.param, "");
            assert!(error.problem.contains(says), "{body}: {error}");
        }
        let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
        assert!(Fields::parse(&deep).unwrap_err().problem.contains("recursion limit"));
        assert!(Fields::parse(b"{\"a\": \"\xff\"}").is_err());
    }
}
