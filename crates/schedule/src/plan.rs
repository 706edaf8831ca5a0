//! A step on paper: which requests compute which tokens, and where.

use crate::chances::Chances;
use crate::constraint::{ConstrainedRequest, RowEnd};
use crate::request::Sampling;
use crate::shaping::ShapedRequest;
use cache::{Lease, Row};
use std::sync::Arc;

/// One step: a ragged batch of rows. There is no prefill mode and no decode mode.
#[derive(Debug)]
pub struct StepPlan {
    /// The rows; at least one. Verify blocks come first.
    pub rows: Vec<PlannedRow>,
    /// What the device's page table lacks for these rows. To be written before the step reads it.
    pub table: TableWrites,
    /// What requests that ended while this step was in flight still hold. Given back when the
    /// step has landed, since until then the device may read or write it.
    pub(crate) departed: Vec<Departed>,
}

/// One request's part in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRow {
    /// The request.
    pub id: u64,
    /// Its place in the device's row table and page table.
    pub row: Row,
    /// What to compute.
    pub work: Work,
    /// Whether the drafter takes the row's tokens in.
    pub absorb: Absorb,
    /// Pages of the row that this step may touch: the first so many of its page-table entries.
    pub pages: usize,
    /// The request may never hold more tokens than this, prompt and output together. The device
    /// narrows a block so that it ends there.
    pub limit: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// With a chunk that ends the known tokens of a request whose logits are shaped: how. It holds
    /// for all later rows of the request.
    pub shaped: Option<Arc<ShapedRequest>>,
    /// How many likely tokens to report log-probabilities of, when any.
    pub logprobs: Option<usize>,
    /// With a chunk behind whose rows tokens are known whose log-probabilities are asked for.
    pub scores: Option<Scores>,
    /// With a chunk that ends the known tokens of a request whose text is constrained: how. It holds
    /// for all later rows of the request.
    pub constrained: Option<Arc<ConstrainedRequest>>,
}

impl PlannedRow {
    /// Rows of a pass that the host knows to be the request's before anything is drafted.
    pub fn told(&self) -> usize {
        match &self.work {
            Work::Chunk { tokens, .. } => tokens.len(),
            Work::Block { .. } => 1,
        }
    }
}

/// What a row computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A run of known tokens that begins at position `start`: of the prompt, or of what a
    /// retracted request had made before.
    Chunk {
        /// The tokens.
        tokens: Vec<u32>,
        /// Position of the first. Tokens before it have KV.
        start: usize,
        /// What follows.
        then: Then,
    },
    /// A verify block of at most `width` tokens: the anchor and up to `width - 1` drafts. The device
    /// knows where it starts, and how likely its drafts are.
    Block {
        /// Tokens, the anchor included.
        width: usize,
        /// Least chance of a draft, that those before it are accepted included, at which it is
        /// verified. At 0 all are.
        price: f32,
        /// How many drafts there should be room for.
        likely: usize,
    },
}

/// What follows a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More known tokens.
    Continue,
    /// Nothing more is known: the chunk's last row chooses the next token, an anchor.
    Choose,
    /// Nothing: the request is for its prompt alone.
    End,
}

/// Prompt tokens to report the log-probabilities of. That of a token is in the row before it; the
/// token of position 0 has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scores {
    /// Position of the first token. The row before it is in the chunk, if it has one.
    pub first: usize,
    /// The tokens, the last one at most behind the chunk's last row.
    pub tokens: Vec<u32>,
    /// How many likely tokens to report beside each.
    pub top: usize,
}

/// Whether a row's committed tokens become drafter context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absorb {
    /// They do: the request drafts, or may draft later.
    Keep,
    /// They do not: the request does not draft, or its context has a gap already.
    Skip,
}

/// What to write to the page table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableWrites {
    pages: Vec<u32>,
    /// Index in the row table, first entry, and how many of `pages`, in their order.
    writes: Vec<(usize, usize, usize)>,
}

/// Entries of the page table to write: `table[row][first + i] = pages[i]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWrite<'a> {
    /// Index in the row table.
    pub row: usize,
    /// First entry.
    pub first: usize,
    /// Page ids.
    pub pages: &'a [u32],
}

impl TableWrites {
    pub(crate) fn push(&mut self, row: usize, first: usize, pages: &[u32]) {
        self.pages.extend_from_slice(pages);
        self.writes.push((row, first, pages.len()));
    }

    /// The page ids of all writes, one write after another.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The writes.
    pub fn iter(&self) -> impl Iterator<Item = TableWrite<'_>> {
        let mut rest = self.pages.as_slice();
        self.writes.iter().map(move |&(row, first, len)| {
            let pages;
            (pages, rest) = rest.split_at(len);
            TableWrite { row, first, pages }
        })
    }
}

/// What a landed step did for one row, in the plan's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowOutcome {
    /// Tokens that the target chose: the accepted drafts and the bonus token; the first token
    /// of a completed prompt; none for a chunk in the middle.
    pub tokens: Vec<u32>,
    /// How many of them, from the first, were drafts.
    pub accepted: usize,
    /// Drafts that were verified, and one that the constraint refused; the drafter may propose fewer
    /// than the plan has room for.
    pub drafted: usize,
    /// How likely all drafts were that were looked at before they were verified, also those that were
    /// not worth it.
    pub chances: Chances,
    /// Set when no token can follow these, by the request's constraint.
    pub end: Option<RowEnd>,
}

/// What a request that ended leaves behind.
#[derive(Debug)]
pub(crate) struct Departed {
    pub(crate) row: Row,
    pub(crate) lease: Lease,
    /// Its committed tokens that have KV.
    pub(crate) tokens: Vec<u32>,
    /// How many of them, from the first, have drafter context.
    pub(crate) drafter: usize,
    /// Pages that were expected to come back with it when it ended.
    pub(crate) coming: usize,
}

impl StepPlan {
    /// To be filled.
    pub(crate) fn empty() -> StepPlan {
        StepPlan { rows: Vec::new(), table: TableWrites::default(), departed: Vec::new() }
    }

    /// Forgets everything, but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.table.pages.clear();
        self.table.writes.clear();
        self.departed.clear();
    }

    /// Tokens of the target's pass, at most.
    pub fn tokens(&self) -> usize {
        self.rows.iter().map(|row| row.work.tokens()).sum()
    }

    /// Tokens that the target's pass had, as `outcomes` say, which follow the plan's rows.
    pub fn verified(&self, outcomes: &[RowOutcome]) -> usize {
        let rows = self.rows.iter().zip(outcomes);
        rows.map(|(row, outcome)| match &row.work {
            Work::Chunk { tokens, .. } => tokens.len(),
            Work::Block { .. } if outcome.tokens.is_empty() => 0,
            Work::Block { .. } => 1 + outcome.drafted,
        })
        .sum()
    }

    /// Rows that the drafter drafts for, at most: how many drafts there should be room for, of each.
    pub fn drafting(&self) -> impl Iterator<Item = usize> {
        self.rows.iter().filter_map(|row| match row.work {
            Work::Block { width, likely, .. } => (width > 1).then_some(likely),
            Work::Chunk { .. } => None,
        })
    }
}

impl Work {
    /// Tokens of the target's pass, at most.
    pub fn tokens(&self) -> usize {
        match self {
            Work::Chunk { tokens, .. } => tokens.len(),
            Work::Block { width, .. } => *width,
        }
    }

    /// Tokens that get KV, at least: of a block the anchor.
    pub(crate) fn least(&self) -> usize {
        match self {
            Work::Chunk { tokens, .. } => tokens.len(),
            Work::Block { .. } => 1,
        }
    }
}
