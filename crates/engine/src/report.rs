//! What a step says of itself when it has run: to the host, and to the step behind it.

use crate::counters::StepTimes;
use crate::left::LeftStep;
use crate::output::PromptToken;
use kernels::choose::LogProbs;
use schedule::{Chances, RowEnd, RowOutcome};
use std::sync::Arc;

/// What the forward lane says when it is done with a step.
pub(crate) enum Report {
    /// The step has run: its results are the lane's.
    Done(Aside),
    /// It was left: who lands it reads what it chose.
    Left(Arc<LeftStep>),
}

/// What the host alone measures or formats; no device needs it to go on.
pub(crate) struct Aside {
    /// For each planned row, an entry a token when the request asked for them.
    pub(crate) logprobs: Vec<Vec<LogProbs>>,
    /// For each planned row, the prompt tokens that it was to report.
    pub(crate) prompts: Vec<Vec<PromptToken>>,
    /// For each planned row, what its block looked at.
    pub(crate) drafts: Vec<Vec<u32>>,
    pub(crate) times: StepTimes,
}

/// A planned row's results as words: count, accepted, drafted, end, chances, then the tokens.
pub(crate) struct Entry;

impl Entry {
    /// Where the tokens begin.
    const TOKENS: usize = 4 + Chances::WORDS;

    /// Elements of an entry for blocks of up to `width` tokens.
    pub(crate) const fn stride(width: usize) -> usize {
        Entry::TOKENS + width
    }

    pub(crate) fn write(words: &mut [u32], outcome: &RowOutcome) {
        let tokens = &outcome.tokens;
        words[..4].copy_from_slice(&[
            tokens.len() as u32,
            outcome.accepted as u32,
            outcome.drafted as u32,
            outcome.end.map_or(0, |end| match end {
                RowEnd::Complete => 1,
                RowEnd::Stuck => 2,
            }),
        ]);
        words[4..Entry::TOKENS].copy_from_slice(&outcome.chances.to_words());
        words[Entry::TOKENS..][..tokens.len()].copy_from_slice(tokens);
    }

    pub(crate) fn read(words: &[u32]) -> RowOutcome {
        RowOutcome {
            tokens: words[Entry::TOKENS..][..words[0] as usize].to_vec(),
            accepted: words[1] as usize,
            drafted: words[2] as usize,
            chances: Chances::from_words(std::array::from_fn(|i| words[4 + i])),
            end: match words[3] {
                0 => None,
                1 => Some(RowEnd::Complete),
                2 => Some(RowEnd::Stuck),
                other => panic!("expected an end of 0, 1 or 2, not {other}"),
            },
        }
    }
}
