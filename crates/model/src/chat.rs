//! Chat templates (Jinja, as in Hugging Face's `apply_chat_template`), bounded in time and output.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text.
    pub content: String,
}

/// A chat template, compiled.
pub struct ChatTemplate {}

/// A template that failed on this conversation.
#[derive(Debug, thiserror::Error)]
#[error("the chat template refused the conversation: {0}")]
pub struct ChatError(pub String);

/// What a template gets besides the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// JSON descriptions of tools (`tools`).
    pub tools: Vec<serde_json::Value>,
    /// Further variables (`enable_thinking`, …).
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// `date_string`; today when absent.
    pub date: Option<String>,
}

impl ChatTemplate {
    /// From `tokenizer_config.json`, `chat_template.jinja` or GGUF metadata; `None` when the
    /// checkpoint has no template.
    ///
    /// # Errors
    /// A template that does not compile.
    pub fn load(
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        let _ = (checkpoint, tokenizer);
        unimplemented!()
    }

    /// The conversation as text, ending with the generation prompt.
    ///
    /// # Errors
    /// A conversation the template refuses, or one that runs out of its bounds.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, ChatError> {
        let _ = (messages, options);
        unimplemented!()
    }

    /// The conversation as ids. Text of the messages never becomes control tokens: only what the
    /// template itself writes does.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let _ = (tokenizer, messages, options);
        unimplemented!()
    }
}
