//! What an answer must be: OpenAI's `response_format`, and the fields by which clients of vLLM and
//! SGLang ask for the same.

use crate::error::BadRequest;
use crate::fields::{Fields, describe};
use crate::grammars::Grammars;
use constrain::Grammar;
use engine::Constrained;
use serde_json::Value;

/// What an answer must be, and the field that says so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Format {
    pub(crate) grammar: Grammar,
    pub(crate) param: String,
    /// Schemas that are part of the grammar, and the fields that they came in.
    pub(crate) parts: Vec<(String, Grammar)>,
}

/// How many parts of a grammar that cannot be used are looked at to find the one at fault: each may
/// cost as much as the whole.
const MOST_BLAMED: usize = 32;

/// How a field describes texts.
#[derive(Clone, Copy)]
enum Kind {
    /// A JSON schema, as an object or as JSON text.
    Schema,
    /// A regular expression.
    Regex,
    /// A list of texts.
    Choice,
    /// A grammar, EBNF or Lark by its looks.
    Grammar,
    /// A grammar that is EBNF for sure.
    Ebnf,
    /// `true` for any JSON object.
    Object,
}

/// Fields of a request (vLLM's of old, SGLang's), and what they hold.
const FIELDS: &[(&str, Kind)] = &[
    ("guided_json", Kind::Schema),
    ("guided_regex", Kind::Regex),
    ("guided_choice", Kind::Choice),
    ("guided_grammar", Kind::Grammar),
    ("json_schema", Kind::Schema),
    ("regex", Kind::Regex),
    ("ebnf", Kind::Ebnf),
];

/// Fields of vLLM's `structured_outputs`.
const STRUCTURED: &[(&str, Kind)] = &[
    ("json", Kind::Schema),
    ("regex", Kind::Regex),
    ("choice", Kind::Choice),
    ("grammar", Kind::Grammar),
    ("json_object", Kind::Object),
];

impl Format {
    /// Takes all fields that say what an answer must be, of which one may.
    ///
    /// # Errors
    /// A field that is not what it may be, or one too many.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Format>, BadRequest> {
        let mut found = response_format(fields)?;
        for &(name, kind) in FIELDS {
            add(&mut found, take(fields, name, kind)?)?;
        }
        if let Some(mut own) = fields.object("structured_outputs")? {
            for &(name, kind) in STRUCTURED {
                add(&mut found, take(&mut own, name, kind)?)?;
            }
            own.end()?;
        }
        Ok(found)
    }

    /// What a request carries.
    ///
    /// # Errors
    /// A grammar that cannot be used, and which field is at fault: of its parts the first that cannot
    /// be used alone, and without one the field that the whole came in.
    pub(crate) fn compile(&self, grammars: &Grammars) -> Result<Constrained, BadRequest> {
        grammars.compile(&self.grammar).map_err(|error| {
            let wrong = |(param, part): &(String, Grammar)| {
                let error = grammars.compile(part).err()?;
                Some(BadRequest::new(param.as_str(), error.to_string()))
            };
            let found = self.parts.iter().take(MOST_BLAMED).find_map(wrong);
            found.unwrap_or_else(|| BadRequest::new(self.param.as_str(), error.to_string()))
        })
    }
}

fn add(found: &mut Option<Format>, more: Option<Format>) -> Result<(), BadRequest> {
    match (&found, &more) {
        (Some(first), Some(second)) => {
            let problem = format!("cannot be had with `{}`; leave one of them out", first.param);
            Err(BadRequest::new(second.param.as_str(), problem))
        }
        (None, _) => {
            *found = more;
            Ok(())
        }
        (Some(_), None) => Ok(()),
    }
}

/// `response_format`: `text`, `json_object` or `json_schema`.
fn response_format(fields: &mut Fields) -> Result<Option<Format>, BadRequest> {
    let Some(mut own) = fields.object("response_format")? else { return Ok(None) };
    let param = own.path("type");
    let format = match own.text("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => {
            Some(Format { grammar: Grammar::json_object(), param, parts: Vec::new() })
        }
        Some("json_schema") => {
            let schema = own.path("json_schema");
            let missing = || BadRequest::new(schema.as_str(), "is missing; send an object");
            Some(named_schema(own.object("json_schema")?.ok_or_else(missing)?)?)
        }
        kind => {
            let kind = kind.map_or_else(|| "is missing".into(), |kind| format!("is {kind:?}"));
            let problem = format!("{kind}; use \"text\", \"json_object\" or \"json_schema\"");
            return Err(BadRequest::new(param, problem));
        }
    };
    own.end()?;
    Ok(format)
}

/// The object `json_schema`. Every schema is kept to as if it were `strict`.
fn named_schema(mut own: Fields) -> Result<Format, BadRequest> {
    own.text("name")?;
    own.text("description")?;
    own.boolean("strict")?;
    let schema = own.path("schema");
    let format = take(&mut own, "schema", Kind::Schema)?;
    own.end()?;
    format.ok_or_else(|| BadRequest::new(schema, "is missing; send a JSON schema"))
}

/// A field that describes texts. An empty text or list describes none, as elsewhere.
fn take(fields: &mut Fields, name: &str, kind: Kind) -> Result<Option<Format>, BadRequest> {
    let param = fields.path(name);
    let grammar = match kind {
        Kind::Schema => match fields.take(name) {
            Some(Value::String(text)) => (!text.is_empty()).then_some(Grammar::Json(text)),
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                Some(Grammar::Json(schema.to_string()))
            }
            Some(other) => {
                let problem = format!("is {}; give a JSON schema", describe(&other));
                return Err(BadRequest::new(param, problem));
            }
            None => None,
        },
        Kind::Regex => written(fields, name, Grammar::Regex)?,
        Kind::Grammar => written(fields, name, Grammar::written)?,
        Kind::Ebnf => written(fields, name, Grammar::Ebnf)?,
        Kind::Choice => {
            Some(fields.texts(name)?).filter(|texts| !texts.is_empty()).map(Grammar::choice)
        }
        Kind::Object => match fields.boolean(name)? {
            Some(true) => Some(Grammar::json_object()),
            Some(false) | None => None,
        },
    };
    Ok(grammar.map(|grammar| Format { grammar, param, parts: Vec::new() }))
}

/// A field whose text `read` understands, unless it is empty.
fn written(
    fields: &mut Fields,
    name: &str,
    read: impl FnOnce(String) -> Grammar,
) -> Result<Option<Grammar>, BadRequest> {
    Ok(fields.text(name)?.filter(|text| !text.is_empty()).map(read))
}
