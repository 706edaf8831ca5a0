//! The loop: plan and launch a step, then land the one before it.

use crate::open::Part;
use crate::output::Update;
use crate::step::{InFlight, Landed};
use crate::{Engine, EngineLost};
use device::{HostDevice, Recorder, Track};
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
        let (start, began) = (self.now(), self.clock.now());
        let planned = self.scheduler.plan().inspect(|plan| self.requests.started(plan, began));
        let launched = planned.map(|plan| self.pipeline.launch(plan));
        self.counters.planning += self.clock.now() - began;
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
        let Landed { plan, outcomes, aside } = step.land()?;
        let (start, now) = (self.now(), self.clock.now());
        self.counters.steps += 1;
        self.counters.rows += plan.rows.len() as u64;
        self.counters.tokens += plan.tokens() as u64;
        self.counters.times += aside.times;
        let times = aside.times;
        let verify = (times.verify + times.absorb).as_secs_f64();
        self.scheduler.learn(&plan, verify, times.draft.as_secs_f64());
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
            };
            updates.push(self.update(outcome, &text, Some(part), now));
        }
        self.counters.committing += self.clock.now() - now;
        self.span(Track::Host, "commit", start);
        Ok(updates)
    }

    /// The recorder's time, when the device has one.
    pub(crate) fn now(&self) -> Option<Duration> {
        self.device().recorder().map(Recorder::now)
    }

    /// Shows in a trace what was done since `start`.
    pub(crate) fn span(&self, track: Track, what: &'static str, start: Option<Duration>) {
        if let (Some(recorder), Some(start)) = (self.device().recorder(), start) {
            recorder.span(track, what, start);
        }
    }
}
