//! A request as the scheduler sees it, and the checks it must pass before it is accepted.

use crate::constraint::Constrained;
use crate::shaping::Shaping;
use std::time::Duration;

/// One generation to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Prompt token ids; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What is done to the logits before that.
    pub shaping: Shaping,
    /// When the generation ends.
    pub stops: Stops,
    /// How many tokens it may make.
    pub limits: Limits,
    /// Whether and how wide to draft.
    pub speculation: Speculation,
    /// Higher goes first; requests of one priority go in the order of their arrival.
    pub priority: i32,
    /// Log-probabilities to report: `None` for none, `Some(n)` for the chosen token's and the
    /// `n` most likely.
    pub logprobs: Option<usize>,
    /// Log-probabilities of the prompt's own tokens to report; `None` for none. What the prefix cache
    /// has of them is computed again.
    pub prompt_logprobs: Option<PromptLogProbs>,
    /// What its text must be; `None` for anything.
    pub constraint: Option<Constrained>,
}

/// Which tokens of a prompt to report, each as likely as it is behind those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptLogProbs {
    /// Position of the first; all that follow are reported too. Nothing is before the token of
    /// position 0, so it has no log-probability.
    pub from: usize,
    /// How many likely tokens to report beside each.
    pub top: usize,
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

/// Bounds on what a generation may take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// At most this many output tokens; `None` for what the context leaves, 0 to compute the prompt
    /// and nothing else.
    pub max_tokens: Option<usize>,
    /// At least this many output tokens: before, no stop id can be chosen, and a stop string ends
    /// nothing.
    pub min_tokens: usize,
    /// At most this long from submission, waiting included; `None` for ever. The scheduler has no
    /// clock: whoever has one ends the request with [`Early::TimedOut`].
    pub timeout: Option<Duration>,
}

/// Whether and how wide to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Speculation {
    /// The engine's own width, when it has a drafter.
    #[default]
    Auto,
    /// Not at all: verify blocks of width 1, and no drafter context is made. A request that turns
    /// drafting on again is recomputed from where its context ends.
    Off,
    /// Verify blocks of this many tokens (the anchor included). 1 pauses drafting: context is
    /// made all the same.
    Width(usize),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id or a stop string, or a constrained text that is whole.
    Stop,
    /// The length cap or the end of the context.
    Length,
    /// Cancelled by its owner.
    Cancelled,
    /// Its time was up.
    TimedOut,
    /// Its constraint left no way on.
    Stuck,
}

/// Why a generation ends before its tokens say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// Its owner cancelled it.
    Cancelled,
    /// Its time is up: see [`Limits::timeout`].
    TimedOut,
}

impl From<Early> for FinishReason {
    fn from(early: Early) -> FinishReason {
        match early {
            Early::Cancelled => FinishReason::Cancelled,
            Early::TimedOut => FinishReason::TimedOut,
        }
    }
}

impl FinishReason {
    /// `stop`, `length`, `cancelled`, `timeout` or `stuck`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::TimedOut => "timeout",
            FinishReason::Stuck => "stuck",
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

/// What a request must fit in.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Token ids are below this.
    pub vocab: usize,
    /// Most tokens of a sequence, prompt and output together.
    pub context: usize,
    /// Tokens of KV memory.
    pub kv_tokens: usize,
    /// Widest verify block, the anchor included; 1 without a drafter.
    pub max_width: usize,
}

impl Request {
    /// A greedy generation behind `prompt` until the context ends: what a request is where nothing else
    /// is said.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            sampling: Sampling::default(),
            shaping: Shaping::default(),
            stops: Stops::default(),
            limits: Limits::default(),
            speculation: Speculation::Auto,
            priority: 0,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
        }
    }

    /// Most tokens of the sequence: the prompt and its output, within the context.
    pub fn limit(&self, bounds: &Bounds) -> usize {
        let output = self.limits.max_tokens.unwrap_or(bounds.context);
        self.prompt.len().saturating_add(output).min(bounds.context)
    }

    /// Most tokens that need KV: the whole prompt, and of an output all but the last token, which is
    /// chosen and never computed.
    fn slots(&self, bounds: &Bounds) -> usize {
        self.prompt.len().max(self.limit(bounds) - 1)
    }

    /// Whether the request can run at all.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self, bounds: &Bounds) -> Result<(), RequestError> {
        self.check_prompt(bounds)?;
        self.sampling.check()?;
        self.shaping.check(bounds.vocab)?;
        let err = |field, problem| Err(RequestError { field, problem });
        let need = self.slots(bounds);
        if need > bounds.kv_tokens {
            return err(
                "max_tokens",
                format!(
                    "prompt and output need KV memory for {need} tokens, the engine has {}; ask \
                     for fewer tokens or give the engine more KV memory",
                    bounds.kv_tokens
                ),
            );
        }
        let (least, most) = (self.limits.min_tokens, self.limit(bounds) - self.prompt.len());
        if least > most {
            let problem =
                format!("asks for {least} tokens, at most {most} can follow; ask for less");
            return err("min_tokens", problem);
        }
        if let Some(id) = self.stops.ids.iter().find(|&&id| id as usize >= bounds.vocab) {
            return err(
                "stop_token_ids",
                format!("{id} is not a token; ids are below {}", bounds.vocab),
            );
        }
        if self.stops.strings.iter().any(String::is_empty) {
            return err("stop", "holds an empty string, which would stop at once".into());
        }
        self.speculation.check(bounds)?;
        self.check_logprobs(bounds)?;
        self.check_prompt_logprobs(bounds)
    }

    fn check_prompt(&self, bounds: &Bounds) -> Result<(), RequestError> {
        let err = |problem| Err(RequestError { field: "prompt", problem });
        if self.prompt.is_empty() {
            return err("is empty; give at least one token".into());
        }
        if self.prompt.len() >= bounds.context {
            return err(format!(
                "has {} tokens, the context is {}; shorten it to at most {} so that one token \
                 can follow",
                self.prompt.len(),
                bounds.context,
                bounds.context - 1
            ));
        }
        match self.prompt.iter().find(|&&id| id as usize >= bounds.vocab) {
            Some(id) => err(format!("{id} is not a token; ids are below {}", bounds.vocab)),
            None => Ok(()),
        }
    }

    fn check_logprobs(&self, bounds: &Bounds) -> Result<(), RequestError> {
        match self.logprobs {
            Some(n) if n > bounds.vocab => Err(too_many("logprobs", n, bounds)),
            _ => Ok(()),
        }
    }

    fn check_prompt_logprobs(&self, bounds: &Bounds) -> Result<(), RequestError> {
        const FIELD: &str = "prompt_logprobs";
        let tokens = self.prompt.len();
        match self.prompt_logprobs {
            Some(PromptLogProbs { top, .. }) if top > bounds.vocab => {
                Err(too_many(FIELD, top, bounds))
            }
            Some(PromptLogProbs { from, .. }) if from >= tokens => {
                let problem = format!(
                    "begin with token {from}, but the prompt has {tokens} tokens; begin with {} at \
                     most",
                    tokens - 1
                );
                Err(RequestError { field: FIELD, problem })
            }
            _ => Ok(()),
        }
    }
}

fn too_many(field: &'static str, alternatives: usize, bounds: &Bounds) -> RequestError {
    let problem = format!("asks for {alternatives} alternatives of {} tokens", bounds.vocab);
    RequestError { field, problem }
}

impl Speculation {
    /// Whether the drafter can do it.
    ///
    /// # Errors
    /// A width that is out of its range.
    pub fn check(&self, bounds: &Bounds) -> Result<(), RequestError> {
        let err = |problem| Err(RequestError { field: "width", problem });
        match (*self, bounds.max_width) {
            (Speculation::Width(0), _) => {
                err("is 0; 1 verifies the anchor alone (no drafting)".into())
            }
            (Speculation::Width(w), 1) if w > 1 => {
                err(format!("is {w}, but no drafter is loaded; leave it out"))
            }
            (Speculation::Width(w), max) if w > max => {
                err(format!("is {w}, the drafter's block is {max}; use at most that"))
            }
            _ => Ok(()),
        }
    }
}

impl Sampling {
    /// Whether every field is in its range.
    ///
    /// # Errors
    /// The first field that is not.
    pub fn check(&self) -> Result<(), RequestError> {
        let err = |field, problem: String| Err(RequestError { field, problem });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return err(
                "temperature",
                format!("is {}; use 0 (greedy) or a positive number", self.temperature),
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return err("top_p", format!("is {}; use a number above 0, up to 1 (off)", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return err("min_p", format!("is {}; use a number from 0 (off) to 1", self.min_p));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds { vocab: 100, context: 128, kv_tokens: 128, max_width: 16 }
    }

    fn request(prompt: usize) -> Request {
        Request::new(vec![1; prompt])
    }

    #[test]
    fn a_prompt_must_leave_room_for_one_token() {
        assert_eq!(request(127).check(&bounds()), Ok(()));
        assert_eq!(request(127).limit(&bounds()), 128);
        for len in [128, 129, 135, 200] {
            let error = request(len).check(&bounds()).unwrap_err();
            assert_eq!(error.field, "prompt");
            assert!(error.problem.contains(&len.to_string()) && error.problem.contains("128"));
        }
        let capped = Request {
            limits: Limits { max_tokens: Some(50), ..Limits::default() },
            ..request(120)
        };
        assert_eq!((capped.check(&bounds()), capped.limit(&bounds())), (Ok(()), 128));
    }

    #[test]
    fn every_bad_field_is_named() {
        let sampling = Sampling::default();
        let cases = [
            ("prompt", Request { prompt: vec![], ..request(1) }),
            ("prompt", Request { prompt: vec![100], ..request(1) }),
            (
                "min_tokens",
                Request {
                    limits: Limits { max_tokens: Some(0), min_tokens: 1, ..Limits::default() },
                    ..request(1)
                },
            ),
            (
                "min_tokens",
                Request {
                    limits: Limits { max_tokens: Some(5), min_tokens: 6, ..Limits::default() },
                    ..request(1)
                },
            ),
            (
                "min_tokens",
                Request { limits: Limits { min_tokens: 28, ..Limits::default() }, ..request(101) },
            ),
            (
                "presence_penalty",
                Request {
                    shaping: Shaping { presence_penalty: 3.0, ..Shaping::default() },
                    ..request(1)
                },
            ),
            (
                "stop_token_ids",
                Request { stops: Stops { ids: vec![100], strings: vec![] }, ..request(1) },
            ),
            (
                "stop",
                Request {
                    stops: Stops { ids: vec![], strings: vec![String::new()] },
                    ..request(1)
                },
            ),
            ("width", Request { speculation: Speculation::Width(0), ..request(1) }),
            ("width", Request { speculation: Speculation::Width(17), ..request(1) }),
            ("logprobs", Request { logprobs: Some(100_000_000), ..request(1) }),
            (
                "prompt_logprobs",
                Request {
                    prompt_logprobs: Some(PromptLogProbs { from: 0, top: 101 }),
                    ..request(1)
                },
            ),
            (
                "prompt_logprobs",
                Request { prompt_logprobs: Some(PromptLogProbs { from: 5, top: 0 }), ..request(5) },
            ),
            (
                "temperature",
                Request { sampling: Sampling { temperature: -1.0, ..sampling }, ..request(1) },
            ),
            (
                "temperature",
                Request { sampling: Sampling { temperature: f32::NAN, ..sampling }, ..request(1) },
            ),
            ("top_p", Request { sampling: Sampling { top_p: 0.0, ..sampling }, ..request(1) }),
            ("min_p", Request { sampling: Sampling { min_p: 1.5, ..sampling }, ..request(1) }),
        ];
        for (field, request) in cases {
            assert_eq!(request.check(&bounds()).map_err(|e| e.field), Err(field), "{request:?}");
        }
    }

    #[test]
    fn a_request_that_can_never_fit_is_refused_at_once() {
        let small = Bounds { kv_tokens: 64, ..bounds() };
        assert_eq!(request(100).check(&small).map_err(|e| e.field), Err("max_tokens"));
        let fits =
            Request { limits: Limits { max_tokens: Some(20), ..Limits::default() }, ..request(40) };
        assert_eq!(fits.check(&small), Ok(()));
        // A prompt alone is computed whole; with one token behind it, no more than that.
        for (len, max_tokens, allowed) in [(64, 0, true), (64, 1, true), (65, 0, false)] {
            let limits = Limits { max_tokens: Some(max_tokens), ..Limits::default() };
            let alone = Request { limits, ..request(len) };
            assert_eq!(alone.check(&small).is_ok(), allowed, "{len} and {max_tokens}");
        }
    }
}
