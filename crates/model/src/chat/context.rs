//! What a template sees: messages, tools and further variables as JSON, as transformers passes
//! them; and the marks that keep control tokens in a user's text from being parsed.

use super::{ChatError, ChatOptions, Ending, Message};
use crate::tokenizer::Tokenizer;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

/// The parts of a context that come from the client.
pub(super) struct Conversation {
    messages: Vec<Value>,
    tools: Vec<Value>,
    extra: Map<String, Value>,
}

impl Conversation {
    pub(super) fn new(messages: &[Message], options: &ChatOptions) -> Conversation {
        Conversation {
            messages: messages.iter().map(to_variables).collect(),
            tools: options.tools.clone(),
            extra: options.extra.clone(),
        }
    }

    /// A private-use character that occurs nowhere in the conversation.
    pub(super) fn unused_char(&self) -> char {
        let text = json!([self.messages, self.tools, self.extra]).to_string();
        let mut private = '\u{100000}'..='\u{10fffd}';
        private.find(|&c| !text.contains(c)).expect("no text has all 65,534 of them")
    }

    /// Puts `mark` before every text of a control token. Templates that trim, split or quote the
    /// text around it work as without. Whether there was any.
    pub(super) fn mark_control_text(&mut self, tokenizer: &Tokenizer, mark: char) -> bool {
        let values = self.messages.iter_mut().chain(&mut self.tools).chain(self.extra.values_mut());
        // No short cut: every value must be visited.
        values.fold(false, |any, value| mark_value(value, tokenizer, mark) | any)
    }

    /// Ends the last message's text with a tag, by which [`cut_at_tag`] finds it.
    pub(super) fn tag_final_message(&mut self) -> Result<char, ChatError> {
        let tag = self.unused_char();
        let last = self.messages.last_mut().and_then(|message| message.get_mut("content"));
        let Some(Value::String(text)) = last else {
            return Err(ChatError("the last message has no text to continue".into()));
        };
        text.extend([tag, ' ']);
        Ok(tag)
    }

    /// Everything under the names that templates use. Later names win over earlier ones.
    pub(super) fn into_variables(
        self,
        tokens: &Map<String, Value>,
        options: &ChatOptions,
    ) -> Value {
        let mut variables = tokens.clone();
        variables.insert("documents".into(), Value::Null);
        variables.extend(self.extra);
        if let Some(date) = &options.date {
            variables.insert("date_string".into(), date.as_str().into());
        }
        let tools = if self.tools.is_empty() { Value::Null } else { Value::Array(self.tools) };
        variables.insert("tools".into(), tools);
        variables.insert("messages".into(), Value::Array(self.messages));
        let prompt = options.ending == Ending::GenerationPrompt;
        variables.insert("add_generation_prompt".into(), prompt.into());
        Value::Object(variables)
    }
}

/// A message as transformers hands it on: without its null fields. Tool arguments, which clients
/// send as JSON in a string, are objects, because templates print them with `tojson`.
fn to_variables(message: &Message) -> Value {
    let mut value = serde_json::to_value(message).expect("a message is JSON");
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    let calls = value.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && let Some(parsed) =
                arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *arguments = Value::Object(parsed);
        }
    }
    value
}

fn mark_value(value: &mut Value, tokenizer: &Tokenizer, mark: char) -> bool {
    match value {
        Value::String(text) => mark_text(text, tokenizer, mark),
        Value::Array(items) => {
            items.iter_mut().fold(false, |any, item| mark_value(item, tokenizer, mark) | any)
        }
        Value::Object(fields) => {
            let mut any = false;
            let marked = std::mem::take(fields).into_iter().map(|(mut key, mut field)| {
                any |= mark_text(&mut key, tokenizer, mark);
                any |= mark_value(&mut field, tokenizer, mark);
                (key, field)
            });
            *fields = marked.collect();
            any
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn mark_text(text: &mut String, tokenizer: &Tokenizer, mark: char) -> bool {
    let starts = tokenizer.control_starts(text);
    for &start in starts.iter().rev() {
        text.insert(start, mark);
    }
    !starts.is_empty()
}

/// The text without its marks, and the byte offsets in it of what stood behind each.
pub(super) fn without_marks(marked: &str, mark: char) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(marked.len());
    let mut offsets = Vec::new();
    for (index, part) in marked.split(mark).enumerate() {
        if index > 0 {
            offsets.push(text.len());
        }
        text.push_str(part);
    }
    (text, offsets)
}

/// The rendered text up to the tag. A template that trimmed the message has also taken the space
/// behind the tag; then the space before it goes too.
pub(super) fn cut_at_tag(mut text: String, tag: char) -> Result<String, ChatError> {
    let Some(at) = text.rfind(tag) else {
        return Err(ChatError("the template does not print the last message as it is".into()));
    };
    let kept = text[at + tag.len_utf8()..].starts_with(' ');
    text.truncate(at);
    if !kept {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

/// Reads `content`: null, a string, or a list of `{"type": "text", "text": …}`.
pub(super) fn text_or_parts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Content {
        Text(String),
        Parts(Vec<Part>),
    }
    #[derive(Deserialize)]
    struct Part {
        #[serde(rename = "type")]
        kind: String,
        text: Option<String>,
    }
    let parts = match Option::<Content>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Content::Text(text)) => return Ok(Some(text)),
        Some(Content::Parts(parts)) => parts,
    };
    let texts = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
        ("text", Some(text)) => Ok(text),
        ("text", None) => Err(serde::de::Error::custom("a text part has no `text`")),
        (kind, _) => Err(serde::de::Error::custom(format!(
            "a part of type `{kind}`; this model reads text parts only"
        ))),
    });
    Ok(Some(texts.collect::<Result<Vec<_>, _>>()?.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Message, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn content_is_text_parts_or_nothing() {
        let content = |text: &str| parse(text).map(|message| message.content);
        assert_eq!(content(r#"{"role":"user","content":"a"}"#), Ok(Some("a".into())));
        assert_eq!(content(r#"{"role":"user","content":null}"#), Ok(None));
        assert_eq!(content(r#"{"role":"user"}"#), Ok(None));
        let parts =
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(content(parts), Ok(Some("a\nb".into())));
        let image = r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}"#;
        assert!(
            content(image).unwrap_err().contains("`image_url`; this model reads text parts only")
        );
    }

    #[test]
    fn null_fields_go_and_arguments_are_objects() {
        let message = parse(
            r#"{"role":"assistant","content":null,"name":null,"tool_calls":[
                {"function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
                {"function":{"name":"g","arguments":"not json"}}]}"#,
        );
        let expected = json!({"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
            {"function": {"name": "g", "arguments": "not json"}}]});
        assert_eq!(to_variables(&message.unwrap()).to_string(), expected.to_string());
    }

    #[test]
    fn marks_come_off_where_they_stood() {
        let marked = without_marks("é\u{100000}<s>\u{100000}<s>x", '\u{100000}');
        assert_eq!(marked, ("é<s><s>x".to_owned(), vec![2, 5]));
    }

    #[test]
    fn the_tag_cuts_the_turn_open() {
        let cut = |text: &str| cut_at_tag(text.to_owned(), '\u{100000}').map_err(|e| e.to_string());
        assert_eq!(cut("A: so \u{100000} <end>"), Ok("A: so ".into()));
        assert_eq!(cut("A: so \u{100000}<end>"), Ok("A: so".into()));
        assert!(cut("A: <end>").is_err());
    }
}
