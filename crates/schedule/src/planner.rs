//! The planner: who starts, who computes how many tokens in the next step, and where pages come
//! from when they are short.
//!
//! One budget of tokens covers a step. Verify blocks come first, so that a long prompt cannot
//! starve decoding; while known tokens wait to be computed, a share of the budget is theirs, so
//! that decoding cannot starve prompts.

use crate::plan::{StepPlan, Work};
use crate::queue::{Admission, Shortage};
use crate::request::Speculation;
use crate::scheduler::{Scheduler, SchedulerOptions};
use crate::sequence::{Course, Place, Running};
use crate::width::{Allowance, Want, Wish};
use cache::Row;

/// While known tokens wait, one token in so many of a step is theirs. With a quarter, a crowd whose blocks fill
/// the steps ends requests faster than their successors' prompts are computed.
const CHUNK_SHARE: usize = 2;

/// A running request: its place in the order of service, and its row.
type Seat = (Place, Row);

/// Who can have a part in a step, in order of service.
#[derive(Debug, Default)]
pub(crate) struct Able {
    /// Verify blocks.
    blocks: Vec<Seat>,
    /// Chunks of known tokens.
    chunks: Vec<Seat>,
}

fn seat(running: &Running) -> Seat {
    (running.sequence.place, running.row)
}

impl Scheduler {
    /// Plans the next step; `None` when there is nothing to compute before one lands.
    pub fn plan(&mut self) -> Option<StepPlan> {
        loop {
            let before = self.tally.retractions;
            let step = self.plan_once();
            // Whoever went back to the queue at once has left its pages there, and may start again.
            if step.is_some() || self.tally.retractions == before || self.coming > 0 {
                return step;
            }
        }
    }

    fn plan_once(&mut self) -> Option<StepPlan> {
        self.admit();
        let mut able = std::mem::take(&mut self.able);
        let unsent = self.list(&mut able);
        let share = unsent.min((self.options.step_tokens / CHUNK_SHARE).max(1));
        let mut step = self.spare.take().unwrap_or_else(StepPlan::empty);
        self.plan_blocks(&mut able.blocks, self.options.step_tokens - share, unsent, &mut step);
        self.plan_chunks(&able.chunks, self.options.step_tokens - step.tokens(), &mut step);
        self.able = able;
        if step.rows.is_empty() {
            self.spare = Some(step);
            return None;
        }
        Some(step)
    }

    /// The running requests that are not on their way back to the queue, in order of service.
    fn staying(&self) -> impl Iterator<Item = &Running> {
        self.crew.iter().filter(|running| running.course == Course::Stay)
    }

    /// Lists what the running requests could do next. How many known tokens no step was given
    /// yet.
    fn list(&self, able: &mut Able) -> usize {
        able.blocks.clear();
        able.chunks.clear();
        let mut unsent = 0;
        for running in self.staying() {
            unsent += running.unsent();
            if running.unsent() > 0 {
                able.chunks.push(seat(running));
            } else if running.room() > 0 {
                able.blocks.push(seat(running));
            }
        }
        unsent
    }

    /// Starts waiting requests, in order, while there is room for the first of them.
    fn admit(&mut self) {
        let mut ahead = 0;
        if self.queue.first().is_some() && self.rows.free() > 0 {
            ahead = self.staying().map(|running| self.next_pages(running)).sum();
        }
        while self.admit_first(&mut ahead) == Admission::Admit {}
    }

    /// Starts the first waiting request if, beside its known tokens and its first block, the next
    /// blocks of the running ones fit too: `ahead` pages. Otherwise it would soon be retracted.
    fn admit_first(&mut self, ahead: &mut usize) -> Admission {
        if self.rows.free() == 0 {
            return Admission::Wait(Shortage::Rows);
        }
        let crowd = (self.crew.len() + self.queue.len()).min(self.options.max_running);
        let (bounds, page_size) = (&self.options.bounds, self.options.page_size);
        let Some(first) = self.queue.first_mut() else { return Admission::Wait(Shortage::Turn) };
        first.prospect = self.widths.prospect(crowd, self.options.width.min(bounds.max_width));
        let (known, place) = (first.tokens.len(), first.place);
        let findable = first.findable();
        let (mut lease, found) = self.cache.acquire(findable, first.need(bounds));
        let width = first.width(bounds, self.options.width);
        let slots = (known + width).min(first.capacity());
        let pages = slots.div_ceil(page_size) - lease.pages().len() + *ahead;
        let missing = pages.saturating_sub(self.cache.available());
        let matched = found.pages * page_size;
        if missing > 0 {
            self.cache.release(lease, &findable[..matched], 0);
            return Admission::Wait(Shortage::Pages(missing));
        }
        self.cache.grow(&mut lease, known).expect("the pages were counted");
        let row = self.rows.take().expect("a row is free: just asked");
        let mut sequence = self.queue.remove(place).expect("it is the first");
        sequence.found(matched);
        self.widths.admitted();
        self.tally.admitted_tokens += known as u64;
        self.tally.cached_tokens += matched as u64;
        let drafter = found.with_drafter * page_size;
        let discipline = self.options.discipline;
        let running = Running::new(sequence, row, lease, (matched, drafter), discipline);
        *ahead += self.next_pages(&running);
        self.crew.push(running);
        Admission::Admit
    }

    /// Pages that a request's next block would need.
    fn next_pages(&self, running: &Running) -> usize {
        let sequence = &running.sequence;
        let width = sequence.width(&self.options.bounds, self.options.width);
        let slots = running.reach(width);
        slots.div_ceil(self.options.page_size).saturating_sub(running.lease.pages().len())
    }

    /// Plans verify blocks of at most `budget` tokens. Chunks will follow: as much of `unsent` as has
    /// room. What has none is not spared by narrow blocks, it comes later.
    ///
    /// More `seats` than have room for one token each take turns. Where nobody whose turn it is can be given pages,
    /// since all that come later in the order of service have none to give, it is the turn of the next: of those
    /// one can.
    fn plan_blocks(
        &mut self,
        seats: &mut [Seat],
        budget: usize,
        unsent: usize,
        step: &mut StepPlan,
    ) {
        if seats.len() <= budget {
            self.cursor = None;
            return self.plan_turn(seats, budget, unsent, step);
        }
        let before = |cursor| seats.partition_point(|&(place, _)| place < cursor);
        let start = self.cursor.map_or(0, before) % seats.len();
        seats.rotate_left(start);
        let mut next = 0;
        while step.rows.is_empty() && next < seats.len() && budget > 0 {
            let end = seats.len().min(next + budget);
            self.cursor = Some(seats[end % seats.len()].0);
            let turn = &mut seats[next..end];
            // Who gave its pages away in an earlier turn of this step has no seat any more.
            let mut seated = 0;
            for i in 0..turn.len() {
                if self.crew.holder(turn[i].1).is_some() {
                    turn.swap(seated, i);
                    seated += 1;
                }
            }
            let turn = &mut turn[..seated];
            turn.sort_unstable_by_key(|&(place, _)| place);
            self.plan_turn(turn, budget, unsent, step);
            next = end;
        }
    }

    /// Plans blocks for `seats`, which have room for one token each, in order of service.
    fn plan_turn(&mut self, seats: &[Seat], budget: usize, unsent: usize, step: &mut StepPlan) {
        let Scheduler { crew, options, widths, .. } = self;
        let holder = |&(_, row): &Seat| crew.holder(row).expect("it was just listed");
        let wishes: Vec<Wish<'_>> =
            seats.iter().map(holder).map(|running| wish(running, options)).collect();
        let allowed = widths.choose(&wishes, budget, unsent.min(options.step_tokens));
        for (&(_, row), Allowance { width, price, likely }) in seats.iter().zip(allowed) {
            let Some(width) = self.reserve(row, width) else { continue };
            let running = self.crew.holder_mut(row).expect("its pages were just reserved");
            let (bounds, page_size) = (&self.options.bounds, self.options.page_size);
            let work = Work::Block { width, price, likely };
            step.rows.push(running.plan(work, bounds, page_size, &mut step.table));
        }
    }

    /// Leases the slots of a request's next block: from free pages, then from cached ones. A
    /// block that does not fit is narrower; when not even one token fits, the youngest request
    /// gives up its pages. The width that fits; `None` when the request was retracted itself or
    /// must wait.
    fn reserve(&mut self, row: Row, width: usize) -> Option<usize> {
        let page_size = self.options.page_size;
        loop {
            let running = self.crew.holder_mut(row)?;
            if running.course != Course::Stay {
                return None;
            }
            let pages = running.lease.pages().len() + self.cache.available();
            let width = width.min(running.block_within(pages * page_size));
            if width > 0 {
                let slots = running.reach(width);
                self.cache.grow(&mut running.lease, slots).expect("the pages were counted");
                return Some(width);
            }
            // Pages that are on their way are waited for, not taken from anybody else.
            if self.coming > 0 {
                return None;
            }
            let place = running.sequence.place;
            let outside = self.cache.outside(&running.lease);
            let first = self.staying().next().map(|running| running.sequence.place);
            let retracted = match self.youngest_after(place) {
                Some(youngest) => youngest,
                None if first != Some(place) => return None,
                None => {
                    // Pages of its prefix may be there twice: those it reads, and others that came
                    // with drafter context since. It fits when it starts again, on the latter.
                    assert_ne!(outside, 0, "a request that is served first fits alone");
                    place
                }
            };
            self.tally.retractions += 1;
            self.retract(retracted);
        }
    }

    /// The last in the order of service that stays, if it comes after `place`.
    fn youngest_after(&self, place: Place) -> Option<Place> {
        let mut staying = self.crew.iter().rev().filter(|r| r.course == Course::Stay);
        staying.next().map(|running| running.sequence.place).filter(|&last| last > place)
    }

    /// Plans chunks of known tokens, at most `budget`, in order of service.
    fn plan_chunks(&mut self, seats: &[Seat], mut budget: usize, step: &mut StepPlan) {
        for &(_, row) in seats {
            if budget == 0 {
                return;
            }
            // Blocks may have had it retracted for its pages.
            let Some(running) = self.crew.holder_mut(row) else { continue };
            if running.course != Course::Stay {
                continue;
            }
            let len = running.unsent().min(budget);
            budget -= len;
            let work = running.chunk(len);
            let (bounds, page_size) = (&self.options.bounds, self.options.page_size);
            step.rows.push(running.plan(work, bounds, page_size, &mut step.table));
        }
    }
}

/// What a request would like to verify next.
fn wish<'a>(running: &'a Running, options: &SchedulerOptions) -> Wish<'a> {
    let sequence = &running.sequence;
    let width = sequence.width(&options.bounds, options.width).min(running.room());
    let want = match sequence.request.speculation {
        Speculation::Width(_) => Want::Exactly,
        Speculation::Auto | Speculation::Off => Want::AtMost,
    };
    Wish { width, want, acceptance: &sequence.acceptance }
}

#[cfg(test)]
mod tests {
    use crate::{
        Bounds, Discipline, Limits, Request, RowOutcome, Scheduler, SchedulerOptions, Text,
        WidthPolicy, Work,
    };
    use std::collections::HashMap;

    fn options() -> SchedulerOptions {
        SchedulerOptions {
            bounds: Bounds { vocab: 100, context: 200, kv_tokens: 256, max_width: 8 },
            page_size: 4,
            step_tokens: 40,
            max_running: 6,
            max_waiting: 100,
            width: 8,
            widths: WidthPolicy::Fixed,
            discipline: Discipline::Sound,
        }
    }

    fn request(id: usize) -> Request {
        Request {
            limits: Limits { max_tokens: Some(3 + id * 7 % 60), ..Limits::default() },
            ..Request::new((0..5 + id % 40).map(|i| (i + id % 3) as u32).collect())
        }
    }

    /// The writes of all steps, replayed, give every planned row exactly its lease.
    #[test]
    fn the_page_table_follows_the_leases() {
        let mut scheduler = Scheduler::new(options());
        (0..60).for_each(|id| scheduler.submit(id as u64, request(id)).expect("it is in bounds"));
        let mut table: HashMap<usize, Vec<u32>> = HashMap::new();
        let (mut written, mut text) = (0, Text::default());
        while let Some(plan) = scheduler.plan() {
            for write in plan.table.iter() {
                let entries = table.entry(write.row).or_default();
                entries.truncate(write.first);
                assert_eq!(entries.len(), write.first, "the entries before are there");
                entries.extend(write.pages);
                written += write.pages.len();
            }
            for row in &plan.rows {
                let lease =
                    scheduler.crew.holder(row.row).expect("a planned row runs").lease.pages();
                assert_eq!(table[&row.row.index], lease);
                assert!(row.pages <= lease.len());
            }
            let outcome = |work: &Work| match work {
                Work::Block { width, .. } => {
                    let (accepted, drafted) = (width / 3, width - 1);
                    let tokens = vec![9; accepted + 1];
                    RowOutcome { tokens, accepted, drafted, ..RowOutcome::default() }
                }
                Work::Chunk { then: crate::Then::Choose, .. } => {
                    RowOutcome { tokens: vec![9], ..RowOutcome::default() }
                }
                Work::Chunk { .. } => RowOutcome::default(),
            };
            let outcomes: Vec<_> = plan.rows.iter().map(|row| outcome(&row.work)).collect();
            let _ = scheduler.land(plan, &outcomes, None, |_| b"", &mut text);
        }
        assert!(scheduler.is_idle() && written > 60);
        assert!(scheduler.tally().retractions > 0, "leases were lost on the way");
    }
}
