//! One choice of a chat: from the engine's updates to what is said, thought and called. Streamed and
//! whole answers are made of the same pieces.

use crate::chat::{Delta, Splitter};
use crate::sse::Flow;
use engine::{FinishReason, Finished, Stats, Update};
use model::tokenizer::{Detokenizer, Tokenizer};

/// Reads one choice.
pub(crate) struct Speaker {
    /// `None` once it has ended.
    splitter: Option<Splitter>,
    thoughts: Thoughts,
    tokens: usize,
    complete: Flow,
}

/// What an update made final.
pub(crate) struct Said {
    pub(crate) deltas: Vec<Delta>,
    pub(crate) end: Option<End>,
}

/// How a choice ended.
pub(crate) struct End {
    pub(crate) reason: &'static str,
    pub(crate) stats: Stats,
    /// Output tokens.
    pub(crate) tokens: usize,
    /// Those before the answer.
    pub(crate) reasoning: usize,
}

impl Speaker {
    /// For an answer that `splitter` takes apart. A second one like it counts the tokens of the
    /// reasoning.
    pub(crate) fn new(splitter: Splitter, counter: Splitter) -> Speaker {
        let thoughts = Thoughts::new(counter);
        Speaker { splitter: Some(splitter), thoughts, tokens: 0, complete: Flow::GoOn }
    }

    /// Takes the next update. After the answer is complete nothing counts.
    pub(crate) fn hear(&mut self, tokenizer: &Tokenizer, update: &Update) -> Said {
        let splitter = self.splitter.as_mut().expect("an update comes before the end");
        let mut deltas = Vec::new();
        if self.complete == Flow::GoOn {
            self.tokens += update.tokens.len();
            update.tokens.iter().for_each(|token| self.thoughts.hear(tokenizer.piece(token.id)));
            update.text.iter().for_each(|segment| deltas.extend(splitter.push(&segment.text)));
            if splitter.is_done() {
                self.complete = Flow::Enough;
            }
        }
        let Some(Finished { reason, stats }) = &update.finished else {
            return Said { deltas, end: None };
        };
        let by_calls = splitter.ends_by_calls();
        let splitter = self.splitter.take().expect("looked at above");
        deltas.extend(splitter.finish());
        let reason = match reason {
            // Cut inside a call or behind one: either way there is no more room.
            FinishReason::Length if self.complete == Flow::GoOn => "length",
            _ if by_calls => "tool_calls",
            _ => "stop",
        };
        let (tokens, reasoning) = (self.tokens, self.thoughts.count());
        Said { deltas, end: Some(End { reason, stats: stats.clone(), tokens, reasoning }) }
    }

    /// Tokens before the answer: so far, and for good once the answer has begun.
    pub(crate) fn reasoning(&self) -> usize {
        self.thoughts.count()
    }

    /// Whether the answer is complete before its request has ended.
    pub(crate) fn flow(&self) -> Flow {
        self.complete
    }
}

/// Counts the tokens before the answer: reasoning and its markers. Token by token, so that the count
/// does not depend on how many of them a step brought.
struct Thoughts {
    /// `None` once the answer has begun.
    splitter: Option<Splitter>,
    text: Detokenizer,
    tokens: usize,
    found: bool,
}

impl Thoughts {
    fn new(splitter: Splitter) -> Thoughts {
        Thoughts { splitter: Some(splitter), text: Detokenizer::new(), tokens: 0, found: false }
    }

    fn hear(&mut self, piece: &[u8]) {
        let Some(splitter) = &mut self.splitter else { return };
        let mut text = String::new();
        self.text.push(piece, &mut text);
        let deltas = splitter.push(&text);
        let thought = |delta: &Delta| matches!(delta, Delta::Reasoning(_));
        self.found |= deltas.iter().any(thought);
        if deltas.iter().all(thought) {
            self.tokens += 1;
        } else {
            self.splitter = None;
        }
    }

    fn count(&self) -> usize {
        if self.found { self.tokens } else { 0 }
    }
}
