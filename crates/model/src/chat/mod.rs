//! Chat templates (Jinja, as in Hugging Face's `apply_chat_template`), bounded in time and output.
//!
//! What a template sees and what it prints follows transformers 5; the differences between Jinja
//! in Rust and in Python are evened out in `environment`.

mod clock;
mod context;
mod environment;
mod python;
mod sources;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::gguf::Metadata;
use crate::error::LoadError;
use crate::tokenizer::{Specials, Tokenizer};
use context::Conversation;
use minijinja::Environment;
use minijinja::value::Serde;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text; `None` where a turn has none (an assistant's turn of tool calls only). Read from
    /// JSON it may also be a list of text parts, which are joined by newlines.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "context::text_or_parts"
    )]
    pub content: Option<String>,
    /// Everything else a template may look at: `tool_calls`, `tool_call_id`, `name`,
    /// `reasoning_content`, …
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A turn that is only text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }
}

/// A chat template, compiled.
pub struct ChatTemplate {
    /// Holds the template `default` and, where the files have one, `tool_use`.
    environment: Environment<'static>,
    /// `bos_token` and its like.
    tokens: Map<String, Value>,
}

/// A template that failed on this conversation.
#[derive(Debug, thiserror::Error)]
#[error("the chat template refused the conversation: {0}")]
pub struct ChatError(pub String);

/// What a template gets besides the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// JSON descriptions of tools (`tools`).
    pub tools: Vec<Value>,
    /// Further variables (`enable_thinking`, `documents`, …).
    pub extra: Map<String, Value>,
    /// `date_string`. When absent the template does as it does in Hugging Face: it has a date of
    /// its own, or asks the clock (UTC) with `strftime_now`.
    pub date: Option<String>,
    /// How the prompt ends.
    pub ending: Ending,
}

/// How a rendered conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// With the opening of the assistant's next turn (`add_generation_prompt`).
    #[default]
    GenerationPrompt,
    /// Inside the last message, which the model goes on writing (`continue_final_message`).
    ContinueFinal,
}

/// A template runs out of its bounds at this many instructions, some seconds of work: a
/// conversation of 10,000 turns needs a tenth of it.
const FUEL: u64 = 20_000_000;

/// Longest rendered conversation, in bytes.
const OUTPUT_LIMIT: usize = 64 << 20;

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
        match (checkpoint.gguf(), checkpoint.folder()) {
            (Some(metadata), _) => ChatTemplate::from_gguf(metadata, tokenizer),
            (None, Some(folder)) => ChatTemplate::from_folder(folder, tokenizer),
            (None, None) => panic!("a checkpoint is a GGUF file or a folder"),
        }
    }

    /// From the Hugging Face files in `folder`: `chat_template.jinja` (and
    /// `additional_chat_templates/tool_use.jinja`), else `chat_template` of
    /// `tokenizer_config.json`, else `chat_template.json`.
    ///
    /// # Errors
    /// As [`ChatTemplate::load`].
    pub fn from_folder(
        folder: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::compile(sources::in_folder(folder)?, tokenizer)
    }

    /// From `tokenizer.chat_template` (and `tokenizer.chat_template.tool_use`) of a GGUF file.
    ///
    /// # Errors
    /// As [`ChatTemplate::load`].
    pub fn from_gguf(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        ChatTemplate::compile(sources::in_gguf(metadata)?, tokenizer)
    }

    fn compile(
        sources: Vec<sources::Source>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, LoadError> {
        if sources.is_empty() {
            return Ok(None);
        }
        let mut environment = environment::new(FUEL);
        for source in sources {
            let text = environment::without_generation_tags(&source.text);
            environment.add_template_owned(source.name, text).map_err(|error| {
                let problem = format!("does not compile: {}", environment::describe(&error));
                LoadError::new(&source.path, source.field, problem)
            })?;
        }
        let roles = tokenizer.roles();
        let tokens = [
            ("bos_token", roles.bos),
            ("eos_token", roles.eos),
            ("unk_token", roles.unk),
            ("pad_token", roles.pad),
        ];
        let tokens = tokens
            .into_iter()
            .filter_map(|(role, id)| Some((role.to_owned(), tokenizer.name(id?).into())))
            .collect();
        Ok(Some(ChatTemplate { environment, tokens }))
    }

    /// Whether the template's own text contains `text`: by such words one tells what a model was
    /// trained on (`tools`, `<tool_call>`, `<think>`).
    pub fn mentions(&self, text: &str) -> bool {
        self.environment.templates().any(|(_, template)| template.source().contains(text))
    }

    /// The conversation as text, ending with the generation prompt.
    ///
    /// # Errors
    /// A conversation the template refuses, or one that runs out of its bounds.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, ChatError> {
        self.run(Conversation::new(messages, options), options)
    }

    /// The conversation as ids. Text of the messages never becomes control tokens: only what the
    /// template itself writes does. Without such text the ids are those of the rendered text.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let mut conversation = Conversation::new(messages, options);
        let mark = conversation.unused_char();
        if !conversation.mark_control_text(tokenizer, mark) {
            return Ok(tokenizer.encode(&self.run(conversation, options)?, Specials::Parse));
        }
        let marked = self.run(conversation, options)?;
        let (text, literal) = context::without_marks(&marked, mark);
        Ok(tokenizer.encode_with_literals(&text, &literal))
    }

    fn run(
        &self,
        mut conversation: Conversation,
        options: &ChatOptions,
    ) -> Result<String, ChatError> {
        let name = if options.tools.is_empty() { "default" } else { "tool_use" };
        let template = self
            .environment
            .get_template(name)
            .or_else(|_| self.environment.get_template("default"))
            .expect("sources have a default template");
        let continuation = match options.ending {
            Ending::GenerationPrompt => None,
            Ending::ContinueFinal => Some(conversation.tag_final_message()?),
        };
        let context = conversation.into_variables(&self.tokens, options);
        let mut output = environment::BoundedOutput::new(OUTPUT_LIMIT);
        template
            .render_captured_to(minijinja::Value::from(Serde(&context)), &mut output)
            .map_err(|error| ChatError(environment::describe(&error)))?;
        let text = output.into_text();
        match continuation {
            None => Ok(text),
            Some(tag) => context::cut_at_tag(text, tag),
        }
    }
}
