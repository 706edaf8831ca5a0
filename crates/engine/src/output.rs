//! What the engine hands out.

use crate::RequestId;
use kernels::choose::LogProbs;
use schedule::FinishReason;
use std::time::Duration;

/// What one landed step added to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// The request.
    pub id: RequestId,
    /// Tokens of the prompt that the step reported, when the request asked for them: those that follow
    /// the ones before, from [`PromptLogProbs::from`](crate::PromptLogProbs::from) on. All of them
    /// come before the first output token, or with it.
    pub prompt: Vec<PromptToken>,
    /// Tokens kept, in order (never a stop id, nothing after a stop).
    pub tokens: Vec<TokenOut>,
    /// Text that became final: whole characters, nothing that may still turn into a stop string.
    /// The concatenation over all updates is the output text.
    pub text: Vec<Segment>,
    /// Drafts that the step's verify pass refused, in order. The first was proposed where the
    /// target's own token stands: the last of `tokens`, or the stop id behind them, which is not
    /// kept. Drafts behind a stop were not judged.
    pub refused: Vec<u32>,
    /// Set in the request's last update.
    pub finished: Option<Finished>,
}

/// A token of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// Its own and those of the likeliest in its place; `None` for the first token of the prompt, which
    /// nothing precedes.
    pub logprobs: Option<LogProbs>,
}

/// A kept token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOut {
    /// Its id.
    pub id: u32,
    /// Proposed by the drafter and accepted, or the target's own (anchor or bonus token).
    pub drafted: bool,
    /// When the request asked for them.
    pub logprobs: Option<LogProbs>,
}

/// A piece of output text from tokens of one origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// From an accepted draft.
    pub drafted: bool,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// What it took.
    pub stats: Stats,
}

/// Counts and times of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// How many of them the prefix cache had when the request first started.
    pub cached_tokens: usize,
    /// Output tokens kept.
    pub output_tokens: usize,
    /// Verify passes (steps after the prompt).
    pub steps: usize,
    /// Tokens committed by verify passes, the bonus tokens included, nothing after a stop.
    pub committed: usize,
    /// Drafts that verify passes looked at.
    pub drafted: usize,
    /// `accepted[k]`: verify passes that accepted exactly `k` drafts.
    pub accepted: Vec<usize>,
    /// Submission to the launch of the first step that computes any of it; to its end when it
    /// never started.
    pub queued: Duration,
    /// Submission to first token.
    pub first_token: Duration,
    /// Submission to last token, or to where it was ended.
    pub total: Duration,
}

impl Stats {
    /// Acceptance length τ: tokens committed per verify pass, bonus included. 0 without a pass.
    pub fn tau(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.committed as f64 / self.steps as f64 }
    }

    /// Drafts that the target agreed with, up to where a generation ended.
    pub fn accepted_drafts(&self) -> usize {
        self.accepted.iter().enumerate().map(|(drafts, passes)| drafts * passes).sum()
    }

    /// Drafts that verify passes looked at in vain: they differed from the target's choice, or
    /// came after one that did or after a stop.
    pub fn rejected_drafts(&self) -> usize {
        self.drafted - self.accepted_drafts()
    }

    /// Output tokens a second after the first token. 0 with fewer than two tokens.
    pub fn decode_rate(&self) -> f64 {
        let seconds = self.total.saturating_sub(self.first_token).as_secs_f64();
        if self.output_tokens < 2 || seconds <= 0.0 {
            return 0.0;
        }
        (self.output_tokens - 1) as f64 / seconds
    }
}
