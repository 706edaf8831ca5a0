//! A request's tokens and how far they are: waiting ([`Sequence`]) and running ([`Running`]).

use crate::chances::Acceptance;
use crate::commit::Commit;
use crate::constraint::ConstrainedRequest;
use crate::discipline::Discipline;
use crate::plan::{Absorb, Departed, PlannedRow, Scores, TableWrites, Then, Work};
use crate::request::{Bounds, Request, Speculation};
use crate::shaping::{ShapedRequest, Shaping};
use crate::width::Prospect;
use cache::{Lease, Need, Row};
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

/// Order of service: higher priority first, then earlier arrival. It stays with a request when it
/// is retracted, so that it waits at the front of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    priority: Reverse<i32>,
    arrival: u64,
}

impl Place {
    pub(crate) fn new(priority: i32, arrival: u64) -> Place {
        Place { priority: Reverse(priority), arrival }
    }
}

/// All that survives a retraction.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: u64,
    pub(crate) place: Place,
    /// Without its prompt, which is the beginning of `tokens`.
    pub(crate) request: Request,
    /// Prompt and kept output.
    pub(crate) tokens: Vec<u32>,
    pub(crate) commit: Commit,
    /// Most tokens, prompt and output together.
    pub(crate) limit: usize,
    /// Prompt tokens that the prefix cache had; `None` before the first admission.
    pub(crate) cached: Option<usize>,
    pub(crate) acceptance: Acceptance,
    /// Whether drafting could pay when it was last admitted.
    pub(crate) prospect: Prospect,
    prompt: usize,
    /// Prompt tokens, by position, whose log-probabilities no landed step has reported yet.
    owed: Range<usize>,
}

impl Sequence {
    pub(crate) fn new(id: u64, place: Place, mut request: Request, bounds: &Bounds) -> Sequence {
        let limit = request.limit(bounds);
        let tokens = std::mem::take(&mut request.prompt);
        let prompt = tokens.len();
        let length = request.limits.min_tokens..=limit - prompt;
        let commit = Commit::new(request.stops.clone(), length);
        Sequence {
            id,
            place,
            owed: request.prompt_logprobs.map_or(0..0, |asked| asked.from..prompt),
            request,
            tokens,
            commit,
            limit,
            cached: None,
            acceptance: Acceptance::default(),
            prospect: Prospect::Open,
            prompt,
        }
    }

    /// Tokens that ever need KV: the last token of an output is chosen, never computed.
    pub(crate) fn capacity(&self) -> usize {
        self.prompt.max(self.limit - 1)
    }

    /// The known tokens that may be taken from the prefix cache. One token at least is computed, since
    /// the next one is chosen from its row; and so is the row before each token that is still to be
    /// reported.
    pub(crate) fn findable(&self) -> &[u32] {
        let chosen_from = self.tokens.len() - 1;
        match self.owed.is_empty() {
            true => &self.tokens[..chosen_from],
            false => &self.tokens[..chosen_from.min(self.owed.start.saturating_sub(1))],
        }
    }

    /// The tokens that a chunk of `len` tokens from `start` on is to report: those behind its rows,
    /// and the first of all with its own.
    fn scores(&self, start: usize, len: usize) -> Option<Scores> {
        let top = self.request.prompt_logprobs?.top;
        let behind = if start == 0 { 0 } else { start + 1 };
        let tokens = self.owed.start.max(behind)..self.owed.end.min(start + len + 1);
        let first = tokens.start;
        (!tokens.is_empty()).then(|| Scores { first, tokens: self.tokens[tokens].to_vec(), top })
    }

    /// A step that reported `scores` has landed.
    pub(crate) fn reported(&mut self, scores: &Scores) {
        self.owed.start = scores.first + scores.tokens.len();
    }

    /// Widest verify block, the anchor included.
    pub(crate) fn width(&self, bounds: &Bounds, default: usize) -> usize {
        match (self.request.speculation, self.prospect) {
            (Speculation::Auto, Prospect::Open) => default.min(bounds.max_width),
            (Speculation::Off, _) | (Speculation::Auto, Prospect::Closed) => 1,
            (Speculation::Width(width), _) => width,
        }
    }

    /// Whether the drafter is to know the tokens of this request.
    pub(crate) fn absorb(&self, bounds: &Bounds) -> Absorb {
        let drafts = match (self.request.speculation, self.prospect) {
            (Speculation::Auto, Prospect::Open) | (Speculation::Width(_), _) => true,
            (Speculation::Off, _) | (Speculation::Auto, Prospect::Closed) => false,
        };
        if drafts && bounds.max_width > 1 { Absorb::Keep } else { Absorb::Skip }
    }

    /// What a cached page must have to be of use.
    pub(crate) fn need(&self, bounds: &Bounds) -> Need {
        match self.absorb(bounds) {
            Absorb::Keep => Need::TargetAndDrafter,
            Absorb::Skip => Need::Target,
        }
    }

    /// What the device must know to shape the logits of what follows; `None` when there is nothing
    /// to be done to them.
    fn shaped(&self) -> Option<ShapedRequest> {
        let Request { shaping, stops, limits, .. } = &self.request;
        let min_tokens = if stops.ids.is_empty() { 0 } else { limits.min_tokens };
        if min_tokens == 0 && *shaping == Shaping::default() {
            return None;
        }
        Some(ShapedRequest {
            shaping: shaping.clone(),
            banned: stops.ids.clone(),
            min_tokens,
            tokens: self.tokens.clone(),
            prompt: self.prompt,
        })
    }

    /// What the device must know to follow its text; `None` when that may be anything.
    fn constrained(&self) -> Option<ConstrainedRequest> {
        let constraint = self.request.constraint.clone()?;
        let stops = self.request.stops.ids.clone();
        Some(ConstrainedRequest { constraint, stops, output: self.tokens[self.prompt..].to_vec() })
    }

    /// Remembers how much of the prompt its first admission found cached.
    pub(crate) fn found(&mut self, cached: usize) {
        self.cached.get_or_insert(cached.min(self.prompt));
    }
}

/// Whether a running request is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    Stay,
    /// Back to the queue as soon as no step in flight mentions it.
    Retract {
        /// Pages that are expected to come back then.
        coming: usize,
    },
}

/// A request with a row and a lease.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) row: Row,
    pub(crate) lease: Lease,
    pub(crate) course: Course,
    /// Known tokens at admission: these come in chunks, what follows in blocks.
    known: usize,
    /// Known tokens that steps were given, or that were cached.
    sent: usize,
    /// Tokens with KV as of the last landed step.
    landed: usize,
    /// Steps in flight that mention it.
    flying: usize,
    /// Tokens with KV after these steps, at least and at most.
    least: usize,
    most: usize,
    /// Slots that its steps were told they may write.
    reserved: usize,
    discipline: Discipline,
    /// Where the drafter context ends, once it has a gap. Such a request cannot draft.
    gap: Option<usize>,
    /// Entries of its row of the page table that steps were told to write.
    written: usize,
}

impl Running {
    /// Starts or resumes `sequence`, whose first `matched` tokens have KV, the first `drafter` of
    /// them drafter context.
    pub(crate) fn new(
        sequence: Sequence,
        row: Row,
        lease: Lease,
        (matched, drafter): (usize, usize),
        discipline: Discipline,
    ) -> Running {
        Running {
            known: sequence.tokens.len(),
            sent: matched,
            landed: matched,
            least: matched,
            most: matched,
            gap: (drafter < matched).then_some(drafter),
            sequence,
            row,
            lease,
            course: Course::Stay,
            flying: 0,
            reserved: 0,
            discipline,
            written: 0,
        }
    }

    /// Most tokens with KV after the steps in flight and one that adds at most `width`. Their slots
    /// are reserved.
    pub(crate) fn reach(&self, width: usize) -> usize {
        let before = match self.discipline {
            Discipline::ReserveOneBlock => self.landed,
            Discipline::Sound | Discipline::GiveBackEarly => self.most,
        };
        (before + width).min(self.sequence.capacity())
    }

    /// Known tokens that no step was given yet.
    pub(crate) fn unsent(&self) -> usize {
        self.known - self.sent
    }

    /// Tokens that a verify block may add at most; 0 when it must wait for an earlier step, or
    /// while known tokens are left.
    pub(crate) fn room(&self) -> usize {
        if self.unsent() > 0 { 0 } else { self.sequence.capacity() - self.least }
    }

    /// A step in flight mentions it.
    pub(crate) fn in_flight(&self) -> bool {
        self.flying > 0
    }

    /// The drafter is to know its tokens, but some were never shown to it, and later steps do not
    /// bring them back.
    pub(crate) fn lacks_context(&self, bounds: &Bounds) -> bool {
        self.gap.is_some() && self.sequence.absorb(bounds) == Absorb::Keep
    }

    /// The widest block that `slots` have room for, whatever the steps in flight add. Once they
    /// hold the whole sequence the device narrows a block itself.
    pub(crate) fn block_within(&self, slots: usize) -> usize {
        if slots >= self.sequence.capacity() { usize::MAX } else { slots - self.reach(0) }
    }

    /// The next `len` known tokens.
    pub(crate) fn chunk(&mut self, len: usize) -> Work {
        let start = self.sent;
        self.sent += len;
        let then = match self.unsent() {
            0 if self.sequence.limit == self.sequence.prompt => Then::End,
            0 => Then::Choose,
            _ => Then::Continue,
        };
        Work::Chunk { tokens: self.sequence.tokens[start..start + len].to_vec(), start, then }
    }

    /// Plans `work`, for which the slots are leased: its row, and what the page table lacks.
    pub(crate) fn plan(
        &mut self,
        work: Work,
        bounds: &Bounds,
        page_size: usize,
        table: &mut TableWrites,
    ) -> PlannedRow {
        let absorb = match self.gap {
            None => self.sequence.absorb(bounds),
            Some(_) => Absorb::Skip,
        };
        if absorb == Absorb::Skip && self.gap.is_none() {
            self.gap = Some(self.least);
        }
        let reach = self.reach(work.tokens());
        self.reserved = self.reserved.max(reach);
        self.flying += 1;
        self.least += work.least();
        self.most += work.tokens();
        if self.written < self.lease.pages().len() {
            table.push(self.row.index, self.written, &self.lease.pages()[self.written..]);
            self.written = self.lease.pages().len();
        }
        let (shaped, constrained) = match work {
            Work::Chunk { then: Then::Choose, .. } => {
                let sequence = &self.sequence;
                (sequence.shaped().map(Arc::new), sequence.constrained().map(Arc::new))
            }
            Work::Chunk { .. } | Work::Block { .. } => (None, None),
        };
        let scores = match &work {
            Work::Chunk { tokens, start, .. } => self.sequence.scores(*start, tokens.len()),
            Work::Block { .. } => None,
        };
        let pages = reach.div_ceil(page_size);
        assert!(pages <= self.lease.pages().len(), "a step may touch leased pages only");
        PlannedRow {
            id: self.sequence.id,
            row: self.row,
            work,
            absorb,
            pages,
            limit: self.sequence.limit,
            sampling: self.sequence.request.sampling,
            shaped,
            logprobs: self.sequence.request.logprobs,
            scores,
            constrained,
        }
    }

    /// A step that planned `work` has landed: it gave this request `tokens` more tokens with KV.
    pub(crate) fn land(&mut self, work: &Work, tokens: usize) {
        self.flying = self.flying.checked_sub(1).expect("a landed step was in flight");
        self.landed += tokens;
        self.least = self.least - work.least() + tokens;
        self.most = self.most - work.tokens() + tokens;
        let (landed, reserved) = (self.landed, self.reserved);
        assert!(landed <= reserved, "{landed} tokens have KV, {reserved} slots were reserved");
    }

    /// Committed tokens that have KV. What followed a stop was computed but never happened.
    pub(crate) fn with_kv(&self) -> &[u32] {
        &self.sequence.tokens[..self.landed.min(self.sequence.tokens.len())]
    }

    /// How many tokens, from the first, have drafter context.
    pub(crate) fn with_drafter(&self) -> usize {
        self.gap.unwrap_or(usize::MAX)
    }

    /// What is left of an ended request, of which `coming` pages are expected back.
    pub(crate) fn depart(self, coming: usize) -> Departed {
        let (drafter, kept) = (self.with_drafter(), self.with_kv().len());
        let mut tokens = self.sequence.tokens;
        tokens.truncate(kept);
        Departed { row: self.row, lease: self.lease, tokens, drafter, coming }
    }
}
