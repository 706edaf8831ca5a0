//! The fields of a chat request that say what is talked about, as OpenAI's API writes them. What
//! they mean is checked in [`ChatFields::prepare`].

use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;

/// A chat request, but for the fields that do not concern its text.
#[derive(Clone, Debug, Deserialize)]
pub struct ChatFields {
    /// The conversation.
    pub messages: Vec<MessageField>,
    /// Functions that the model may call. They reach the template as they are.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// `"none"`, `"auto"`, `"required"`, or one function.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether one answer may call several times; it may when this is absent.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Whether the model goes on with the last message, the assistant's, instead of beginning a
    /// message of its own.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
    /// Whether reasoning is taken out of the content; it is when this is absent.
    #[serde(default)]
    pub separate_reasoning: Option<bool>,
    /// Further variables of the chat template (`enable_thinking`, …).
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// A message.
#[derive(Clone, Debug, Deserialize)]
pub struct MessageField {
    /// Who speaks.
    pub role: String,
    /// What is said.
    #[serde(default)]
    pub content: Option<Content>,
    /// What an assistant said instead of content.
    #[serde(default)]
    pub refusal: Option<String>,
    /// Calls that an assistant made.
    #[serde(default)]
    pub tool_calls: Option<Vec<CallField>>,
    /// Which call a tool's message answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// Whatever else a template may look at (`name`, `reasoning_content`, …).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// As one text.
    Text(String),
    /// In parts.
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Part {
    /// `text`, `refusal`, or a kind that is refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a text part.
    #[serde(default)]
    pub text: Option<String>,
    /// The text of a refusal.
    #[serde(default)]
    pub refusal: Option<String>,
}

/// A call that an assistant made in an earlier turn.
#[derive(Clone, Debug, Deserialize)]
pub struct CallField {
    /// Its id, which a tool's message repeats.
    pub id: String,
    /// `function`.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// What was called.
    #[serde(default)]
    pub function: Option<FunctionField>,
}

/// The function of a call.
#[derive(Clone, Debug, Deserialize)]
pub struct FunctionField {
    /// Its name.
    pub name: String,
    /// The source text of a JSON object, as the model wrote it: it need not be one.
    pub arguments: String,
}

/// Not derived with `untagged`, which knows no paths: an error names the part it is in.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct TextOrParts;
        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of content parts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<Content, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(parts)).map(Content::Parts)
            }
        }
        deserializer.deserialize_any(TextOrParts)
    }
}
