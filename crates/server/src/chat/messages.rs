//! The messages of a request as a chat template takes them.

use super::dialect::{IdRule, ToolFormat};
use super::fields::{CallField, Content, MessageField};
use super::ids::nine;
use crate::error::BadRequest;
use model::chat::Message;
use serde_json::{Map, Value, json};

/// The calls of earlier turns by their ids as the client knows them.
struct Calls {
    rule: IdRule,
    /// Id and name of the function. Ids need not be unique: the last call is meant, as some servers
    /// count anew in every turn.
    made: Vec<(String, String)>,
}

/// Checks `fields` and makes a template's messages of them: `developer` is `system`, parts are
/// joined by line breaks, and a tool's message has the name of its function.
///
/// # Errors
/// The field at fault.
pub(super) fn messages(
    fields: &[MessageField],
    format: &ToolFormat,
) -> Result<Vec<Message>, BadRequest> {
    if fields.is_empty() {
        return Err(BadRequest::new("messages", "is empty; send at least one message"));
    }
    let mut calls = Calls { rule: format.ids, made: Vec::new() };
    let message = |(index, field)| calls.message(field, &format!("messages[{index}]"));
    fields.iter().enumerate().map(message).collect()
}

impl Calls {
    fn message(&mut self, field: &MessageField, at: &str) -> Result<Message, BadRequest> {
        let (role, content, own) = match field.role.as_str() {
            "system" | "developer" => ("system", Some(self.required(field, at)?), Map::new()),
            "user" => ("user", Some(self.required(field, at)?), Map::new()),
            "assistant" => {
                let (content, own) = self.assistant(field, at)?;
                ("assistant", content, own)
            }
            "tool" => {
                let (content, own) = self.tool(field, at)?;
                ("tool", Some(content), own)
            }
            other => {
                let remedy = "use system, developer, user, assistant or tool";
                let problem = format!("{other:?} is not a role; {remedy}");
                return Err(BadRequest::new(format!("{at}.role"), problem));
            }
        };
        if !matches!(field.extra.get("name"), None | Some(Value::Null | Value::String(_))) {
            return Err(BadRequest::new(format!("{at}.name"), "must be a string"));
        }
        // What the client says itself is not overruled.
        let mut extra = own;
        let given = field.extra.iter().filter(|(_, value)| !value.is_null());
        extra.extend(given.map(|(key, value)| (key.clone(), value.clone())));
        Ok(Message { role: role.to_owned(), content, extra })
    }

    fn required(&self, field: &MessageField, at: &str) -> Result<String, BadRequest> {
        let missing =
            || BadRequest::new(format!("{at}.content"), "is missing; send a string or text parts");
        text(field.content.as_ref(), at)?.ok_or_else(missing)
    }

    /// Content and calls of an assistant's message. A refusal is content.
    fn assistant(
        &mut self,
        field: &MessageField,
        at: &str,
    ) -> Result<(Option<String>, Map<String, Value>), BadRequest> {
        let content = text(field.content.as_ref(), at)?.or_else(|| field.refusal.clone());
        let made = field.tool_calls.as_deref().unwrap_or_default();
        if content.is_none() && made.is_empty() {
            let problem = "is missing; an assistant's message has content, `tool_calls` or both";
            return Err(BadRequest::new(format!("{at}.content"), problem));
        }
        let mut own = Map::new();
        if !made.is_empty() {
            let call = |(index, call)| self.call(call, &format!("{at}.tool_calls[{index}]"));
            let calls: Vec<Value> = made.iter().enumerate().map(call).collect::<Result<_, _>>()?;
            own.insert("tool_calls".into(), calls.into());
        }
        Ok((content, own))
    }

    fn call(&mut self, call: &CallField, at: &str) -> Result<Value, BadRequest> {
        if let Some(kind) = call.kind.as_deref().filter(|&kind| kind != "function") {
            let problem = format!("{kind:?} is not supported; use \"function\"");
            return Err(BadRequest::new(format!("{at}.type"), problem));
        }
        let missing = || BadRequest::new(format!("{at}.function"), "is missing");
        let function = call.function.as_ref().ok_or_else(missing)?;
        // A model may have called what no function may be called; the turn is kept all the same.
        if function.name.is_empty() {
            let problem = "is empty; send the name of the function";
            return Err(BadRequest::new(format!("{at}.function.name"), problem));
        }
        if call.id.is_empty() {
            return Err(BadRequest::new(format!("{at}.id"), "is empty; send the id of the call"));
        }
        self.made.push((call.id.clone(), function.name.clone()));
        Ok(json!({
            "id": self.id(&call.id),
            "type": "function",
            "function": {"name": function.name, "arguments": function.arguments},
        }))
    }

    /// Content of a tool's message, and which call it answers.
    fn tool(
        &self,
        field: &MessageField,
        at: &str,
    ) -> Result<(String, Map<String, Value>), BadRequest> {
        let content = self.required(field, at)?;
        let param = format!("{at}.tool_call_id");
        let Some(id) = &field.tool_call_id else {
            let problem = "is missing; send the id of the call that this message answers";
            return Err(BadRequest::new(param, problem));
        };
        let Some((_, name)) = self.made.iter().rev().find(|(made, _)| made == id) else {
            let problem = format!(
                "{id:?} is no call of an earlier message; send that message with its `tool_calls` \
                 first"
            );
            return Err(BadRequest::new(param, problem));
        };
        let own = json!({"tool_call_id": self.id(id), "name": name});
        let Value::Object(own) = own else { panic!("an object was made") };
        Ok((content, own))
    }

    /// `id` as the template takes it.
    fn id(&self, id: &str) -> String {
        match self.rule {
            IdRule::Any => id.to_owned(),
            IdRule::Nine => nine(id),
        }
    }
}

/// The text of `content`.
fn text(content: Option<&Content>, at: &str) -> Result<Option<String>, BadRequest> {
    let parts = match content {
        None => return Ok(None),
        Some(Content::Text(text)) => return Ok(Some(text.clone())),
        Some(Content::Parts(parts)) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}.content[{index}]");
        let (text, field) = match part.kind.as_str() {
            "text" => (&part.text, "text"),
            "refusal" => (&part.refusal, "refusal"),
            other => {
                let problem = format!(
                    "{other:?} cannot be read, this engine reads text only; send parts of the type \
                     \"text\""
                );
                return Err(BadRequest::new(format!("{at}.type"), problem));
            }
        };
        let missing = || BadRequest::new(format!("{at}.{field}"), "is missing");
        texts.push(text.as_deref().ok_or_else(missing)?);
    }
    Ok(Some(texts.join("\n")))
}
