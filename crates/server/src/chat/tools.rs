//! The functions that a request offers, and which of them the model may or must call.

use super::dialect::{Bare, ToolFormat};
use super::fields::ChatFields;
use super::grammar::{ProseWithCalls, calls, prose_with_calls, schema};
use super::split::{Allowed, CallRules, Count};
use crate::error::BadRequest;
use constrain::Grammar;
use serde_json::{Map, Value};

/// Longest name of a function.
const LONGEST_NAME: usize = 64;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Function {
    /// Letters, digits, `_` and `-`.
    pub(super) name: String,
    /// The JSON schema of its arguments; `None` for a function that takes none.
    pub(super) parameters: Option<Value>,
    /// Whether calls that the model makes by itself must keep to that.
    pub(super) strict: Strict,
}

/// Whether something is strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strict {
    Yes,
    No,
}

/// Which calls an answer makes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// None.
    Never,
    /// As the model likes.
    Free,
    /// At least one, of any function.
    Some,
    /// One, of this function.
    One(String),
}

/// What the grammar of an answer must be. Reasoning that comes first is not part of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Any text.
    None,
    /// Tool calls and nothing else.
    Calls(Grammar),
    /// Tool calls, or what it would have to be without tools.
    CallsOr(Grammar),
    /// The same where something is asked for; otherwise any text whose calls are calls.
    Strict(Grammar, ProseWithCalls),
}

/// The tools of a request, checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tools {
    functions: Vec<Function>,
    choice: Choice,
    count: Count,
}

impl Tools {
    /// Checks `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    /// The field at fault.
    pub(super) fn check(fields: &ChatFields) -> Result<Tools, BadRequest> {
        let mut functions: Vec<Function> = Vec::new();
        for (index, tool) in fields.tools.iter().flatten().enumerate() {
            let function = function(tool, &format!("tools[{index}]"))?;
            if functions.iter().any(|other| other.name == function.name) {
                let problem = format!("`{}` is the name of two tools; rename one", function.name);
                return Err(BadRequest::new(format!("tools[{index}].function.name"), problem));
            }
            functions.push(function);
        }
        let choice = choice(fields.tool_choice.as_ref(), &functions)?;
        let count = match fields.parallel_tool_calls {
            Some(false) => Count::One,
            Some(true) | None => Count::Several,
        };
        Ok(Tools { functions, choice, count })
    }

    /// Whether the model is told about the tools.
    pub(super) fn are_offered(&self) -> bool {
        !self.functions.is_empty() && self.choice != Choice::Never
    }

    /// Which calls of an answer count; `None` when none do.
    pub(super) fn rules(&self, format: &'static ToolFormat) -> Option<CallRules> {
        let (allowed, count) = match &self.choice {
            _ if self.functions.is_empty() => return None,
            Choice::Never => return None,
            Choice::Free | Choice::Some => (Allowed::Any, self.count),
            Choice::One(name) => (Allowed::Only(vec![name.clone()]), Count::One),
        };
        Some(CallRules { format, allowed, count })
    }

    /// The schemas of the arguments of functions that may be called, and the fields that they came in.
    pub(super) fn schemas(&self) -> Vec<(String, Grammar)> {
        let callable = |function: &Function| match &self.choice {
            Choice::Never => false,
            Choice::Free | Choice::Some => true,
            Choice::One(name) => function.name == *name,
        };
        let functions = self.functions.iter().enumerate();
        let told = functions.filter(|(_, function)| function.parameters.is_some());
        told.filter(|(_, function)| callable(function))
            .map(|(index, function)| {
                (format!("tools[{index}].function.parameters"), schema(function))
            })
            .collect()
    }

    /// What the answer must be.
    ///
    /// # Errors
    /// A strict function that the model may call as it likes, in a format whose calls need no mark.
    pub(super) fn constraint(&self, format: &ToolFormat) -> Result<Constraint, BadRequest> {
        Ok(match &self.choice {
            Choice::Never => Constraint::None,
            Choice::Free if self.functions.is_empty() => Constraint::None,
            Choice::Free => {
                let calls = calls(format, self.functions.iter(), self.count);
                match self.functions.iter().position(|f| f.strict == Strict::Yes) {
                    None => Constraint::CallsOr(calls),
                    Some(first) if format.bare != Bare::Never => {
                        let param = format!("tools[{first}].function.strict");
                        let problem = format!(
                            "cannot be kept to where the model may also answer in words: a call of the \
                             format `{}` needs no mark that tells it from them; ask for a call with \
                             `tool_choice`, or leave it out",
                            format.name
                        );
                        return Err(BadRequest::new(param, problem));
                    }
                    Some(_) => {
                        let prose = prose_with_calls(format, &self.functions, self.count);
                        Constraint::Strict(calls, prose)
                    }
                }
            }
            Choice::Some => Constraint::Calls(calls(format, self.functions.iter(), self.count)),
            Choice::One(name) => {
                let named = self.functions.iter().filter(|function| function.name == *name);
                Constraint::Calls(calls(format, named, Count::One))
            }
        })
    }
}

/// A tool of the request, at the path `at`. What else it holds is for the template.
fn function(tool: &Value, at: &str) -> Result<Function, BadRequest> {
    let tool = object(Some(tool), at)?;
    match tool.get("type") {
        Some(Value::String(kind)) if kind == "function" => {}
        kind => {
            let problem = match kind {
                Some(kind) => format!("{kind} is not supported; use \"function\""),
                None => "is missing; use \"function\"".to_owned(),
            };
            return Err(BadRequest::new(format!("{at}.type"), problem));
        }
    }
    let at = format!("{at}.function");
    let function = object(tool.get("function"), &at)?;
    let name = string(function.get("name"), &format!("{at}.name"))?;
    check_name(name, &format!("{at}.name"))?;
    if !matches!(function.get("description"), None | Some(Value::Null | Value::String(_))) {
        return Err(BadRequest::new(format!("{at}.description"), "must be a string"));
    }
    let parameters = match function.get("parameters") {
        None | Some(Value::Null) => None,
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        Some(_) => {
            let problem = "must be a JSON schema, which is an object";
            return Err(BadRequest::new(format!("{at}.parameters"), problem));
        }
    };
    let strict = match function.get("strict") {
        Some(Value::Bool(true)) => Strict::Yes,
        None | Some(Value::Null | Value::Bool(false)) => Strict::No,
        Some(_) => return Err(BadRequest::new(format!("{at}.strict"), "must be true or false")),
    };
    Ok(Function { name: name.to_owned(), parameters, strict })
}

/// Whether a function may be called `name`.
///
/// # Errors
/// A name that it may not have, as the fault of the field `param`.
fn check_name(name: &str, param: &str) -> Result<(), BadRequest> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(fits) {
        let problem = format!(
            "{name:?} is no function's name; use 1 to {LONGEST_NAME} letters, digits, `_` and `-`"
        );
        return Err(BadRequest::new(param, problem));
    }
    Ok(())
}

fn choice(field: Option<&Value>, functions: &[Function]) -> Result<Choice, BadRequest> {
    const PARAM: &str = "tool_choice";
    let needs_tools = || match functions {
        [] => Err(BadRequest::new(PARAM, "asks for a call, but there are no `tools`; send some")),
        _ => Ok(()),
    };
    let unknown = |what: &str| {
        let remedy = "use \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": \
                      {\"name\": …}}";
        BadRequest::new(PARAM, format!("{what} is not known; {remedy}"))
    };
    match field {
        None | Some(Value::Null) => Ok(Choice::Free),
        Some(Value::String(mode)) => match mode.as_str() {
            "none" => Ok(Choice::Never),
            "auto" => Ok(Choice::Free),
            "required" => needs_tools().map(|()| Choice::Some),
            _ => Err(unknown(&format!("{mode:?}"))),
        },
        Some(Value::Object(fields)) => {
            match fields.get("type") {
                Some(Value::String(kind)) if kind == "function" => {}
                Some(kind) => return Err(unknown(&format!("the type {kind}"))),
                None => return Err(unknown("an object without a type")),
            }
            needs_tools()?;
            let function = object(fields.get("function"), &format!("{PARAM}.function"))?;
            let param = format!("{PARAM}.function.name");
            let name = string(function.get("name"), &param)?;
            if !functions.iter().any(|function| function.name == name) {
                let problem = format!("{name:?} is not among the `tools`; name one that is");
                return Err(BadRequest::new(param, problem));
            }
            Ok(Choice::One(name.to_owned()))
        }
        Some(other) => Err(unknown(&other.to_string())),
    }
}

fn object<'v>(value: Option<&'v Value>, param: &str) -> Result<&'v Map<String, Value>, BadRequest> {
    match value {
        Some(Value::Object(fields)) => Ok(fields),
        Some(_) => Err(BadRequest::new(param, "must be an object")),
        None => Err(BadRequest::new(param, "is missing; it must be an object")),
    }
}

fn string<'v>(value: Option<&'v Value>, param: &str) -> Result<&'v str, BadRequest> {
    match value {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(BadRequest::new(param, "must be a string")),
        None => Err(BadRequest::new(param, "is missing; it must be a string")),
    }
}
