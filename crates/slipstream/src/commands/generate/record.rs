//! The JSON lines of `generate --json`.

use engine::{Output, Request, TokenOut};
use model::tokenizer::Tokenizer;
use serde::Serialize;
use std::time::Duration;

/// A finished generation.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    /// Which prompt of a batch, from 0.
    index: usize,
    prompt_tokens: usize,
    /// How many of them the prefix cache had.
    cached_tokens: usize,
    /// Kept tokens; never a stop id.
    ids: Vec<u32>,
    text: &'a str,
    /// `stop`, `length`, `cancelled` or `timeout`.
    finish_reason: &'static str,
    seed: u64,
    /// Tokens a verify pass committed, the bonus token included.
    tau: f64,
    /// Verify passes.
    steps: usize,
    /// Drafts that the passes looked at.
    drafted: usize,
    /// `accepted[k]`: passes that accepted exactly `k` drafts.
    accepted: &'a [usize],
    timings: Timings,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<LogProb>>,
}

#[derive(Debug, Serialize)]
struct Timings {
    /// Submission to first token, in milliseconds.
    first_token_ms: f64,
    /// Submission to last token, in milliseconds.
    total_ms: f64,
    /// After the first token.
    tokens_per_second: f64,
}

/// One token's log-probability (natural logarithm, before temperature and filters) and those of
/// the likeliest.
#[derive(Debug, Serialize)]
struct LogProb {
    #[serde(flatten)]
    chosen: Candidate,
    top: Vec<Candidate>,
}

#[derive(Debug, Serialize)]
struct Candidate {
    id: u32,
    /// As people write it; control tokens too.
    token: String,
    /// Its bytes in the text, which need not be whole characters.
    bytes: Vec<u8>,
    logprob: f32,
}

/// A prompt of a batch that could not run.
#[derive(Debug, Serialize)]
pub(super) struct Refusal<'a> {
    pub(super) index: usize,
    pub(super) error: &'a str,
}

impl<'a> Record<'a> {
    /// The output of `request`, prompt `index` of its batch.
    pub(super) fn new(
        index: usize,
        request: &Request,
        output: &'a Output,
        tokenizer: &Tokenizer,
    ) -> Record<'a> {
        let stats = &output.stats;
        let logprob = |token: &TokenOut| LogProb::new(token, tokenizer);
        Record {
            index,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            ids: output.ids(),
            text: &output.text,
            finish_reason: output.reason.name(),
            seed: request.sampling.seed,
            tau: stats.tau(),
            steps: stats.steps,
            drafted: stats.drafted,
            accepted: &stats.accepted,
            timings: Timings {
                first_token_ms: milliseconds(stats.first_token),
                total_ms: milliseconds(stats.total),
                tokens_per_second: stats.decode_rate(),
            },
            logprobs: request.logprobs.and_then(|_| output.tokens.iter().map(logprob).collect()),
        }
    }
}

impl LogProb {
    /// `None` for a token without them.
    fn new(token: &TokenOut, tokenizer: &Tokenizer) -> Option<LogProb> {
        let candidate = |id, logprob| Candidate {
            id,
            token: tokenizer.name(id),
            bytes: tokenizer.piece(id).to_vec(),
            logprob,
        };
        let found = token.logprobs.as_ref()?;
        Some(LogProb {
            chosen: candidate(token.id, found.chosen),
            top: found.top.iter().map(|&(id, logprob)| candidate(id, logprob)).collect(),
        })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
