//! One step on the forward lane: draft → verify → choose → accept → publish → absorb, with no
//! host in between.

use crate::ahead::{Pace, Promised};
use crate::counters::StepTimes;
use crate::draft::{Calibration, Draft, DraftRow, Drafter, Follows, Judge};
use crate::fit::{Open, fit};
use crate::guide::{self, Followed, Guide, Mask};
use crate::holders::Holders;
use crate::left::{Coming, Judged, LeftRow, LeftStep, ReadStep, Steps, Unknown};
use crate::output::PromptToken;
use crate::report::{Aside, Entry, Report};
use crate::shaper::Shaper;
use crate::target::{Choosing, Features, Target};
use device::{Clock, Fence};
use kernels::accept::accept;
use kernels::choose::{Draw, Kept, LogProbs, Shape};
use model::pass::{Pass, Start, slot};
use schedule::{Absorb, PlannedRow, RowOutcome, Scores, Then, Work};
use std::ops::Range;
use std::sync::Arc;
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
    /// Most rows of a step that is left.
    leaves: usize,
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
    made: Made,
}

/// How drafts were made.
enum Made {
    /// There are none.
    None,
    /// Somebody waited for them.
    Told,
    /// They are still to come.
    Promised(Promised),
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
                Fence::SelfFence | Fence::Coarse => 0,
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
        let Drafted { mut drafts, judged, made } = self.draft(planned, &mut memory, &mut times);
        let drafted = self.clock.now();
        let followed = guide::follow(&mut self.guides, planned, &mut drafts);
        let masked = self.clock.now();
        times.masks += masked - drafted;

        let drafts = drafts.into_iter().zip(followed).zip(judged);
        let blocks = self.build(planned, drafts, &memory);
        match made {
            Made::None if may_leave => {
                Report::Left(self.leave(&blocks, None, start, memory.stride))
            }
            Made::Promised(promised) if may_leave => {
                Report::Left(self.leave(&blocks, Some(promised), start, memory.stride))
            }
            Made::None | Made::Told => {
                Report::Done(self.verify(blocks, None, (masked, times), memory))
            }
            Made::Promised(promised) => {
                Report::Done(self.verify(blocks, Some(promised), (masked, times), memory))
            }
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
            let confidences = &block.judged.confidences[..block.looked_at];
            self.calibration.learn(confidences, outcome.accepted);
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

    /// Starts what was laid out, and waits for nothing.
    fn leave(
        &mut self,
        blocks: &[Block<'_>],
        promised: Option<Promised>,
        began: Duration,
        stride: usize,
    ) -> Arc<LeftStep> {
        let of = |block: &Block<'_>| {
            let (row, first) = (block.row, block.context + 1);
            (first..first + block.len).map(move |position| draw(row, position)).collect::<Vec<_>>()
        };
        let draws: Vec<Draw> = blocks.iter().flat_map(of).collect();
        let taps = taps(&*self.drafter, blocks);
        let left = self.target.leave(&self.pass, taps, &draws);
        self.clock.work("verify", self.pass.rows());
        self.results.resize(blocks.len() * stride, 0);
        let row = |block: &Block<'_>| LeftRow {
            row: block.row.row,
            first: block.first,
            width: block.len,
            absorb: block.row.absorb,
            pages: block.pages.to_vec(),
        };
        let (calibration, most) = (self.calibration.clone(), self.drafter.block() - 1);
        let coming = Coming { left, promised, calibration, most };
        self.left.push(blocks.iter().map(row).collect(), coming, (&self.clock, began))
    }

    /// Whether the step `planned` may be left: nothing of it needs the host before the next one begins, and no block
    /// is narrower than planned, wherever it begins.
    fn may_leave(&self, planned: &[PlannedRow], memory: &StepMemory<'_>) -> bool {
        let follows = self.drafter.follows();
        let free = |row: &PlannedRow| {
            let Work::Block { width, .. } = row.work else { return false };
            let len = memory.lengths[row.row.index] as usize;
            self.left.start(row.row, len).most() + width < row.limit
                && (width == 1 || follows == Follows::Blocks)
                && row.logprobs.is_none()
                && !draw(row, len).filters()
                && self.shapers.of(row.row).is_none()
                && self.guides.of(row.row).is_none()
        };
        planned.len() <= self.leaves && planned.iter().all(free)
    }

    /// Takes in what steps chose that were left, up to what is to be unknown: waits where nobody has read them yet.
    fn catch_up(&mut self, to: Unknown, memory: &mut StepMemory<'_>) {
        while let Some(step) = self.left.pop(to) {
            let ReadStep { outcomes, drafts, .. } = step.read();
            for ((left, outcome), (_, confidences)) in step.rows.iter().zip(outcomes).zip(drafts) {
                memory.lengths[left.row.index] += outcome.tokens.len() as u32;
                if let Some(&last) = outcome.tokens.last() {
                    memory.anchors[left.row.index] = last;
                }
                self.calibration.look(confidences);
                self.calibration.learn(confidences, outcome.accepted);
            }
        }
    }

    /// Gives the drafter the features of the last step, if that was left: of drafts that turn out to be refused, too,
    /// whose places nobody looks at before they are written again.
    fn absorb_left(&mut self, memory: &StepMemory<'_>) {
        let Some(step) = self.left.last() else { return };
        let (features, all) = (self.target.features(), self.pass.rows());
        if features.is_empty() {
            return;
        }
        for left in step.rows.iter().filter(|left| left.absorb == Absorb::Keep) {
            let start = memory.lengths[left.row.index] as usize;
            let own = features.rows(left.first..left.first + left.width, all);
            let tokens = (start..start + left.width, &left.pages[..], self.page_size);
            take_in(&mut *self.drafter, own, tokens);
            self.clock.work("absorb", left.width);
        }
    }

    /// What the last step found: an [`Entry`] a planned row.
    pub(crate) fn results(&self) -> &[u32] {
        &self.results
    }

    /// Drafts for every planned row that is to be verified. Where they are not promised, it has to be known where the
    /// rows begin.
    fn draft(
        &mut self,
        planned: &[PlannedRow],
        memory: &mut StepMemory<'_>,
        times: &mut StepTimes,
    ) -> Drafted {
        let mut drafted = Drafted {
            drafts: vec![Vec::new(); planned.len()],
            judged: vec![Judged::default(); planned.len()],
            made: Made::None,
        };
        let known = (&self.calibration, &self.left, &self.guides, &self.shapers);
        let (places, wanting) = wanting(planned, memory, known);
        if wanting.is_empty() {
            return drafted;
        }
        let start = self.clock.now();
        self.drafter.settle();
        let settled = self.clock.now();
        times.absorb += settled - start;
        let positions = wanting.iter().map(|row| self.drafter.positions(row.likely)).sum();
        let prices: Vec<f32> = wanting.iter().map(|row| row.judge.price()).collect();
        let takes = match self.may_run_ahead(planned, &wanting) {
            true => self.pace.takes(positions),
            false => None,
        };
        if let Some(takes) = takes
            && let Some(promise) = self.drafter.promise(&wanting)
        {
            for (&place, own) in places.iter().zip(&promise.stand_ins) {
                drafted.drafts[place].clone_from(own);
            }
            let rows = places.into_iter().zip(prices).collect();
            drafted.made = Made::Promised(Promised { promise, rows, takes });
            times.draft = self.clock.now() - settled;
            return drafted;
        }
        if self.left.last().is_some() {
            self.catch_up(Unknown::Nothing, memory);
            return self.draft(planned, memory, times);
        }
        drafted.made = Made::Told;
        let mut proposals = vec![Draft::default(); wanting.len()];
        self.drafter.propose(&wanting, &mut proposals);
        self.clock.work("draft", wanting.len());
        times.draft = self.clock.now() - settled;
        self.pace.learn(positions, times.draft);
        let counts = self.counts(planned, &wanting, &proposals);
        let judged = self.judge(&prices, proposals);
        for ((place, (mut tokens, judged)), count) in places.into_iter().zip(judged).zip(counts) {
            tokens.truncate(count);
            (drafted.drafts[place], drafted.judged[place]) = (tokens, judged);
        }
        drafted
    }

    /// What is known of drafts, of each of which so much is wanted, beside their tokens. All are judged by what was
    /// known before.
    fn judge(&mut self, prices: &[f32], drafts: Vec<Draft>) -> Vec<(Vec<u32>, Judged)> {
        let (known, most) = (&self.calibration, self.drafter.block() - 1);
        let one = |(&price, draft): (&f32, Draft)| Judged::of((known, price), most, draft);
        let judged: Vec<_> = prices.iter().zip(drafts).map(one).collect();
        judged.iter().for_each(|(_, judged)| self.calibration.look(&judged.confidences));
        judged
    }

    /// Whether the drafts of `rows` may be verified before the host knows them: nothing that the host does to their
    /// logits depends on them, and verifying them all costs little.
    fn may_run_ahead(&self, planned: &[PlannedRow], rows: &[DraftRow<'_>]) -> bool {
        let free = |row: &DraftRow<'_>| row.shaper.is_none() && row.allowed.is_none();
        let drafts: usize = rows.iter().map(|row| row.width - 1).sum();
        let told: usize = planned.iter().map(PlannedRow::told).sum();
        told + drafts <= self.target.ahead() && rows.iter().all(free)
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

    /// How many of the proposals of each row are verified: those that are worth it, and some more or less as the
    /// target's passes cost.
    fn counts(
        &self,
        planned: &[PlannedRow],
        rows: &[DraftRow<'_>],
        proposals: &[Draft],
    ) -> Vec<usize> {
        let worth = |(row, draft): (&DraftRow<'_>, &Draft)| row.judge.worth(&draft.confidences);
        let mut counts: Vec<usize> = rows.iter().zip(proposals).map(worth).collect();
        if self.stairs.is_empty() {
            return counts;
        }
        let open: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].judge.is_strict()).collect();
        let Some(price) = open.first().map(|&i| rows[i].judge.price()) else { return counts };
        let chances = |&i: &usize| rows[i].judge.chances(&proposals[i].confidences).collect();
        let chances: Vec<Vec<f32>> = open.iter().map(chances).collect();
        let blocks = open.iter().zip(&chances);
        let blocks: Vec<Open<'_>> =
            blocks.map(|(&i, chances)| Open { chances, worth: counts[i] }).collect();
        let judged: usize = blocks.iter().map(|block| block.worth).sum();
        let drafts: usize = counts.iter().sum();
        let others = planned.iter().map(PlannedRow::told).sum::<usize>() + drafts - judged;
        let fitted = fit(others, &blocks, price, &self.stairs);
        open.iter().zip(fitted).for_each(|(&i, count)| counts[i] = count);
        counts
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

/// The planned rows that want drafts: their places, and what they want.
fn wanting<'f>(
    planned: &[PlannedRow],
    memory: &StepMemory<'f>,
    known: (&'f Calibration, &Steps, &'f Holders<Guide>, &'f Holders<Shaper>),
) -> (Vec<usize>, Vec<DraftRow<'f>>) {
    let (calibration, left, guides, shapers) = known;
    let (mut wanting, mut places) = (Vec::new(), Vec::new());
    for (i, (row, pages)) in with_pages(planned, memory.pages).enumerate() {
        let Work::Block { width, price, likely } = row.work else { continue };
        let start = left.start(row.row, memory.lengths[row.row.index] as usize);
        let len = start.most();
        let width = width.min(row.limit - 1 - len);
        let guide = guides.of(row.row);
        if width > 1 && guide.is_none_or(|guide| guide.end().is_none()) {
            places.push(i);
            wanting.push(DraftRow {
                request: row.id,
                anchor: memory.anchors[row.row.index],
                len,
                behind: match start {
                    Start::At(_) => None,
                    Start::Behind { block, .. } => Some(block),
                },
                width,
                judge: Judge::new(calibration, price),
                likely,
                pages,
                draw: draw(row, len + 1),
                shaper: shapers.of(row.row),
                allowed: guide.and_then(Guide::next),
            });
        }
    }
    (places, wanting)
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
