//! Fields that exist elsewhere and have no effect here: which of their values are taken, because
//! nothing is lost by them, and why the others are refused.

use crate::error::BadRequest;
use crate::fields::{Fields, describe, unknown};
use serde_json::{Value, json};

/// Values that are as good as none.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    /// All: the field is for others than the model.
    All,
    /// Empty texts, lists and objects.
    Empty,
    /// This one.
    Boolean(bool),
    /// This number.
    Number(f64),
    /// One of these texts.
    Texts(&'static [&'static str]),
}

/// Field, values that are taken, and why the others are not.
pub(crate) type Row = (&'static str, Taken, &'static str);

/// A field that comes to have an effect leaves the table.
pub(crate) const TABLE: &[Row] = &[
    ("user", Taken::All, ""),
    ("metadata", Taken::All, ""),
    ("safety_identifier", Taken::All, ""),
    ("prompt_cache_key", Taken::All, ""),
    ("prompt_cache_retention", Taken::All, ""),
    ("verbosity", Taken::All, ""),
    ("reasoning_effort", Taken::All, ""),
    ("request_id", Taken::All, ""),
    ("spaces_between_special_tokens", Taken::All, ""),
    ("skip_special_tokens", Taken::Boolean(true), "control tokens are never part of the text"),
    (
        "include_stop_str_in_output",
        Taken::Boolean(false),
        "stop strings are never part of the text",
    ),
    ("store", Taken::Boolean(false), "nothing is stored here"),
    ("service_tier", Taken::Texts(&["auto", "default"]), "there is one tier"),
    ("length_penalty", Taken::Number(1.0), "there is no beam search"),
    ("use_beam_search", Taken::Boolean(false), "there is no beam search"),
    ("priority", Taken::Number(0.0), "requests go in the order of their arrival"),
    ("functions", Taken::Empty, "use `tools`"),
    ("function_call", Taken::Texts(&["none", "auto"]), "use `tool_choice`"),
    ("modalities", Taken::Texts(&["text"]), "the model writes text only"),
    ("audio", Taken::Empty, "the model writes text only"),
    ("prediction", Taken::Empty, "the drafter predicts; see `speculation`"),
    ("web_search_options", Taken::Empty, "the model cannot search"),
    ("suffix", Taken::Empty, "the model continues prompts and fills no gaps"),
    (
        "prompt_logprobs",
        Taken::Boolean(false),
        "those of prompts come with `echo` and `logprobs` of /v1/completions",
    ),
    ("lora_path", Taken::Empty, "there are no adapters"),
    ("image_data", Taken::Empty, "the model reads text only"),
    ("return_hidden_states", Taken::Boolean(false), "they are not kept"),
    ("return_routed_experts", Taken::Boolean(false), "there are none"),
];

impl Taken {
    fn check(self, path: &str, value: &Value, reason: &str) -> Result<(), BadRequest> {
        if self.takes(value) {
            return Ok(());
        }
        let problem = format!("is {}, but {reason}; leave it out", describe(value));
        Err(BadRequest::new(path, problem))
    }

    fn takes(self, value: &Value) -> bool {
        match self {
            Taken::All => true,
            Taken::Empty => {
                [json!(""), json!([]), json!({})].contains(value) || *value == Value::Null
            }
            Taken::Boolean(boolean) => *value == Value::Bool(boolean),
            Taken::Number(number) => value.as_f64() == Some(number),
            Taken::Texts(texts) => match value {
                Value::String(text) => texts.contains(&text.as_str()),
                Value::Array(items) => items.iter().all(|item| self.takes(item)),
                _ => false,
            },
        }
    }
}

/// Refuses the fields that nobody took, but for those without an effect.
///
/// # Errors
/// The first field that would have to have one.
pub(crate) fn end(fields: Fields) -> Result<(), BadRequest> {
    for (path, value) in fields.rest() {
        let name = path.rsplit('.').next().unwrap_or(&path);
        let Some((_, taken, reason)) = TABLE.iter().find(|(field, ..)| *field == name) else {
            return Err(unknown(&path));
        };
        taken.check(&path, &value, reason)?;
    }
    Ok(())
}

/// Takes the fields of `table`, which belong to one endpoint only.
///
/// # Errors
/// The first of them that would have to have an effect.
pub(crate) fn take(fields: &mut Fields, table: &[Row]) -> Result<(), BadRequest> {
    table.iter().try_for_each(|(name, taken, reason)| match fields.take(name) {
        Some(value) => taken.check(&fields.path(name), &value, reason),
        None => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &Value) -> Result<(), BadRequest> {
        end(Fields::parse(json.to_string().as_bytes()).expect("an object"))
    }

    #[test]
    fn values_without_effect_are_taken() {
        let body = json!({
            "user": "me", "metadata": {"a": "b"}, "store": false, "length_penalty": 1.0,
            "use_beam_search": false, "priority": 0, "modalities": ["text"], "suffix": null,
            "service_tier": "auto", "function_call": "none", "unheard_of": null,
        });
        assert_eq!(check(&body), Ok(()));
    }

    #[test]
    fn every_other_value_is_refused_by_name() {
        for (field, value) in [
            ("store", json!(true)),
            ("length_penalty", json!(0.5)),
            ("priority", json!(3)),
            ("modalities", json!(["text", "audio"])),
            ("suffix", json!("end")),
            ("unheard_of", json!(1)),
        ] {
            let error = check(&json!({ field: value })).unwrap_err();
            assert_eq!(error.param, field);
            assert!(error.problem.ends_with("leave it out"), "{error}");
        }
    }

    #[test]
    fn no_field_is_listed_twice() {
        for (i, (name, ..)) in TABLE.iter().enumerate() {
            assert!(TABLE[..i].iter().all(|(other, ..)| other != name), "{name}");
        }
    }
}
