//! The loop: plan and launch a step, then land the one before it.

use crate::open::Part;
use crate::output::Update;
use crate::recent::{Span, StepRecord};
use crate::step::{InFlight, Landed};
use crate::{Engine, EngineLost};
use device::{HostDevice, Track};
use schedule::{Text, Work};
use std::time::Duration;

impl<D: HostDevice> Engine<D> {
    /// One turn of the loop: ends the requests whose time is up, plans and launches a step, then
    /// lands the one before it. Returns what became known; possibly nothing. Each request ends
    /// with exactly one update whose `finished` is set.
    ///
    /// # Errors
    /// [`EngineLost`] when the device stopped.
    pub fn turn(&mut self) -> Result<Vec<Update>, EngineLost> {
        self.expire();
        self.pipeline.before_plan()?;
        let start = self.clock.now();
        let planned = self.scheduler.plan().inspect(|plan| {
            self.requests.started(plan, start);
            self.clock.work("plan", plan.rows.len());
        });
        let launched = planned.map(|plan| self.pipeline.launch(plan, start));
        self.counters.planning += self.clock.now() - start;
        self.span(Track::Host, "plan and launch", start);
        let before = std::mem::replace(&mut self.in_flight, launched);
        let mut updates = std::mem::take(&mut self.ready);
        if let Some(step) = before {
            if self.in_flight.as_ref().is_some_and(|_| !step.arrived()) {
                self.counters.led += 1;
            }
            updates.extend(self.land(step)?);
        }
        Ok(updates)
    }

    /// Waits for a step, the only wait of the host, and commits what it found.
    fn land(&mut self, step: InFlight<D>) -> Result<Vec<Update>, EngineLost> {
        let waited = self.clock.now();
        let Landed { plan, outcomes, mut aside, planned, spans } = step.land()?;
        let now = self.clock.now();
        self.counters.steps += 1;
        self.counters.rows += plan.rows.len() as u64;
        let tokens = plan.verified(&outcomes);
        self.counters.tokens += tokens as u64;
        self.counters.times += aside.times;
        let times = aside.times;
        let verify = (times.verify + times.absorb).as_secs_f64();
        self.scheduler.learn(&plan, &outcomes, verify, times.draft.as_secs_f64());
        let mut note = StepRecord {
            number: self.counters.steps - 1,
            tokens,
            drafted: outcomes.iter().map(|row| row.drafted).sum(),
            accepted: outcomes.iter().map(|row| row.accepted).sum(),
            planned,
            lanes: spans.all(),
            times,
            landing: Span { start: waited, end: now },
            ..StepRecord::default()
        };
        let verified: Vec<bool> =
            plan.rows.iter().map(|row| matches!(row.work, Work::Block { .. })).collect();
        let vocabulary = self.vocabulary.clone();
        let youngest = self.in_flight.as_mut().map(|step| &mut step.plan);
        let (piece, mut text) = (|token| vocabulary.piece(token), Text::default());
        let landed = self.scheduler.land(plan, &outcomes, youngest, piece, &mut text);
        let mut updates = Vec::with_capacity(landed.len());
        for outcome in landed {
            let row = outcome.planned.expect("a landed row was planned");
            let part = Part {
                verified: verified[row],
                outcome: &outcomes[row],
                logprobs: &aside.logprobs[row],
                prompt: std::mem::take(&mut aside.prompts[row]),
                drafts: &aside.drafts[row],
            };
            updates.push(self.update(outcome, &text, Some(part), now));
        }
        self.clock.work("commit", outcomes.len());
        note.blocks = verified.iter().filter(|block| **block).count();
        note.chunks = verified.len() - note.blocks;
        note.kept = updates.iter().map(|update| update.tokens.len()).sum();
        note.committed = Span { start: now, end: self.clock.now() };
        self.counters.committing += note.committed.end - now;
        self.recent.push(note);
        self.span(Track::Host, "commit", now);
        Ok(updates)
    }

    /// Shows in a trace what was done since `start`.
    pub(crate) fn span(&self, track: Track, what: &'static str, start: Duration) {
        self.device().recorder().inspect(|recorder| recorder.span(track, what, start));
    }
}
