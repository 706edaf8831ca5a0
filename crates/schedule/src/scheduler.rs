//! The scheduler: first come, first served; a row and all its pages are leased at admission.
//!
//! It plans with bounds, never with the device's exact lengths: a step may be planned while the
//! one before is in flight, so each request keeps what its unlanded steps can add at least and at
//! most.

use crate::commit::{Commit, Committed, Origin};
use crate::plan::{PlannedRow, RowOutcome, StepPlan, Then, Work};
use crate::request::{Bounds, Request, RequestError};
use cache::{Lease, Pages, Row, Rows};
use std::collections::VecDeque;

/// Sizes fixed at start.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// What a request must fit in.
    pub bounds: Bounds,
    /// Tokens a KV page holds; a power of two.
    pub page_size: usize,
    /// Most prompt tokens of one step, over all requests.
    pub chunk: usize,
    /// Most requests that run at once.
    pub max_running: usize,
    /// Verify width of requests that name none.
    pub width: usize,
}

/// Requests, and the pages and rows they hold.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    pages: Pages,
    rows: Rows,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    request: Request,
}

#[derive(Debug)]
struct Running {
    id: u64,
    request: Request,
    row: Row,
    lease: Lease,
    commit: Commit,
    /// Most tokens, prompt and output together.
    limit: usize,
    /// Verify width.
    width: usize,
    /// Prompt tokens handed to a step.
    sent: usize,
    /// Tokens with KV as of the last landed step.
    landed: usize,
    /// Least and most tokens that each step in flight adds, oldest first.
    flying: VecDeque<(usize, usize)>,
}

/// What one landed step did to a request.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// The request.
    pub id: u64,
    /// Which of the plan's rows it was; `None` when the request was cancelled outside a step.
    pub planned: Option<usize>,
    /// What is kept.
    pub committed: Committed,
}

impl Running {
    fn least(&self) -> usize {
        self.landed + self.flying.iter().map(|(least, _)| least).sum::<usize>()
    }

    fn most(&self) -> usize {
        let most = self.landed + self.flying.iter().map(|(_, most)| most).sum::<usize>();
        most.min(self.capacity())
    }

    /// Tokens that ever need KV: the last token of a sequence is chosen, never computed.
    fn capacity(&self) -> usize {
        self.limit - 1
    }

    /// What this request computes next, given room for `chunk` prompt tokens; `None` when there
    /// is nothing to do before an earlier step lands.
    fn next(&mut self, chunk: usize) -> Option<Work> {
        let start = self.sent;
        let left = self.request.prompt.len() - start;
        if left > 0 {
            let len = left.min(chunk);
            if len == 0 {
                return None;
            }
            self.sent += len;
            self.flying.push_back((len, len));
            let then = if len == left { Then::Choose } else { Then::Continue };
            let tokens = self.request.prompt[start..start + len].to_vec();
            return Some(Work::Chunk { tokens, start, then });
        }
        let room = self.capacity() - self.least();
        if room == 0 {
            return None;
        }
        let width = self.width.min(room);
        self.flying.push_back((1, width));
        Some(Work::Block { width })
    }
}

impl Scheduler {
    /// An idle scheduler.
    pub fn new(options: SchedulerOptions) -> Scheduler {
        let pages = Pages::new(options.bounds.kv_tokens / options.page_size, options.page_size);
        let rows = Rows::new(options.max_running);
        Scheduler { options, waiting: VecDeque::new(), running: Vec::new(), pages, rows }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A request that could never run.
    pub fn submit(&mut self, id: u64, request: Request) -> Result<(), RequestError> {
        request.check(&self.options.bounds)?;
        self.waiting.push_back(Waiting { id, request });
        Ok(())
    }

    /// Ends a request now. What it holds goes into `youngest`, the step in flight, if that
    /// mentions it. `None` when there is no such request.
    pub fn cancel(&mut self, id: u64, youngest: Option<&mut StepPlan>) -> Option<Outcome> {
        if let Some(at) = self.waiting.iter().position(|w| w.id == id) {
            self.waiting.remove(at);
            let committed = Commit::new(Default::default(), 1).cancel();
            return Some(Outcome { id, planned: None, committed });
        }
        let at = self.running.iter().position(|r| r.id == id)?;
        let committed = self.running[at].commit.cancel();
        self.depart(at, youngest);
        Some(Outcome { id, planned: None, committed })
    }

    /// Nothing waits or runs. (A step may still be in flight.)
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Pages and rows that are free, and all of them. Equal whenever nothing waits, runs or is in
    /// flight.
    pub fn free_and_total(&self) -> [(usize, usize); 2] {
        [(self.pages.free(), self.pages.total()), (self.rows.free(), self.rows.total())]
    }

    /// Plans the next step; `None` when there is nothing to compute before one lands.
    pub fn plan(&mut self) -> Option<StepPlan> {
        self.admit();
        let mut room = self.options.chunk;
        let mut rows = Vec::new();
        for running in &mut self.running {
            let Some(work) = running.next(room) else { continue };
            if let Work::Chunk { tokens, .. } = &work {
                room -= tokens.len();
            }
            let pages = running.most().div_ceil(self.options.page_size);
            rows.push(PlannedRow {
                id: running.id,
                row: running.row,
                work,
                width: running.width,
                pages: running.lease.pages()[..pages].to_vec(),
                limit: running.limit,
                sampling: running.request.sampling,
                logprobs: running.request.logprobs,
            });
        }
        (!rows.is_empty()).then_some(StepPlan { rows, departed: Vec::new() })
    }

    /// Lands a step: commits what it chose and releases what departed with it. `outcomes` follows
    /// the plan's rows. `youngest` is the step in flight behind it, if any: requests that end now
    /// but are mentioned there keep their pages until it lands. `piece` gives a token's bytes.
    pub fn land<'p>(
        &mut self,
        landed: StepPlan,
        outcomes: &[RowOutcome],
        mut youngest: Option<&mut StepPlan>,
        piece: impl Fn(u32) -> &'p [u8],
    ) -> Vec<Outcome> {
        assert_eq!(landed.rows.len(), outcomes.len(), "one outcome a planned row");
        let mut result = Vec::new();
        for (planned, (row, outcome)) in landed.rows.iter().zip(outcomes).enumerate() {
            // A request that departed in the meantime has no place here any more, and its row
            // may already have another generation: what the step found for it is dropped.
            let Some(at) = self.running.iter().position(|r| r.id == row.id && r.row == row.row)
            else {
                continue;
            };
            let running = &mut self.running[at];
            running.flying.pop_front().expect("a landed step was in flight");
            running.landed += match &row.work {
                Work::Chunk { tokens, .. } => tokens.len(),
                Work::Block { .. } => outcome.tokens.len(),
            };
            let origin = |i| if i < outcome.accepted { Origin::Draft } else { Origin::Target };
            let offered = outcome.tokens.iter().enumerate().map(|(i, &token)| (token, origin(i)));
            let committed = running.commit.offer(offered, &piece);
            if committed.finish.is_some() {
                self.depart(at, youngest.as_deref_mut());
            }
            result.push(Outcome { id: row.id, planned: Some(planned), committed });
        }
        for (row, lease) in landed.departed {
            self.rows.release(row);
            self.pages.release(lease);
        }
        result
    }

    /// Starts waiting requests, in order, while there is room for the first of them.
    fn admit(&mut self) {
        while let Some(first) = self.waiting.front() {
            let limit = first.request.limit(&self.options.bounds);
            if self.rows.free() == 0 {
                return;
            }
            let Some(lease) = self.pages.lease(limit - 1) else { return };
            let row = self.rows.take().expect("a row is free: just asked");
            let Waiting { id, request } = self.waiting.pop_front().expect("just looked at");
            let width = request.width(&self.options.bounds, self.options.width);
            let commit = Commit::new(request.stops.clone(), limit - request.prompt.len());
            self.running.push(Running {
                id,
                request,
                row,
                lease,
                commit,
                limit,
                width,
                sent: 0,
                landed: 0,
                flying: VecDeque::new(),
            });
        }
    }

    /// Removes a running request; its row and pages go with the youngest step that mentions it,
    /// or back at once when none does.
    fn depart(&mut self, at: usize, youngest: Option<&mut StepPlan>) {
        let Running { row, lease, .. } = self.running.remove(at);
        match youngest {
            Some(step) if step.rows.iter().any(|planned| planned.row == row) => {
                step.departed.push((row, lease));
            }
            _ => {
                self.rows.release(row);
                self.pages.release(lease);
            }
        }
    }
}
