//! A response's request in the words of a chat: the conversation and what is asked of the answer go
//! through the same checks, and whatever chats can do responses can.

use super::input;
use super::names::Names;
use crate::error::BadRequest;
use crate::fields::{Fields, describe};
use crate::openai::asked::MOST_ALTERNATIVES;
use crate::openai::refused::{self, Row, Taken};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Fields of chats that have another name or place here.
pub(crate) const ELSEWHERE: [(&str, &str); 15] = [
    ("messages", "use `input`"),
    ("max_tokens", "use `max_output_tokens`"),
    ("max_completion_tokens", "use `max_output_tokens`"),
    ("response_format", "use `text.format`"),
    ("verbosity", "use `text.verbosity`"),
    ("reasoning_effort", "use `reasoning.effort`"),
    ("logprobs", "use `include`"),
    ("n", "a response is one answer; send one request for each"),
    ("functions", "use `tools`"),
    ("function_call", "use `tool_choice`"),
    ("continue_final_message", "a response is a message of its own; leave it out"),
    ("separate_reasoning", "reasoning is an item of its own; leave it out"),
    ("modalities", "the model writes text only; leave it out"),
    ("audio", "the model writes text only; leave it out"),
    ("suffix", "the model fills no gaps; leave it out"),
];

/// Fields that chats do not have and that have no effect here.
pub(crate) const WITHOUT_EFFECT: &[Row] = &[
    ("previous_response_id", Taken::Empty, "nothing is stored here: send all items as `input`"),
    ("conversation", Taken::Empty, "nothing is stored here: send all items as `input`"),
    ("prompt", Taken::Empty, "nothing is stored here: send `instructions` and `input`"),
    ("background", Taken::Boolean(false), "nothing is stored here for later"),
    ("truncation", Taken::Texts(&["disabled"]), "a prompt is never cut"),
    ("context_management", Taken::Empty, "a prompt is never cut"),
    ("max_tool_calls", Taken::All, ""),
];

/// What `include` may have: log-probabilities, and reasoning, which is in the answer anyway.
pub(crate) const INCLUDES: [&str; 2] = [LOGPROBS, "reasoning.encrypted_content"];
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request in other words.
pub(super) struct Translated {
    pub(super) chat: Fields,
    pub(super) names: Names,
    pub(super) echo: Echo,
}

/// What a response repeats of its request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Echo {
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    reasoning: Value,
    temperature: Value,
    text: Value,
    tool_choice: Value,
    tools: Value,
    top_logprobs: usize,
    top_p: Value,
    user: Option<String>,
}

/// Puts a request into the words of a chat.
///
/// # Errors
/// The field at fault.
pub(super) fn translate(mut fields: Fields) -> Result<Translated, BadRequest> {
    if let Some((name, remedy)) = ELSEWHERE.iter().find(|(name, _)| fields.has(name)) {
        let problem = format!("is not a field of this request; {remedy}");
        return Err(BadRequest::new(*name, problem));
    }
    refused::take(&mut fields, WITHOUT_EFFECT)?;
    let mut chat = Map::new();
    let mut names = Names::default();
    names.note("messages", "input");
    let instructions = fields.text("instructions")?;
    let missing = || BadRequest::new("input", "is missing; send a string or an array of items");
    let input = fields.take("input").ok_or_else(missing)?;
    let messages = input::messages(input, instructions.as_deref(), &mut names)?;
    chat.insert("messages".into(), messages.into());
    let (tools, tool_choice) = tools(&mut fields, &mut chat, &mut names);
    let parallel = fields.boolean("parallel_tool_calls")?;
    chat.insert("parallel_tool_calls".into(), parallel.into());
    let max_output_tokens = fields.count("max_output_tokens", 1)?;
    chat.insert("max_completion_tokens".into(), max_output_tokens.into());
    names.note("max_completion_tokens", "max_output_tokens");
    let text = text(&mut fields, &mut chat, &mut names)?;
    let reasoning = reasoning(&mut fields, &mut chat)?;
    let top_logprobs = logprobs(&mut fields, &mut chat)?;
    let echo = Echo {
        instructions,
        max_output_tokens,
        metadata: metadata(&mut fields)?,
        parallel_tool_calls: parallel.unwrap_or(true),
        reasoning,
        temperature: fields.see("temperature").cloned().unwrap_or(json!(1.0)),
        text,
        tool_choice,
        tools,
        top_logprobs,
        top_p: fields.see("top_p").cloned().unwrap_or(json!(1.0)),
        user: fields.text("user")?,
    };
    chat.extend(fields.rest());
    Ok(Translated { chat: Fields::of(chat), names, echo })
}

/// `tools` and `tool_choice`, whose functions stand in them without a level of their own. What is no
/// function is left to be refused.
fn tools(fields: &mut Fields, chat: &mut Map<String, Value>, names: &mut Names) -> (Value, Value) {
    let nested = |of: &Value| match of {
        Value::Object(own) if own.get("type").is_some_and(|kind| kind == "function") => {
            let mut function = own.clone();
            function.shift_remove("type");
            json!({"type": "function", "function": function})
        }
        other => other.clone(),
    };
    let tools = fields.take("tools");
    let nest = |tools: &Value| match tools {
        Value::Array(tools) => {
            for index in 0..tools.len() {
                names.note(format!("tools[{index}].function"), format!("tools[{index}]"));
            }
            tools.iter().map(nested).collect()
        }
        other => other.clone(),
    };
    chat.insert("tools".into(), tools.as_ref().map(nest).unwrap_or_default());
    let choice = fields.take("tool_choice");
    chat.insert("tool_choice".into(), choice.as_ref().map(nested).unwrap_or_default());
    names.note("tool_choice.function", "tool_choice");
    (tools.unwrap_or_else(|| json!([])), choice.unwrap_or_else(|| "auto".into()))
}

/// `text`: the format, whose schema stands in it without a level of its own, and the verbosity.
fn text(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    names: &mut Names,
) -> Result<Value, BadRequest> {
    let plain = json!({"type": "text"});
    names.note("response_format", "text.format");
    names.note("response_format.json_schema", "text.format");
    names.note("verbosity", "text.verbosity");
    let Some(mut own) = fields.object("text")? else { return Ok(json!({ "format": plain })) };
    let (format, verbosity) = (own.take("format").unwrap_or(plain), own.text("verbosity")?);
    own.end()?;
    let nested = match &format {
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "json_schema") => {
            let mut schema = fields.clone();
            schema.shift_remove("type");
            json!({"type": "json_schema", "json_schema": schema})
        }
        other => other.clone(),
    };
    chat.insert("response_format".into(), nested);
    chat.insert("verbosity".into(), verbosity.clone().into());
    Ok(match verbosity {
        Some(verbosity) => json!({"format": format, "verbosity": verbosity}),
        None => json!({ "format": format }),
    })
}

/// `reasoning`: how much is up to the model; what it thinks is told in full.
fn reasoning(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<Value, BadRequest> {
    let mut effort = None;
    if let Some(mut own) = fields.object("reasoning")? {
        effort = own.text("effort")?;
        for name in ["summary", "generate_summary"] {
            match own.text(name)? {
                Some(summary) if summary != "auto" => {
                    let problem = format!(
                        "is {summary:?}, but there are no summaries: reasoning is told in full; \
                         leave it out"
                    );
                    return Err(BadRequest::new(own.path(name), problem));
                }
                _ => {}
            }
        }
        own.end()?;
    }
    chat.insert("reasoning_effort".into(), effort.clone().into());
    Ok(json!({"effort": effort, "summary": null}))
}

/// `include` and `top_logprobs`: how many alternatives the response reports.
fn logprobs(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<usize, BadRequest> {
    let mut wanted = false;
    match fields.take("include") {
        None => {}
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let known = item.as_str().and_then(|name| INCLUDES.iter().find(|n| **n == name));
                let Some(name) = known else {
                    let known = INCLUDES.join(" or ");
                    let problem = format!("is {}; use {known}", describe(item));
                    return Err(BadRequest::new(format!("include[{index}]"), problem));
                };
                wanted |= *name == LOGPROBS;
            }
        }
        Some(other) => {
            let problem = format!("is {}; give an array of strings", describe(&other));
            return Err(BadRequest::new("include", problem));
        }
    }
    let top = fields.integer("top_logprobs", 0..=MOST_ALTERNATIVES)?.unwrap_or(0) as usize;
    if top > 0 && !wanted {
        let problem = format!("needs {LOGPROBS:?} in `include`; put it there, or leave this out");
        return Err(BadRequest::new("top_logprobs", problem));
    }
    let offers = chat["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    if wanted && offers && chat["tool_choice"] != "none" {
        let problem = "has log-probabilities, which are of answers without calls; leave them out, \
                       or `tools`";
        return Err(BadRequest::new("include", problem));
    }
    if wanted {
        chat.insert("logprobs".into(), true.into());
        chat.insert("top_logprobs".into(), top.into());
    }
    Ok(top)
}

/// `metadata`: texts by name, for the client's own use.
fn metadata(fields: &mut Fields) -> Result<Map<String, Value>, BadRequest> {
    match fields.take("metadata") {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => match map.iter().find(|(_, value)| !value.is_string()) {
            None => Ok(map),
            Some((name, value)) => {
                let problem = format!("is {}; give a string", describe(value));
                Err(BadRequest::new(format!("metadata.{name}"), problem))
            }
        },
        Some(other) => {
            let problem = format!("is {}; give an object of strings", describe(&other));
            Err(BadRequest::new("metadata", problem))
        }
    }
}
