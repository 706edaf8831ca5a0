//! The items of a response's input as the messages of a chat: what an assistant thought, said and
//! called one after the other is one message.

use super::names::Names;
use crate::error::BadRequest;
use crate::fields::describe;
use serde_json::{Map, Value, json};

const CONTENT: &str = "is missing; send a string or an array of text parts";

/// The messages of a request. `names` learns where they come from.
///
/// # Errors
/// The item at fault.
pub(super) fn messages(
    input: Value,
    instructions: Option<&str>,
    names: &mut Names,
) -> Result<Vec<Value>, BadRequest> {
    let mut talk = Talk { messages: Vec::new(), open: None, called: Vec::new(), names };
    if let Some(text) = instructions {
        talk.push(json!({"role": "system", "content": text}), "instructions");
    }
    match input {
        Value::String(text) => {
            // Its content is the field itself.
            let at = format!("messages[{}].content", talk.messages.len());
            talk.names.note(at, "input");
            talk.push(json!({"role": "user", "content": text}), "input");
        }
        Value::Array(items) if items.is_empty() => {
            return Err(BadRequest::new("input", "is empty; send at least one item"));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                talk.item(item, &format!("input[{index}]"))?;
            }
            talk.close();
        }
        other => {
            let problem = format!("is {}; give a string or an array of items", describe(&other));
            return Err(BadRequest::new("input", problem));
        }
    }
    Ok(talk.messages)
}

struct Talk<'n> {
    messages: Vec<Value>,
    /// The assistant's turn that may go on.
    open: Option<Turn>,
    /// The ids of all calls.
    called: Vec<String>,
    names: &'n mut Names,
}

/// What an assistant did in one turn.
#[derive(Default)]
struct Turn {
    /// The path of its first item.
    at: String,
    reasoning: Option<String>,
    content: Option<Value>,
    calls: Vec<(Value, String)>,
}

impl Talk<'_> {
    /// One more message; its fields come from the item at the path `at`.
    fn push(&mut self, message: Value, at: &str) {
        self.names.note(format!("messages[{}]", self.messages.len()), at);
        self.messages.push(message);
    }

    fn item(&mut self, item: &Value, at: &str) -> Result<(), BadRequest> {
        let Value::Object(fields) = item else {
            let problem = format!("is {}; an item is an object", describe(item));
            return Err(BadRequest::new(at, problem));
        };
        match fields.get("type") {
            None | Some(Value::Null) => self.message(fields, at),
            Some(Value::String(kind)) => match kind.as_str() {
                "message" => self.message(fields, at),
                "reasoning" => self.reasoning(fields, at),
                "function_call" => self.call(fields, at),
                "function_call_output" => self.output(fields, at),
                "item_reference" => {
                    let problem = "\"item_reference\" leads nowhere, nothing is stored here; send \
                                   the item itself";
                    Err(BadRequest::new(format!("{at}.type"), problem))
                }
                other => {
                    let problem = format!(
                        "{other:?} is no item that this engine reads; use message, reasoning, \
                         function_call or function_call_output"
                    );
                    Err(BadRequest::new(format!("{at}.type"), problem))
                }
            },
            Some(other) => {
                let problem = format!("is {}; give a string", describe(other));
                Err(BadRequest::new(format!("{at}.type"), problem))
            }
        }
    }

    fn message(&mut self, fields: &Map<String, Value>, at: &str) -> Result<(), BadRequest> {
        let role = text(fields, "role", at)?;
        if !["system", "developer", "user", "assistant"].contains(&role) {
            let problem =
                format!("{role:?} is not a role; use system, developer, user or assistant");
            return Err(BadRequest::new(format!("{at}.role"), problem));
        }
        let content = content(fields, "content", at)?;
        if role == "assistant" {
            if self.open.as_ref().is_some_and(|t| t.content.is_some() || !t.calls.is_empty()) {
                self.close();
            }
            self.turn(at).content = Some(content);
        } else {
            self.close();
            self.push(json!({"role": role, "content": content}), at);
        }
        Ok(())
    }

    /// The thoughts come back in the clear, as they were sent.
    fn reasoning(&mut self, fields: &Map<String, Value>, at: &str) -> Result<(), BadRequest> {
        let mut texts = Vec::new();
        for list in ["content", "summary"] {
            let parts = match fields.get(list) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(parts)) => parts,
                Some(other) => {
                    let problem = format!("is {}; give an array of parts", describe(other));
                    return Err(BadRequest::new(format!("{at}.{list}"), problem));
                }
            };
            for (index, part) in parts.iter().enumerate() {
                let Value::Object(part) = part else {
                    let problem = format!("is {}; a part is an object", describe(part));
                    return Err(BadRequest::new(format!("{at}.{list}[{index}]"), problem));
                };
                texts.push(text(part, "text", &format!("{at}.{list}[{index}]"))?);
            }
            // A summary stands for what is not there.
            if !texts.is_empty() {
                break;
            }
        }
        self.close();
        self.turn(at).reasoning = Some(texts.join("\n"));
        Ok(())
    }

    fn call(&mut self, fields: &Map<String, Value>, at: &str) -> Result<(), BadRequest> {
        let (id, name) = (text(fields, "call_id", at)?, text(fields, "name", at)?);
        let arguments = text(fields, "arguments", at)?;
        self.called.push(id.to_owned());
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.turn(at).calls.push((call, at.to_owned()));
        Ok(())
    }

    fn output(&mut self, fields: &Map<String, Value>, at: &str) -> Result<(), BadRequest> {
        let id = text(fields, "call_id", at)?;
        if !self.called.iter().any(|called| called == id) {
            let problem =
                format!("{id:?} is the id of no earlier item; send the `function_call` first");
            return Err(BadRequest::new(format!("{at}.call_id"), problem));
        }
        let output = content(fields, "output", at)?;
        self.close();
        let message = json!({"role": "tool", "tool_call_id": id, "content": output});
        self.push(message, at);
        Ok(())
    }

    /// The turn that is open, or one that begins at `at`.
    fn turn(&mut self, at: &str) -> &mut Turn {
        self.open.get_or_insert_with(|| Turn { at: at.to_owned(), ..Turn::default() })
    }

    /// Ends the assistant's turn.
    fn close(&mut self) {
        let Some(turn) = self.open.take() else { return };
        let message = format!("messages[{}]", self.messages.len());
        let mut fields = Map::new();
        fields.insert("role".into(), "assistant".into());
        // Thoughts that led to nothing.
        let content = turn.content.or_else(|| turn.calls.is_empty().then(|| "".into()));
        fields.insert("content".into(), content.unwrap_or_default());
        if let Some(reasoning) = turn.reasoning {
            fields.insert("reasoning_content".into(), reasoning.into());
        }
        let mut calls = Vec::with_capacity(turn.calls.len());
        for (number, (call, at)) in turn.calls.into_iter().enumerate() {
            let field = format!("{message}.tool_calls[{number}]");
            self.names.note(format!("{field}.function"), &at);
            self.names.note(format!("{field}.id"), format!("{at}.call_id"));
            calls.push(call);
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".into(), calls.into());
        }
        self.push(fields.into(), &turn.at);
    }
}

/// A text that has to be there.
fn text<'f>(fields: &'f Map<String, Value>, name: &str, at: &str) -> Result<&'f str, BadRequest> {
    let problem = match fields.get(name) {
        Some(Value::String(text)) => return Ok(text),
        None | Some(Value::Null) => "is missing; give a string".to_owned(),
        Some(other) => format!("is {}; give a string", describe(other)),
    };
    Err(BadRequest::new(format!("{at}.{name}"), problem))
}

/// A text or its parts, as chats write them.
fn content(fields: &Map<String, Value>, name: &str, at: &str) -> Result<Value, BadRequest> {
    let parts = match fields.get(name) {
        Some(Value::String(text)) => return Ok(text.as_str().into()),
        Some(Value::Array(parts)) => parts,
        None | Some(Value::Null) => {
            return Err(BadRequest::new(format!("{at}.{name}"), CONTENT));
        }
        Some(other) => {
            let problem = format!("is {}; give a string or an array of parts", describe(other));
            return Err(BadRequest::new(format!("{at}.{name}"), problem));
        }
    };
    let part = |(index, part): (usize, &Value)| {
        let at = format!("{at}.{name}[{index}]");
        let Value::Object(fields) = part else {
            let problem = format!("is {}; a part is an object", describe(part));
            return Err(BadRequest::new(at, problem));
        };
        match text(fields, "type", &at)? {
            "input_text" | "output_text" => {
                Ok(json!({"type": "text", "text": text(fields, "text", &at)?}))
            }
            "refusal" => Ok(json!({"type": "refusal", "refusal": text(fields, "refusal", &at)?})),
            other => {
                let problem = format!(
                    "{other:?} cannot be read, this engine reads text only; send parts of the type \
                     \"input_text\""
                );
                Err(BadRequest::new(format!("{at}.type"), problem))
            }
        }
    };
    parts.iter().enumerate().map(part).collect()
}
