//! The loop: plan and launch a step, then land the one before it.

use crate::output::{Finished, Segment, Stats, TokenOut, Update};
use crate::step::{InFlight, Landed};
use crate::{Engine, EngineLost, RequestId};
use device::{HostDevice, Recorder, Track};
use kernels::choose::LogProbs;
use model::tokenizer::Detokenizer;
use schedule::{FinishReason, Origin, Outcome, RowOutcome, StepPlan, Work};
use std::time::{Duration, Instant};

/// A request that has not ended, as its owner sees it.
pub(crate) struct Open {
    submitted: Instant,
    started: bool,
    /// The recorder's time then.
    traced: Option<Duration>,
    stats: Stats,
    text: Detokenizer,
}

impl Open {
    pub(crate) fn new(prompt_tokens: usize, traced: Option<Duration>) -> Open {
        let stats = Stats { prompt_tokens, ..Stats::default() };
        Open {
            submitted: Instant::now(),
            started: false,
            traced,
            stats,
            text: Detokenizer::default(),
        }
    }
}

impl<D: HostDevice> Engine<D> {
    /// One turn of the loop: plans and launches a step, then lands the one before it. Returns
    /// what became known; possibly nothing. Each request ends with exactly one update whose
    /// `finished` is set.
    ///
    /// # Errors
    /// [`EngineLost`] when the device stopped.
    pub fn turn(&mut self) -> Result<Vec<Update>, EngineLost> {
        self.pipeline.before_plan()?;
        let (began, start) = (Instant::now(), self.now());
        let launched = self.scheduler.plan().map(|plan| {
            self.note_started(&plan);
            self.pipeline.launch(plan)
        });
        self.counters.planning += began.elapsed();
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

    /// Notes which requests begin with `plan`. The first work of each is a chunk.
    fn note_started(&mut self, plan: &StepPlan) {
        for row in plan.rows.iter().filter(|row| matches!(row.work, Work::Chunk { .. })) {
            let open = self.open.get_mut(&RequestId(row.id)).expect("a planned request is open");
            if !std::mem::replace(&mut open.started, true) {
                open.stats.queued = open.submitted.elapsed();
            }
        }
    }

    /// Waits for a step, the only wait of the host, and commits what it found.
    fn land(&mut self, step: InFlight<D>) -> Result<Vec<Update>, EngineLost> {
        let Landed { plan, outcomes, aside } = step.land()?;
        let (began, start) = (Instant::now(), self.now());
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
        let landed =
            self.scheduler.land(plan, &outcomes, youngest, |token| vocabulary.piece(token));
        let mut updates = Vec::with_capacity(landed.len());
        for outcome in landed {
            let row = outcome.planned.expect("a landed row was planned");
            let part = Part {
                verified: verified[row],
                outcome: &outcomes[row],
                logprobs: &aside.logprobs[row],
            };
            updates.push(self.update(outcome, Some(part)));
        }
        self.counters.committing += began.elapsed();
        self.span(Track::Host, "commit", start);
        Ok(updates)
    }

    /// The recorder's time, when the device has one.
    pub(crate) fn now(&self) -> Option<Duration> {
        self.device().recorder().map(Recorder::now)
    }

    /// Shows in a trace what was done since `start`.
    fn span(&self, track: Track, what: &'static str, start: Option<Duration>) {
        if let (Some(recorder), Some(start)) = (self.device().recorder(), start) {
            recorder.span(track, what, start);
        }
    }

    /// Turns an outcome into its owner's update, and closes the request when it ended.
    pub(crate) fn update(&mut self, outcome: Outcome, part: Option<Part<'_>>) -> Update {
        let id = RequestId(outcome.id);
        let committed = outcome.committed;
        let open = self.open.get_mut(&id).expect("an outcome belongs to an open request");
        let mut tokens = Vec::with_capacity(committed.kept);
        if let Some(part) = part {
            open.count(&part, committed.taken);
            tokens.extend((0..committed.kept).map(|i| part.token(i)));
        }
        if !tokens.is_empty() && open.stats.output_tokens == 0 {
            open.stats.first_token = open.submitted.elapsed();
        }
        open.stats.output_tokens += tokens.len();
        let text = open.decode(&committed.text);
        let finished = committed.finish.map(|reason| self.close(id, reason));
        Update { id, tokens, text, finished }
    }

    fn close(&mut self, id: RequestId, reason: FinishReason) -> Finished {
        let open = self.open.remove(&id).expect("a request ends once");
        self.span(Track::Request(id.0), "request", open.traced);
        let stats = Stats { total: open.submitted.elapsed(), ..open.stats };
        Finished { reason, stats }
    }
}

/// A request's part in a landed step.
pub(crate) struct Part<'a> {
    /// The row was a verify block, not a chunk.
    verified: bool,
    outcome: &'a RowOutcome,
    logprobs: &'a [LogProbs],
}

impl Part<'_> {
    fn token(&self, i: usize) -> TokenOut {
        TokenOut {
            id: self.outcome.tokens[i],
            drafted: i < self.outcome.accepted,
            logprobs: self.logprobs.get(i).cloned(),
        }
    }
}

impl Open {
    /// Counts a verify pass of which `taken` tokens were used. Tokens after a stop never happened.
    fn count(&mut self, part: &Part<'_>, taken: usize) {
        if !part.verified || taken == 0 {
            return;
        }
        let stats = &mut self.stats;
        let accepted = part.outcome.accepted.min(taken);
        stats.steps += 1;
        stats.committed += taken;
        stats.drafted += part.outcome.drafted;
        if stats.accepted.len() <= accepted {
            stats.accepted.resize(accepted + 1, 0);
        }
        stats.accepted[accepted] += 1;
    }

    /// The whole characters that became known; an incomplete one waits for its bytes.
    fn decode(&mut self, runs: &[(Origin, Vec<u8>)]) -> Vec<Segment> {
        let mut segments = Vec::with_capacity(runs.len());
        for (origin, bytes) in runs {
            let mut text = String::new();
            self.text.push(bytes, &mut text);
            if !text.is_empty() {
                segments.push(Segment { text, drafted: *origin == Origin::Draft });
            }
        }
        segments
    }
}
