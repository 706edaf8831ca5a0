//! Requests that have not ended, as their owners see them: their deadlines, their counts, and the
//! text that their tokens become.

use crate::output::{Finished, PromptToken, Segment, Stats, TokenOut, Update};
use crate::{Engine, RequestId};
use device::{HostDevice, Track};
use kernels::choose::LogProbs;
use model::tokenizer::Detokenizer;
use schedule::{Early, FinishReason, Origin, Outcome, RowOutcome, StepPlan, Text, Work};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// The open requests.
#[derive(Default)]
pub(crate) struct Requests {
    by_id: HashMap<RequestId, Open>,
    /// When time is up, and for whom.
    deadlines: BTreeSet<(Duration, RequestId)>,
}

/// A request that has not ended.
struct Open {
    /// Times are the device's clock's.
    submitted: Duration,
    deadline: Option<Duration>,
    /// When a step was first given some of it.
    started: Option<Duration>,
    stats: Stats,
    text: Detokenizer,
}

/// A request's part in a landed step.
pub(crate) struct Part<'a> {
    /// The row was a verify block, not a chunk.
    pub(crate) verified: bool,
    pub(crate) outcome: &'a RowOutcome,
    pub(crate) logprobs: &'a [LogProbs],
    /// What it reported of the prompt.
    pub(crate) prompt: Vec<PromptToken>,
    /// What the block looked at.
    pub(crate) drafts: &'a [u32],
}

impl Requests {
    /// Takes a request in that was submitted at `submitted`.
    pub(crate) fn add(
        &mut self,
        id: RequestId,
        prompt_tokens: usize,
        submitted: Duration,
        timeout: Option<Duration>,
    ) {
        // A time that no clock reaches is none.
        let deadline = timeout.and_then(|timeout| submitted.checked_add(timeout));
        let stats = Stats { prompt_tokens, ..Stats::default() };
        let text = Detokenizer::default();
        self.deadlines.extend(deadline.map(|deadline| (deadline, id)));
        self.by_id.insert(id, Open { submitted, deadline, started: None, stats, text });
    }

    /// Those whose time is up at `now`.
    fn overdue(&self, now: Duration) -> Vec<RequestId> {
        let due = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
        due.map(|&(_, id)| id).collect()
    }

    /// Notes which requests begin with `plan`, which is launched at `now`. The first work of each
    /// is a chunk.
    pub(crate) fn started(&mut self, plan: &StepPlan, now: Duration) {
        for row in plan.rows.iter().filter(|row| matches!(row.work, Work::Chunk { .. })) {
            let open = self.by_id.get_mut(&RequestId(row.id)).expect("a planned request is open");
            open.started.get_or_insert(now);
        }
    }

    fn remove(&mut self, id: RequestId) -> Open {
        let open = self.by_id.remove(&id).expect("a request ends once");
        if let Some(deadline) = open.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        open
    }
}

impl<D: HostDevice> Engine<D> {
    /// Ends the requests whose time is up, before anything more is planned for them.
    pub(crate) fn expire(&mut self) {
        for id in self.requests.overdue(self.clock.now()) {
            self.end(id, Early::TimedOut);
        }
    }

    /// Ends a request now; its last update goes out with the next turn.
    pub(crate) fn end(&mut self, id: RequestId, why: Early) {
        let youngest = self.in_flight.as_mut().map(|step| &mut step.plan);
        let mut text = Text::default();
        if let Some(outcome) = self.scheduler.end(id.0, why, youngest, &mut text) {
            let update = self.update(outcome, &text, None, self.clock.now());
            self.ready.push(update);
        }
    }

    /// Turns an outcome that became known at `now`, its text in `text`, into its owner's update,
    /// and closes the request when it ended.
    pub(crate) fn update(
        &mut self,
        outcome: Outcome,
        text: &Text,
        part: Option<Part<'_>>,
        now: Duration,
    ) -> Update {
        let id = RequestId(outcome.id);
        let committed = outcome.committed;
        let open = self.requests.by_id.get_mut(&id);
        let open = open.expect("an outcome belongs to an open request");
        open.stats.cached_tokens = outcome.cached;
        let (mut tokens, mut refused) = (Vec::with_capacity(committed.kept), Vec::new());
        let mut prompt = Vec::new();
        if let Some(part) = part {
            open.count(&part, committed.taken);
            refused.extend(part.refused(committed.taken));
            tokens.extend((0..committed.kept).map(|i| part.token(i)));
            prompt = part.prompt;
        }
        if !tokens.is_empty() && open.stats.output_tokens == 0 {
            open.stats.first_token = now - open.submitted;
        }
        open.stats.output_tokens += tokens.len();
        let text = open.decode(text.runs(committed.text));
        let finished = committed.finish.map(|reason| self.close(id, reason, now));
        Update { id, prompt, tokens, text, refused, finished }
    }

    fn close(&mut self, id: RequestId, reason: FinishReason, now: Duration) -> Finished {
        let open = self.requests.remove(id);
        self.span(Track::Request(id.0), "request", open.submitted);
        let stats = Stats {
            queued: open.started.unwrap_or(now) - open.submitted,
            total: now - open.submitted,
            ..open.stats
        };
        Finished { reason, stats }
    }
}

impl Part<'_> {
    fn token(&self, i: usize) -> TokenOut {
        TokenOut {
            id: self.outcome.tokens[i],
            drafted: i < self.outcome.accepted,
            logprobs: self.logprobs.get(i).cloned(),
        }
    }

    /// The drafts that were refused, of a pass of which `taken` tokens were used: none when the
    /// request ended before the first that differs.
    fn refused(&self, taken: usize) -> &[u32] {
        let accepted = self.outcome.accepted;
        if taken > accepted { &self.drafts[accepted..] } else { &[] }
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
    fn decode<'t>(
        &mut self,
        runs: impl ExactSizeIterator<Item = (Origin, &'t [u8])>,
    ) -> Vec<Segment> {
        let mut segments = Vec::with_capacity(runs.len());
        for (origin, bytes) in runs {
            let mut text = String::new();
            self.text.push(bytes, &mut text);
            if !text.is_empty() {
                segments.push(Segment { text, drafted: origin == Origin::Draft });
            }
        }
        segments
    }
}
