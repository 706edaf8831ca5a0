//! A request as the scheduler sees it, and the checks it must pass before it is accepted.

/// One generation to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// When the generation ends.
    pub stops: Stops,
    /// How many tokens it may make.
    pub limits: Limits,
    /// Whether and how wide to draft.
    pub speculation: Speculation,
    /// Log-probabilities to report: `None` for none, `Some(n)` for the chosen token's and the
    /// `n` most likely.
    pub logprobs: Option<usize>,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest likeliest set that reaches this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this many times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Seed of every draw of the request.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// When a generation ends before its length cap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stops {
    /// Ids that end it; they are not part of the output. Empty to ignore end-of-text.
    pub ids: Vec<u32>,
    /// Strings that end it; the text ends before the match.
    pub strings: Vec<String>,
}

/// Bounds on the number of output tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// At most this many; `None` for what the context leaves.
    pub max_tokens: Option<usize>,
}

/// Whether and how wide to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Speculation {
    /// The engine's own width, when it has a drafter.
    #[default]
    Auto,
    /// Not at all: a verify block of width 1.
    Off,
    /// Verify blocks of this many tokens (the anchor included).
    Width(usize),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id or a stop string.
    Stop,
    /// The length cap or the end of the context.
    Length,
    /// Cancelled by its owner.
    Cancelled,
}

impl FinishReason {
    /// `stop`, `length` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A request that was not accepted: the field and what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct RequestError {
    /// The field at fault, by its API name.
    pub field: &'static str,
    /// What is wrong, and the remedy.
    pub problem: String,
}
