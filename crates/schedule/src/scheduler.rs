//! The scheduler's state, and how requests enter and leave it. What runs when is planner.rs; what
//! a landed step changes is land.rs.
//!
//! It works with bounds, never with the device's exact lengths: a step may be planned while the
//! one before is in flight, so each request keeps what its unlanded steps can add at least and at
//! most.
//!
//! Every request ends with exactly one [`Outcome`] that has a finish reason, from
//! [`Scheduler::land`] or [`Scheduler::end`].

use crate::crew::Crew;
use crate::discipline::Discipline;
use crate::land::Outcome;
use crate::plan::{RowOutcome, StepPlan};
use crate::planner::Able;
use crate::queue::{Admission, Queue, Reject, Shortage};
use crate::request::{Bounds, Early, Request, RequestError, Speculation};
use crate::sequence::{Course, Place, Running, Sequence};
use crate::text::Text;
use crate::width::{WidthPolicy, Widths};
use cache::{Account, PrefixCache, Rows};
use std::collections::HashMap;

/// Sizes fixed at start.
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// What a request must fit in. `kv_tokens` counts whole pages only.
    pub bounds: Bounds,
    /// Tokens a KV page holds; a power of two.
    pub page_size: usize,
    /// Most tokens of one step's target pass, over all requests; at least 2.
    pub step_tokens: usize,
    /// Most requests that run at once; at least 1.
    pub max_running: usize,
    /// Most open requests beyond `max_running`; further ones are refused.
    pub max_waiting: usize,
    /// Widest verify block of requests that name none.
    pub width: usize,
    /// How widths are chosen.
    pub widths: WidthPolicy,
    /// How memory is held for steps in flight.
    pub discipline: Discipline,
}

/// What the scheduler did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tokens that admitted requests brought, those of retracted ones each time.
    pub admitted_tokens: u64,
    /// How many of them the prefix cache had.
    pub cached_tokens: u64,
    /// Requests sent back to the queue for want of pages.
    pub retractions: u64,
    /// Requests sent back because they turned drafting on without drafter context.
    pub recomputations: u64,
}

/// Requests, and the pages and rows they hold.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) options: SchedulerOptions,
    pub(crate) queue: Queue,
    pub(crate) crew: Crew,
    /// Where each request that has not ended stands in the order of service.
    places: HashMap<u64, Place>,
    pub(crate) cache: PrefixCache,
    pub(crate) rows: Rows,
    pub(crate) widths: Widths,
    /// Pages that become available when the steps in flight land.
    pub(crate) coming: usize,
    /// Where the next step goes on when not all that can decode have room in one.
    pub(crate) cursor: Option<Place>,
    pub(crate) tally: Tally,
    /// Memory for the next plan.
    pub(crate) able: Able,
    /// A landed step, emptied, for the same use.
    pub(crate) spare: Option<StepPlan>,
    arrivals: u64,
}

impl Scheduler {
    /// An idle scheduler.
    ///
    /// # Panics
    /// When a size is below its least.
    pub fn new(mut options: SchedulerOptions) -> Scheduler {
        assert!(options.step_tokens >= 2, "a step has room for a block and a chunk");
        assert!(options.max_running >= 1, "at least one request can run");
        let cache =
            PrefixCache::new(options.bounds.kv_tokens / options.page_size, options.page_size);
        // Of a page that is not whole no token can be used.
        options.bounds.kv_tokens = cache.account().total * options.page_size;
        Scheduler {
            queue: Queue::default(),
            crew: Crew::new(options.max_running),
            places: HashMap::new(),
            cache,
            rows: Rows::new(options.max_running),
            widths: Widths::new(options.widths.clone(), options.bounds.max_width),
            coming: 0,
            cursor: None,
            tally: Tally::default(),
            able: Able::default(),
            spare: None,
            arrivals: 0,
            options,
        }
    }

    /// Queues a request. `id` names it from now on; it must not be in use.
    ///
    /// # Errors
    /// A request that could never run, or one too many.
    pub fn submit(&mut self, id: u64, request: Request) -> Result<(), Reject> {
        if let Admission::Reject(reject) = self.admission(&request) {
            return Err(reject);
        }
        let place = Place::new(request.priority, self.arrivals);
        self.arrivals += 1;
        let other = self.places.insert(id, place);
        assert!(other.is_none(), "request {id} exists already");
        self.queue.push(Sequence::new(id, place, request, &self.options.bounds));
        Ok(())
    }

    /// What would become of a request if it were submitted now.
    pub fn admission(&self, request: &Request) -> Admission {
        if let Err(invalid) = request.check(&self.options.bounds) {
            return Admission::Reject(invalid.into());
        }
        let limit = self.limit();
        if self.places.len() >= limit {
            return Admission::Reject(Reject::QueueFull { limit });
        }
        let overtakes = |first: &Sequence| request.priority > first.request.priority;
        if self.queue.first().is_some_and(|first| !overtakes(first)) {
            return Admission::Wait(Shortage::Turn);
        }
        if self.rows.free() == 0 {
            return Admission::Wait(Shortage::Rows);
        }
        let pages = request.prompt.len().div_ceil(self.options.page_size);
        match pages.checked_sub(self.cache.available()) {
            None | Some(0) => Admission::Admit,
            Some(missing) => Admission::Wait(Shortage::Pages(missing)),
        }
    }

    /// Most requests that may be open, running and waiting.
    pub fn limit(&self) -> usize {
        self.options.max_running.saturating_add(self.options.max_waiting)
    }

    /// Requests that have not ended.
    pub fn open(&self) -> usize {
        self.places.len()
    }

    /// What a request must fit in.
    pub fn bounds(&self) -> &Bounds {
        &self.options.bounds
    }

    /// Ends a request now. What it holds goes into `youngest`, the step in flight, if that
    /// mentions it; text that was held back goes to `text`. `None` when there is no such request
    /// (any more).
    pub fn end(
        &mut self,
        id: u64,
        why: Early,
        youngest: Option<&mut StepPlan>,
        text: &mut Text,
    ) -> Option<Outcome> {
        let place = *self.places.get(&id)?;
        let (committed, cached) = match self.queue.remove(place) {
            Some(mut waiting) => {
                self.places.remove(&id);
                (waiting.commit.end(why, text), waiting.cached)
            }
            None => {
                let running = self.crew.at(place).expect("a request waits or runs");
                let end = (running.sequence.commit.end(why, text), running.sequence.cached);
                self.depart(place, youngest);
                end
            }
        };
        Some(Outcome { id, planned: None, committed, cached: cached.unwrap_or(0) })
    }

    /// Changes whether and how wide a request drafts, from the next plan on. Its tokens stay the
    /// same. Unknown and ended ids are ignored.
    ///
    /// # Errors
    /// A width that the drafter cannot do.
    pub fn set_speculation(&mut self, id: u64, to: Speculation) -> Result<(), RequestError> {
        to.check(&self.options.bounds)?;
        let Some(&place) = self.places.get(&id) else { return Ok(()) };
        if let Some(waiting) = self.queue.get_mut(place) {
            waiting.request.speculation = to;
            return Ok(());
        }
        let running = self.crew.at(place).expect("a request waits or runs");
        running.sequence.request.speculation = to;
        // After tokens that the drafter never saw it starts again from there, by way of the
        // queue: a drafter must not attend to slots that nobody filled.
        if running.lacks_context(&self.options.bounds) && running.course == Course::Stay {
            self.tally.recomputations += 1;
            self.retract(place);
        }
        Ok(())
    }

    /// Takes in how long a landed step took, in seconds: the target's pass with all that comes
    /// with it, and the drafter's pass; `outcomes` follow its rows. Only an adaptive policy uses them. Of a step that reports on
    /// prompt tokens nothing is learned: what that takes is no matter of widths.
    pub fn learn(&mut self, step: &StepPlan, outcomes: &[RowOutcome], verify: f64, draft: f64) {
        if step.rows.iter().any(|row| row.scores.is_some()) {
            return;
        }
        self.widths.learn(step.verified(outcomes), step.drafting(), verify, draft);
    }

    /// Forgets all cached prefixes that no running request uses.
    pub fn flush(&mut self) {
        self.cache.flush();
    }

    /// Nothing waits or runs. (A step may still be in flight.)
    pub fn is_idle(&self) -> bool {
        self.places.is_empty()
    }

    /// Where all pages are. When nothing runs or is in flight, none is in use.
    pub fn pages(&self) -> Account {
        self.cache.account()
    }

    /// Pages that a request could get: those free and cached ones that nobody uses.
    pub fn available(&self) -> usize {
        self.cache.available()
    }

    /// Free rows, and all rows.
    pub fn rows(&self) -> (usize, usize) {
        (self.rows.free(), self.rows.total())
    }

    /// Waiting and running requests.
    pub fn load(&self) -> (usize, usize) {
        (self.queue.len(), self.crew.len())
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Ends a running request's run; its row and pages go with `youngest` while a step in flight
    /// mentions it, or back at once when none does.
    pub(crate) fn depart(&mut self, place: Place, youngest: Option<&mut StepPlan>) {
        let running = self.leave(place);
        self.places.remove(&running.sequence.id);
        let hold = running.in_flight() && self.options.discipline != Discipline::GiveBackEarly;
        if hold {
            let coming = self.cache.reclaimable(&running.lease);
            self.coming += coming;
            let youngest = youngest.expect("a step in flight mentions the request");
            youngest.departed.push(running.depart(coming));
        } else {
            self.give_back(running.depart(0));
        }
    }

    /// Sends a running request back to the queue, now or when the steps that mention it have
    /// landed.
    pub(crate) fn retract(&mut self, place: Place) {
        let running = self.crew.at(place).expect("a running request is retracted");
        let coming = self.cache.reclaimable(&running.lease);
        running.course = Course::Retract { coming };
        self.coming += coming;
        self.requeue_if_landed(place);
    }

    /// Sends a retracted request back to the queue unless a step in flight mentions it. All that
    /// was committed stays, and is recomputed through the cache.
    pub(crate) fn requeue_if_landed(&mut self, place: Place) {
        if self.crew.at(place).is_some_and(|running| running.in_flight()) {
            return;
        }
        let running = self.leave(place);
        let (drafter, kv) = (running.with_drafter(), running.with_kv().len());
        let Running { sequence, row, lease, .. } = running;
        self.rows.release(row);
        self.cache.release(lease, &sequence.tokens[..kv], drafter);
        self.queue.push(sequence);
    }

    /// Takes a request out of the crew.
    fn leave(&mut self, place: Place) -> Running {
        let running = self.crew.remove(place).expect("a running request leaves");
        if let Course::Retract { coming } = running.course {
            self.coming -= coming;
        }
        running
    }
}
