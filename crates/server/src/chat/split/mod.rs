//! An answer's text, taken apart while it comes: content, reasoning, tool calls and their arguments.
//!
//! The text is read one character at a time, and what is given out depends on the characters before
//! it and not on how they were cut into pieces: one token at a time or a block of tokens that one
//! step committed, the concatenated deltas are the same. Text is held back only while it may still
//! belong to a marker or to the head of a call, and each character is read a bounded number of
//! times.
//!
//! What is not in the deltas: the markers, the JSON around a call's name and arguments, whitespace
//! between calls or alone in front of one, and line breaks right inside and behind the markers of
//! reasoning. A call whose head does not read as one is content, markers included; one that goes wrong
//! inside its arguments keeps them as the model wrote them.

mod call;
mod json;
mod text;

use super::dialect::{Reasoning, ToolFormat};
use super::ids::CallIds;
use call::Call;
use text::Place;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// More of the answer itself.
    Content(String),
    /// More of what the model thought first.
    Reasoning(String),
    /// A call begins. Its arguments follow, before the next call begins.
    ToolCall {
        /// Number of the call in the answer, from 0.
        index: usize,
        /// Its id.
        id: String,
        /// The function.
        name: String,
    },
    /// More of the arguments of a call, as the model wrote them: concatenated they are the source
    /// text of one JSON object.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The text.
        text: String,
    },
}

/// How to read one answer.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Markers of reasoning to look for; `None` leaves them in the content.
    pub reasoning: Option<&'static Reasoning>,
    /// Where the answer begins.
    pub start: Start,
    /// Calls to look for; `None` leaves them in the content.
    pub calls: Option<CallRules>,
}

/// Which calls count.
#[derive(Clone, Debug)]
pub struct CallRules {
    /// How they are written.
    pub format: &'static ToolFormat,
    /// Which functions.
    pub allowed: Allowed,
    /// How many.
    pub count: Count,
}

/// Whose calls count; others are content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Calls of every name, also of functions that were not offered.
    Any,
    /// Calls of these functions.
    Only(Vec<String>),
}

/// How many calls an answer may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// One: the answer ends with it.
    One,
    /// Any number.
    Several,
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Before everything: reasoning may come.
    Answer,
    /// Inside reasoning, which the prompt opened.
    Reasoning,
}

/// Takes one answer apart.
#[derive(Debug)]
pub struct Splitter {
    rules: Rules,
    ids: CallIds,
    state: State,
    /// Whitespace that is dropped if a marker follows it.
    blank: String,
    /// Text that was read and not given out, in the terms of the state.
    held: String,
    calls: usize,
    deltas: Vec<Delta>,
}

#[derive(Debug)]
enum State {
    /// In reasoning. `held` is the beginning of its closing marker.
    Reasoning(text::Edge),
    /// In content. `held` is the beginning of a marker.
    Text(Place),
    /// In a call. `held` is its text since the last delta.
    Call(Call),
    /// Behind the only call that was allowed.
    Done,
}

impl Splitter {
    /// For an answer that is read by `rules`, with `ids` for its calls.
    pub fn new(rules: Rules, ids: CallIds) -> Splitter {
        let state = match (rules.start, rules.reasoning) {
            (Start::Reasoning, Some(_)) => State::Reasoning(text::Edge::Opening),
            _ => State::Text(Place::Start),
        };
        let (blank, held, deltas) = (String::new(), String::new(), Vec::new());
        Splitter { rules, ids, state, blank, held, calls: 0, deltas }
    }

    /// Reads more of the answer, of any length, and returns what it made final.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        text.chars().for_each(|c| self.step(c));
        std::mem::take(&mut self.deltas)
    }

    /// Ends the answer: what was held back, in the light of what did not follow.
    pub fn finish(mut self) -> Vec<Delta> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Reasoning(_) => self.finish_reasoning(),
            State::Text(place) => self.finish_text(place),
            State::Call(call) => self.finish_call(&call),
            State::Done => {}
        }
        self.deltas
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the answer ends because the model called, which clients read as the reason
    /// `tool_calls`. Where the request itself named the function, an answer just ends, as at OpenAI.
    pub fn ends_by_calls(&self) -> bool {
        let named = |rules: &CallRules| rules.allowed != Allowed::Any;
        self.calls > 0 && !self.rules.calls.as_ref().is_some_and(named)
    }

    /// Whether the answer is over: it made the one call it was allowed. What follows is not read,
    /// and the request may be cancelled.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    fn step(&mut self, c: char) {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Reasoning(edge) => self.step_reasoning(edge, c),
            State::Text(place) => self.step_text(place, c),
            State::Call(call) => self.step_call(call, c),
            State::Done => {}
        }
    }

    /// Gives out content, joined to content before it.
    fn content(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::Content(text.to_owned())),
        }
    }

    fn reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.deltas.push(Delta::Reasoning(text.to_owned())),
        }
    }

    /// Gives out arguments of the call that began last.
    fn arguments(&mut self, text: &str) {
        match self.deltas.last_mut() {
            Some(Delta::Arguments { text: last, .. }) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => {
                let index = self.calls.checked_sub(1).expect("a call begins before its arguments");
                self.deltas.push(Delta::Arguments { index, text: text.to_owned() });
            }
        }
    }
}

/// An answer as a whole: what its deltas add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The answer itself; `None` when there was none, as beside tool calls.
    pub content: Option<String>,
    /// What the model thought first.
    pub reasoning: Option<String>,
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
}

/// A call of a [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub id: String,
    /// The function.
    pub name: String,
    /// The source text of a JSON object, if the model wrote one.
    pub arguments: String,
}

impl Reply {
    /// Adds the next delta.
    ///
    /// # Panics
    /// Arguments of a call that has not begun.
    pub fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            Delta::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Delta::ToolCall { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            Delta::Arguments { index, text } => {
                let call = self.calls.get_mut(index).expect("a call begins before its arguments");
                call.arguments.push_str(&text);
            }
        }
    }
}

impl Extend<Delta> for Reply {
    fn extend<T: IntoIterator<Item = Delta>>(&mut self, deltas: T) {
        deltas.into_iter().for_each(|delta| self.add(delta));
    }
}
