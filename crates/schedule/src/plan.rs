//! A step on paper: which requests compute which tokens, and where.

use crate::request::Sampling;
use cache::{Lease, Row};

/// One step: a ragged batch of rows. There is no prefill mode and no decode mode.
#[derive(Debug)]
pub struct StepPlan {
    /// The rows; at least one.
    pub rows: Vec<PlannedRow>,
    /// What requests that ended while this step was in flight still hold. Given back when the
    /// step has landed, since until then the device may read or write it.
    pub(crate) departed: Vec<(Row, Lease)>,
}

/// One request's part in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRow {
    /// The request.
    pub id: u64,
    /// Its place in the device's row table.
    pub row: Row,
    /// What to compute.
    pub work: Work,
    /// The request's verify width; 1 when it never drafts, so that no drafter context is needed.
    pub width: usize,
    /// The request's pages up to the bound that this step may write.
    pub pages: Vec<u32>,
    /// The request may never hold more tokens than this, prompt and output together. The device
    /// narrows a block so that it ends there.
    pub limit: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// How many likely tokens to report log-probabilities of, when any.
    pub logprobs: Option<usize>,
}

/// What a row computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A run of prompt tokens that begins at position `start`.
    Chunk {
        /// The tokens.
        tokens: Vec<u32>,
        /// Position of the first.
        start: usize,
        /// What follows.
        then: Then,
    },
    /// A verify block of at most `width` tokens: the anchor and `width - 1` drafts. The device
    /// knows where it starts.
    Block {
        /// Tokens, the anchor included.
        width: usize,
    },
}

/// What follows a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More of the prompt.
    Continue,
    /// The prompt is complete: its last row chooses the first output token, the first anchor.
    Choose,
}

/// What a landed step did for one row, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowOutcome {
    /// Tokens that the target chose: the accepted drafts and the bonus token; the first token
    /// of a completed prompt; none for a chunk in the middle.
    pub tokens: Vec<u32>,
    /// How many of them, from the first, were drafts.
    pub accepted: usize,
}
