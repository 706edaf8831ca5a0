//! From the fields of a chat request to what is rendered, what the answer must be, and how it is
//! read.

use super::dialect::{Dialect, Reasoning, ToolPrompt};
use super::fields::ChatFields;
use super::ids::CallIds;
use super::messages::messages;
use super::split::{CallRules, Rules, Splitter, Start};
use super::tools::{Constraint, Tools};
use super::untold;
use crate::error::BadRequest;
use constrain::Grammar;
use model::chat::{ChatOptions, Ending, Message};

/// A chat request that passed its checks.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// For [`model::chat::ChatTemplate::encode`].
    pub messages: Vec<Message>,
    /// For the same.
    pub options: ChatOptions,
    /// What the answer must be.
    pub constraint: Constraint,
    /// How the model reasons,
    thinks: Option<&'static Reasoning>,
    /// and whether that is told apart from its answer.
    reasoning: Option<&'static Reasoning>,
    calls: Option<CallRules>,
    /// The schemas of the arguments that calls may have, and the fields that they came in.
    pub schemas: Vec<(String, Grammar)>,
}

impl ChatFields {
    /// Checks the request and says what a model that speaks `dialect` makes of it.
    ///
    /// # Errors
    /// The field at fault.
    pub fn prepare(&self, dialect: &Dialect) -> Result<Prepared, BadRequest> {
        let mut messages = messages(&self.messages, dialect.tools)?;
        let tools = Tools::check(self)?;
        let ending = self.ending(&messages)?;
        let mut offered = self.tools.clone().unwrap_or_default();
        if !tools.are_offered() {
            offered.clear();
        }
        if dialect.prompt == ToolPrompt::Messages {
            messages = untold::write_out(messages, &offered, dialect.tools);
            offered.clear();
        }
        let extra = self.chat_template_kwargs.clone().unwrap_or_default();
        Ok(Prepared {
            messages,
            options: ChatOptions { tools: offered, extra, date: None, ending },
            constraint: tools.constraint(dialect.tools)?,
            thinks: dialect.reasoning,
            reasoning: dialect.reasoning.filter(|_| self.separate_reasoning != Some(false)),
            calls: tools.rules(dialect.tools),
            schemas: tools.schemas(),
        })
    }

    fn ending(&self, messages: &[Message]) -> Result<Ending, BadRequest> {
        if self.continue_final_message != Some(true) {
            return Ok(Ending::GenerationPrompt);
        }
        match messages.last() {
            Some(last) if last.role == "assistant" && last.content.is_some() => {
                Ok(Ending::ContinueFinal)
            }
            _ => {
                let problem = "needs a last message of the role assistant that has content; send \
                               one, or leave the field out";
                Err(BadRequest::new("continue_final_message", problem))
            }
        }
    }
}

impl Prepared {
    /// What takes the answer apart. `tail` is the end of the rendered prompt as text, a few tokens
    /// of it: some templates open the reasoning themselves.
    pub fn splitter(&self, tail: &str, ids: CallIds) -> Splitter {
        let start = match self.reasoning {
            Some(kind) if self.opens(kind, tail) => Start::Reasoning,
            _ => Start::Answer,
        };
        let rules = Rules { reasoning: self.reasoning, start, calls: self.calls.clone() };
        Splitter::new(rules, ids)
    }

    /// The grammar of all that the model writes behind a prompt that ends with `tail`, when what it
    /// answers must be of `format`: its calls, and what it thinks before, have their place in it.
    /// `None` for anything.
    pub fn grammar(&self, format: Option<Grammar>, tail: &str) -> Option<Grammar> {
        let answer = match (&self.constraint, format) {
            (Constraint::Calls(calls), _) => calls.clone(),
            (Constraint::CallsOr(calls) | Constraint::Strict(calls, _), Some(format)) => {
                Grammar::Choice(vec![calls.clone(), format])
            }
            (Constraint::Strict(_, prose), None) => {
                // Where thoughts may come first, what begins as one is one.
                prose.grammar(self.thinks.map(|kind| kind.open))
            }
            (Constraint::None, Some(format)) => format,
            (Constraint::None | Constraint::CallsOr(_), None) => return None,
        };
        let Some(kind) = self.thinks else { return Some(answer) };
        if tail.trim_end().ends_with(kind.close) {
            return Some(answer);
        }
        let text = |text: &str| Grammar::Text(text.to_owned());
        let rest = [Grammar::Through(kind.close.to_owned()), Grammar::gap()];
        let thought = match self.opens(kind, tail) {
            true => Grammar::Sequence(rest.into()),
            false => {
                let all = [text(kind.open)].into_iter().chain(rest);
                Grammar::Optional(Box::new(Grammar::Sequence(all.collect())))
            }
        };
        Some(Grammar::Sequence(vec![thought, answer]))
    }

    fn opens(&self, kind: &Reasoning, tail: &str) -> bool {
        match (self.options.ending, self.messages.last()) {
            // Inside the reasoning of the message that goes on.
            (Ending::ContinueFinal, Some(Message { content: Some(text), .. })) => {
                text.trim_start().starts_with(kind.open) && !text.contains(kind.close)
            }
            _ => tail.trim_end().ends_with(kind.open),
        }
    }
}
