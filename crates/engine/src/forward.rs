//! One step on the forward lane: draft → verify → choose → accept → publish → absorb, with no
//! host in between. The lane alone owns this state, so nothing else can write it.

use crate::counters::StepTimes;
use crate::draft::{DraftRow, Drafter};
use device::Cpu;
use kernels::accept::accept;
use kernels::choose::{Draw, LogProbs, choose, log_probs};
use kernels::kv_store::KvPool;
use model::decoder::{Decoder, Workspace};
use model::pass::{Pass, slot};
use schedule::{PlannedRow, RowOutcome, Then, Work};
use std::time::Instant;

/// The device's side of the engine.
pub(crate) struct Forward {
    cpu: Cpu,
    target: Decoder,
    drafter: Box<dyn Drafter>,
    kv: KvPool,
    /// Ids below this may be chosen.
    allowed: usize,
    rows: Vec<RowState>,
    workspace: Workspace,
    pass: Pass,
    logits: Vec<f32>,
    /// Features of the rows to absorb, `[rows, taps · hidden]`.
    features: Vec<f32>,
}

/// What the device knows of a running request: written by the step that ends, read by the next.
#[derive(Clone, Copy, Debug, Default)]
struct RowState {
    /// Tokens with KV.
    len: usize,
    /// The token at position `len`, chosen but not yet computed.
    anchor: u32,
}

/// What came back from a step.
pub(crate) struct StepResult {
    /// One entry a planned row.
    pub(crate) rows: Vec<RowResult>,
    /// Where the time went.
    pub(crate) times: StepTimes,
}

/// What a step did for one row.
#[derive(Default)]
pub(crate) struct RowResult {
    pub(crate) outcome: RowOutcome,
    /// One entry a token, when the request asked for them.
    pub(crate) logprobs: Vec<LogProbs>,
    /// Drafts that were verified.
    pub(crate) drafted: usize,
}

/// A planned row once the device's own length is known.
struct Block {
    /// First row in the pass, and rows.
    first: usize,
    len: usize,
    /// Tokens of the request before them.
    context: usize,
    drafts: Vec<u32>,
    /// How many rows, the last ones, choose a token.
    choosing: usize,
}

impl Forward {
    pub(crate) fn new(
        cpu: Cpu,
        target: Decoder,
        drafter: Box<dyn Drafter>,
        kv: KvPool,
        allowed: usize,
        rows: usize,
    ) -> Forward {
        Forward {
            cpu,
            target,
            drafter,
            kv,
            allowed,
            rows: vec![RowState::default(); rows],
            workspace: Workspace::default(),
            pass: Pass::default(),
            logits: Vec::new(),
            features: Vec::new(),
        }
    }

    /// Runs the step `planned`.
    pub(crate) fn run(&mut self, planned: &[PlannedRow]) -> StepResult {
        let mut times = StepTimes::default();
        let start = Instant::now();
        let drafts = self.draft(planned);
        times.draft = start.elapsed();

        let start = Instant::now();
        let blocks = self.build(planned, drafts);
        if self.pass.rows() > 0 {
            let (w, kv, taps) = (&mut self.workspace, &mut self.kv, self.drafter.taps());
            self.target.forward(&self.cpu, w, kv, &self.pass, taps);
        }
        let chosen = self.choose(planned, &blocks);
        let rows = self.accept(planned, &blocks, &chosen);
        times.verify = start.elapsed();

        let start = Instant::now();
        self.absorb(planned, &blocks, &rows);
        times.absorb = start.elapsed();
        StepResult { rows, times }
    }

    /// Width of a row's verify block, now that its exact length is known.
    fn width(&self, row: &PlannedRow) -> usize {
        match row.work {
            Work::Chunk { .. } => 0,
            Work::Block { width } => width.min(row.limit - 1 - self.rows[row.row.index].len),
        }
    }

    /// Proposals of every planned row (none for chunks).
    fn draft(&mut self, planned: &[PlannedRow]) -> Vec<Vec<u32>> {
        let mut drafts = vec![Vec::new(); planned.len()];
        let (mut wanting, mut places) = (Vec::new(), Vec::new());
        for (i, row) in planned.iter().enumerate() {
            let (width, state) = (self.width(row), self.rows[row.row.index]);
            if width > 1 {
                places.push(i);
                wanting.push(DraftRow {
                    request: row.id,
                    anchor: state.anchor,
                    len: state.len,
                    width,
                    pages: &row.pages,
                    draw: draw(row, state.len + 1),
                });
            }
        }
        if wanting.is_empty() {
            return drafts;
        }
        let mut proposals = vec![Vec::new(); wanting.len()];
        self.drafter.propose(&self.target, &wanting, &mut proposals);
        for (place, proposal) in places.into_iter().zip(proposals) {
            drafts[place] = proposal;
        }
        drafts
    }

    /// Lays the rows of the verify pass out.
    fn build(&mut self, planned: &[PlannedRow], drafts: Vec<Vec<u32>>) -> Vec<Block> {
        self.pass.clear();
        let mut blocks = Vec::with_capacity(planned.len());
        for (row, drafts) in planned.iter().zip(drafts) {
            let first = self.pass.rows();
            let state = &mut self.rows[row.row.index];
            let mut push = |tokens: &[u32], context| {
                self.pass.push(tokens, context, &row.pages, self.kv.page_size);
            };
            let (context, choosing) = match &row.work {
                Work::Chunk { tokens, start, then } => {
                    push(tokens, *start);
                    state.len = *start;
                    (*start, usize::from(*then == Then::Choose))
                }
                // The sequence is full: an earlier step filled it after this one was planned.
                Work::Block { .. } if state.len + 1 >= row.limit => (state.len, 0),
                Work::Block { .. } => {
                    let tokens: Vec<u32> =
                        std::iter::once(state.anchor).chain(drafts.iter().copied()).collect();
                    push(&tokens, state.len);
                    (state.len, tokens.len())
                }
            };
            let len = self.pass.rows() - first;
            blocks.push(Block { first, len, context, drafts, choosing });
        }
        blocks
    }

    /// The target's choices, block after block.
    fn choose(&mut self, planned: &[PlannedRow], blocks: &[Block]) -> Vec<u32> {
        let (mut rows, mut draws) = (Vec::new(), Vec::new());
        for (row, block) in planned.iter().zip(blocks) {
            for j in block.len - block.choosing..block.len {
                rows.push(block.first + j);
                draws.push(draw(row, block.context + j + 1));
            }
        }
        let mut chosen = vec![0; rows.len()];
        if !rows.is_empty() {
            self.target.logits(&self.cpu, &mut self.workspace, &rows, &mut self.logits);
            let vocab = self.target.config().vocab;
            choose(&self.cpu, &self.logits, vocab, self.allowed, &draws, &mut chosen);
        }
        chosen
    }

    /// Accepts drafts and publishes lengths and anchors.
    fn accept(
        &mut self,
        planned: &[PlannedRow],
        blocks: &[Block],
        chosen: &[u32],
    ) -> Vec<RowResult> {
        let vocab = self.target.config().vocab;
        let mut at = 0;
        let mut results = Vec::with_capacity(planned.len());
        for (row, block) in planned.iter().zip(blocks) {
            let choices = &chosen[at..at + block.choosing];
            let accepted = match choices {
                [] => 0,
                _ => accept(&block.drafts, choices),
            };
            let tokens = choices[..choices.len().min(accepted + 1)].to_vec();
            let logprobs = row.logprobs.map_or_else(Vec::new, |top| {
                let logits = self.logits[at * vocab..].chunks_exact(vocab);
                let rows = tokens.iter().zip(logits);
                rows.map(|(&token, row)| log_probs(row, self.allowed, token, top)).collect()
            });
            let state = &mut self.rows[row.row.index];
            state.len = match row.work {
                Work::Chunk { .. } => block.context + block.len,
                Work::Block { .. } => block.context + tokens.len(),
            };
            if let Some(&last) = tokens.last() {
                state.anchor = last;
            }
            at += block.choosing;
            let outcome = RowOutcome { tokens, accepted };
            results.push(RowResult { outcome, logprobs, drafted: block.drafts.len() });
        }
        results
    }

    /// Gives the drafter the features of the tokens that now have KV.
    fn absorb(&mut self, planned: &[PlannedRow], blocks: &[Block], results: &[RowResult]) {
        let features = self.workspace.features();
        let width = features.len() / self.pass.rows().max(1);
        self.features.clear();
        let (mut positions, mut slots) = (Vec::new(), Vec::new());
        for ((row, block), result) in planned.iter().zip(blocks).zip(results) {
            if row.width == 1 {
                continue;
            }
            let kept = match row.work {
                Work::Chunk { .. } => block.len,
                Work::Block { .. } => result.outcome.tokens.len(),
            };
            let rows = block.first * width..(block.first + kept) * width;
            self.features.extend_from_slice(&features[rows]);
            for t in block.context..block.context + kept {
                positions.push(t as u32);
                slots.push(slot(t, &row.pages, self.kv.page_size));
            }
        }
        if width > 0 && !positions.is_empty() {
            self.drafter.absorb(&self.features, &positions, &slots);
        }
    }
}

/// How `row` draws the token of `position`.
fn draw(row: &PlannedRow, position: usize) -> Draw {
    Draw {
        temperature: row.sampling.temperature,
        top_k: row.sampling.top_k,
        top_p: row.sampling.top_p,
        min_p: row.sampling.min_p,
        seed: row.sampling.seed,
        position: position as u32,
    }
}
