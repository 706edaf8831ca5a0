//! One step on the forward lane: draft → verify → choose → accept → publish → absorb, with no
//! host in between.

mod drafting;
mod leaving;

use crate::ahead::{Pace, Promised};
use crate::counters::StepTimes;
use crate::draft::{Calibration, Drafter};
use crate::guide::{self, Followed, Guide, Mask};
use crate::holders::Holders;
use crate::left::{Judged, Steps, Unknown};
use crate::output::PromptToken;
use crate::report::{Aside, Entry, Report};
use crate::shaper::Shaper;
use crate::target::{Choosing, Features, Leaves, Target};
use device::{Clock, Fence};
use kernels::accept::accept;
use kernels::choose::{Draw, Kept, LogProbs, Shape};
use model::pass::{Pass, Start, slot};
use schedule::{Absorb, PlannedRow, RowOutcome, Scores, Then, Work};
use std::ops::Range;
use std::time::Duration;

/// What the forward lane owns alone.
pub(crate) struct Forward {
    target: Box<dyn Target>,
    drafter: Box<dyn Drafter>,
    page_size: usize,
    clock: Clock,
    vocab: usize,
    shapers: Holders<Shaper>,
    guides: Holders<Guide>,
    calibration: Calibration,
    /// The target's.
    stairs: Vec<usize>,
    pace: Pace,
    leaves: Leaves,
    /// Those that were left and not read here.
    left: Steps,
    pass: Pass,
    /// An [`Entry`] a planned row of the last step.
    results: Vec<u32>,
}

/// The device's buffers as a step sees them.
pub(crate) struct StepMemory<'j> {
    /// Page ids of the planned rows, row after row, each as many as the plan says.
    pub(crate) pages: &'j [u32],
    /// Tokens with KV, by place in the row table. Published by the step that ends.
    pub(crate) lengths: &'j mut [u32],
    /// The token chosen but not yet computed, by place in the row table.
    pub(crate) anchors: &'j mut [u32],
    /// Elements of an entry.
    pub(crate) stride: usize,
}

/// A planned row once the device's own length is known.
struct Block<'j> {
    row: &'j PlannedRow,
    pages: &'j [u32],
    /// First row in the pass, and rows.
    first: usize,
    len: usize,
    /// Tokens of the request before them.
    context: usize,
    drafts: Vec<u32>,
    /// How many were looked at: those, and one that its mask refused.
    looked_at: usize,
    judged: Judged,
    /// How many rows, the last ones, choose a token.
    choosing: usize,
    /// What each of them may choose; none when they may choose anything.
    masks: Vec<Mask>,
}

/// What there is of the planned rows' drafts before they are verified, nothing for chunks.
struct Drafted {
    /// The proposals that are worth verifying, or what stands for them.
    drafts: Vec<Vec<u32>>,
    /// What is known of all proposals.
    judged: Vec<Judged>,
    /// Set where the drafts are still to come.
    promised: Option<Promised>,
}

impl Forward {
    pub(crate) fn new(
        target: Box<dyn Target>,
        drafter: Box<dyn Drafter>,
        page_size: usize,
        vocab: usize,
        (clock, fence): (&Clock, Fence),
    ) -> Forward {
        Forward {
            stairs: target.stairs(),
            pace: Pace::default(),
            leaves: match fence {
                Fence::Fine => target.leaves(),
                // Whoever waits for a whole step waits for what it chose.
                Fence::SelfFence | Fence::Coarse => Leaves::default(),
            },
            left: Steps::default(),
            target,
            drafter,
            page_size,
            clock: clock.clone(),
            vocab,
            shapers: Holders::new(),
            guides: Holders::new(),
            calibration: Calibration::NEW,
            pass: Pass::default(),
            results: Vec::new(),
        }
    }

    /// Runs the step `planned`, or leaves it.
    pub(crate) fn run(&mut self, planned: &[PlannedRow], mut memory: StepMemory<'_>) -> Report {
        // The host has landed all but the last step, or this one would not be planned yet.
        self.catch_up(Unknown::Last, &mut memory);
        self.absorb_left(&memory);
        // And the plan may know how the last one ended.
        self.catch_up(Unknown::Unread, &mut memory);
        let mut times = StepTimes::default();
        self.shapers.begin(planned, |row| row.shaped.clone().map(Shaper::new));
        let start = self.clock.now();
        let vocab = self.vocab;
        self.guides
            .begin(planned, |row| row.constrained.as_deref().map(|told| Guide::new(told, vocab)));
        times.masks = self.clock.now() - start;
        let may_leave = self.may_leave(planned, &memory);
        if !may_leave {
            self.catch_up(Unknown::Nothing, &mut memory);
        }
        let Drafted { mut drafts, judged, promised } = self.draft(planned, &mut memory, &mut times);
        let drafted = self.clock.now();
        let followed = guide::follow(&mut self.guides, planned, &mut drafts);
        let masked = self.clock.now();
        times.masks += masked - drafted;

        let drafts = drafts.into_iter().zip(followed).zip(judged);
        let blocks = self.build(planned, drafts, &memory);
        match may_leave && self.is_worth_leaving(&blocks, promised.as_ref()) {
            true => Report::Left(self.leave(blocks, promised, (start, times.draft), memory.stride)),
            false => Report::Done(self.verify(blocks, promised, (masked, times), memory)),
        }
    }

    /// Verifies what was laid out at `begin`, and waits for it.
    fn verify(
        &mut self,
        mut blocks: Vec<Block<'_>>,
        promised: Option<Promised>,
        (begin, mut times): (Duration, StepTimes),
        mut memory: StepMemory<'_>,
    ) -> Aside {
        if self.pass.rows() > 0 {
            let taps = taps(&*self.drafter, &blocks);
            self.target.forward(&self.pass, taps);
            self.clock.work("verify", self.pass.rows());
        }
        let prompts = blocks.iter().map(|block| self.score(block)).collect();
        let chosen = self.choose(&blocks);
        if chosen.is_empty() {
            self.target.finish();
        }
        let takes = promised.map_or(Duration::ZERO, |promised| self.redeem(promised, &mut blocks));
        let (mut outcomes, logprobs) = self.accept(&blocks, &chosen);
        let accepted = self.clock.now();
        for (block, outcome) in blocks.iter().zip(&mut outcomes) {
            let guide = self.guides.of_mut(block.row.row);
            outcome.end = guide.and_then(|guide| guide.push(&outcome.tokens));
        }
        for (block, outcome) in blocks.iter().zip(&outcomes) {
            let confidences = &block.judged.confidences;
            self.calibration.take_in(confidences, block.looked_at, outcome.accepted);
        }
        let pushed = self.clock.now();
        self.results.resize(blocks.len() * memory.stride, 0);
        publish(&blocks, &outcomes, &mut memory, &mut self.results);
        for (block, outcome) in blocks.iter().zip(&outcomes) {
            if let Some(shaper) = self.shapers.of_mut(block.row.row) {
                shaper.push(&outcome.tokens);
            }
        }
        let verified = self.clock.now();
        times.masks += pushed - accepted;
        // The rest of what was promised was made in this time, too.
        let whole = (accepted - begin) + (verified - pushed);
        let rest = takes.saturating_sub(times.draft).min(whole);
        times.draft += rest;
        times.verify = whole - rest;

        self.absorb(&blocks, &outcomes);
        times.absorb += self.clock.now() - verified;
        let drafts = blocks.into_iter().map(|block| block.drafts).collect();
        Aside { logprobs, prompts, drafts, times }
    }

    /// What the last step found: an [`Entry`] a planned row.
    pub(crate) fn results(&self) -> &[u32] {
        &self.results
    }

    /// Puts the drafts that were promised in the place of what stood for them. Returns how long they took.
    fn redeem(&mut self, promised: Promised, blocks: &mut [Block<'_>]) -> Duration {
        let Promised { promise, rows, takes } = promised;
        let drafts = promise.redeem();
        let (places, prices): (Vec<usize>, Vec<f32>) = rows.into_iter().unzip();
        for (place, (tokens, judged)) in places.into_iter().zip(self.judge(&prices, drafts)) {
            let block = &mut blocks[place];
            (block.drafts, block.judged) = (tokens, judged);
        }
        takes
    }

    /// Lays the rows of the verify pass out.
    fn build<'j>(
        &mut self,
        planned: &'j [PlannedRow],
        drafts: impl Iterator<Item = ((Vec<u32>, Followed), Judged)>,
        memory: &StepMemory<'j>,
    ) -> Vec<Block<'j>> {
        self.pass.clear();
        let mut blocks = Vec::with_capacity(planned.len());
        for ((row, pages), drafts) in with_pages(planned, memory.pages).zip(drafts) {
            let ((drafts, followed), judged) = drafts;
            let ended = self.guides.of(row.row).is_some_and(|guide| guide.end().is_some());
            let first = self.pass.rows();
            let len = memory.lengths[row.row.index] as usize;
            let begin = self.left.start(row.row, len);
            let len = begin.most();
            let mut push = |tokens: &[u32], start| {
                self.pass.push(tokens, start, pages, self.page_size);
            };
            let (context, choosing) = match &row.work {
                Work::Chunk { tokens, start, then } => {
                    push(tokens, Start::At(*start));
                    (*start, usize::from(*then == Then::Choose && !ended))
                }
                // The sequence is full, or its text came to its end: in an earlier step, after this
                // one was planned.
                Work::Block { .. } if len + 1 >= row.limit || ended => (len, 0),
                Work::Block { .. } => {
                    let anchor = memory.anchors[row.row.index];
                    let tokens: Vec<u32> =
                        std::iter::once(anchor).chain(drafts.iter().copied()).collect();
                    push(&tokens, begin);
                    (len, tokens.len())
                }
            };
            let len = self.pass.rows() - first;
            if row.absorb == Absorb::Skip {
                self.pass.untapped.push(first..first + len);
            }
            let Followed { masks, looked_at } = followed;
            blocks.push(Block {
                row,
                pages,
                first,
                len,
                context,
                drafts,
                looked_at,
                judged,
                choosing,
                masks,
            });
        }
        blocks
    }

    /// The prompt tokens that a block was to report, with what the target thinks of them.
    fn score(&mut self, block: &Block<'_>) -> Vec<PromptToken> {
        let Some(Scores { first, tokens, top }) = &block.row.scores else { return Vec::new() };
        // There is no row before the first token of all.
        let alone = usize::from(*first == 0);
        let behind = first + alone..first + tokens.len();
        let rows: Vec<usize> =
            behind.map(|position| block.first + position - 1 - block.context).collect();
        let mut found = Vec::new();
        if !rows.is_empty() {
            found = self.target.score(&rows, &tokens[alone..], *top);
            self.clock.work("score", rows.len());
        }
        let logprobs = std::iter::repeat_n(None, alone).chain(found.into_iter().map(Some));
        let told = tokens.iter().zip(logprobs);
        told.map(|(&id, logprobs)| PromptToken { id, logprobs }).collect()
    }

    /// The target's choices, block after block.
    fn choose(&mut self, blocks: &[Block<'_>]) -> Vec<u32> {
        let (mut rows, mut draws, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        let mut kept = Vec::new();
        for block in blocks {
            let own = block.row.logprobs.map_or(Kept::Choice, |_| Kept::Logits);
            kept.resize(rows.len() + block.choosing, own);
            let shaper = self.shapers.of(block.row.row);
            for (before, j) in (block.len - block.choosing..block.len).enumerate() {
                let position = block.context + j + 1;
                rows.push(block.first + j);
                draws.push(draw(block.row, position));
                // A row of a block sees the drafts before it as chosen.
                let after = &block.drafts[..before];
                let own = shaper.map_or_else(Shape::default, |own| own.shape(position, after));
                let allowed = block.masks.get(before).map(Vec::as_slice);
                shapes.push(Shape { allowed, ..own });
            }
        }
        let mut chosen = vec![0; rows.len()];
        if !rows.is_empty() {
            let (rows, draws, shapes, kept) = (&rows, &draws, &shapes, &kept);
            self.target.choose(&Choosing { rows, draws, shapes, kept }, &mut chosen);
        }
        chosen
    }

    /// Accepts drafts, and looks log-probabilities up where they are asked for.
    fn accept(
        &self,
        blocks: &[Block<'_>],
        chosen: &[u32],
    ) -> (Vec<RowOutcome>, Vec<Vec<LogProbs>>) {
        let mut at = 0;
        let one = |block: &Block<'_>| {
            let choices = &chosen[at..at + block.choosing];
            let accepted = match choices {
                [] => 0,
                _ => accept(&block.drafts, choices),
            };
            let tokens = choices[..choices.len().min(accepted + 1)].to_vec();
            let logprobs = block.row.logprobs.map_or_else(Vec::new, |top| {
                let look = |(i, &token)| self.target.log_probs(at + i, token, top);
                tokens.iter().enumerate().map(look).collect()
            });
            at += block.choosing;
            let (drafted, chances) = (block.looked_at, block.judged.chances);
            (RowOutcome { tokens, accepted, drafted, chances, end: None }, logprobs)
        };
        blocks.iter().map(one).unzip()
    }

    /// Gives the drafter the features of the tokens that now have KV.
    fn absorb(&mut self, blocks: &[Block<'_>], outcomes: &[RowOutcome]) {
        let (features, all) = (self.target.features(), self.pass.rows());
        if features.is_empty() {
            return;
        }
        for (block, outcome) in blocks.iter().zip(outcomes) {
            let kept = block.kept(outcome);
            if block.row.absorb == Absorb::Skip || kept == 0 {
                continue;
            }
            let own = features.rows(block.first..block.first + kept, all);
            let tokens = (block.context..block.context + kept, block.pages, self.page_size);
            take_in(&mut *self.drafter, own, tokens);
            self.clock.work("absorb", kept);
        }
    }
}

impl Block<'_> {
    /// How many of the block's rows hold committed tokens.
    fn kept(&self, outcome: &RowOutcome) -> usize {
        match self.row.work {
            Work::Chunk { .. } => self.len,
            Work::Block { .. } => outcome.tokens.len(),
        }
    }
}

/// Writes lengths and anchors for the next step, and results for the host.
fn publish(
    blocks: &[Block<'_>],
    outcomes: &[RowOutcome],
    memory: &mut StepMemory<'_>,
    results: &mut [u32],
) {
    let entries = results.chunks_exact_mut(memory.stride);
    for ((block, outcome), entry) in blocks.iter().zip(outcomes).zip(entries) {
        let place = block.row.row.index;
        memory.lengths[place] = (block.context + block.kept(outcome)) as u32;
        if let Some(&last) = outcome.tokens.last() {
            memory.anchors[place] = last;
        }
        Entry::write(entry, outcome);
    }
}

/// The target's layers whose outputs the drafter will be given of some of `blocks`.
fn taps<'d>(drafter: &'d dyn Drafter, blocks: &[Block<'_>]) -> &'d [usize] {
    let absorbing = blocks.iter().any(|block| block.row.absorb == Absorb::Keep);
    if absorbing { drafter.taps() } else { &[] }
}

/// Gives a drafter the features of some tokens of a sequence with these pages.
fn take_in(
    drafter: &mut dyn Drafter,
    features: Features<'_>,
    (tokens, pages, page_size): (Range<usize>, &[u32], usize),
) {
    let positions: Vec<u32> = tokens.clone().map(|t| t as u32).collect();
    let slots: Vec<u32> = tokens.map(|t| slot(t, pages, page_size)).collect();
    drafter.absorb(features, &positions, &slots);
}

/// Each planned row with its own page ids.
fn with_pages<'p, 'j>(
    planned: &'p [PlannedRow],
    mut pages: &'j [u32],
) -> impl Iterator<Item = (&'p PlannedRow, &'j [u32])> {
    planned.iter().map(move |row| {
        let (own, rest) = pages.split_at(row.pages);
        pages = rest;
        (row, own)
    })
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
