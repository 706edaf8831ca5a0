//! What a landed step changes: tokens are committed, prompts become shareable, requests end or go
//! back to the queue, and what departed with the step is free again.

use crate::commit::Committed;
use crate::plan::{Departed, PlannedRow, RowOutcome, StepPlan, Then, Work};
use crate::request::FinishReason;
use crate::scheduler::Scheduler;
use crate::sequence::{Course, Running};
use crate::text::{Origin, Text};
use crate::width::Widths;

/// What became known of a request.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// The request.
    pub id: u64,
    /// Which of the plan's rows it was; `None` when the request was ended outside a step.
    pub planned: Option<usize>,
    /// What is kept.
    pub committed: Committed,
    /// Prompt tokens that came from the prefix cache when the request first started.
    pub cached: usize,
}

impl Scheduler {
    /// Lands a step: commits what it chose and releases what departed with it. `outcomes` follows
    /// the plan's rows. `youngest` is the step in flight behind it, if any: requests that end now
    /// but are mentioned there keep their pages until it lands. `piece` gives a token's bytes;
    /// what becomes final of them goes to `text`.
    pub fn land<'p>(
        &mut self,
        mut landed: StepPlan,
        outcomes: &[RowOutcome],
        mut youngest: Option<&mut StepPlan>,
        piece: impl Fn(u32) -> &'p [u8],
        text: &mut Text,
    ) -> Vec<Outcome> {
        assert_eq!(landed.rows.len(), outcomes.len(), "one outcome a planned row");
        let mut result = Vec::with_capacity(outcomes.len());
        for (planned, (row, outcome)) in landed.rows.iter().zip(outcomes).enumerate() {
            let held = self.rows.holds(row.row);
            assert!(held, "row {} was given back while a step mentioned it", row.row.index);
            // A request that departed in the meantime has no place here any more, and its row
            // may already have another generation: what the step found for it is dropped.
            let Some(running) = self.crew.holder_mut(row.row) else { continue };
            observe(&mut self.widths, running, row, outcome);
            let committed = commit(running, row, outcome, &piece, text);
            let place = running.sequence.place;
            let (id, cached) = (row.id, running.sequence.cached.unwrap_or(0));
            if committed.finish.is_some() {
                self.depart(place, youngest.as_deref_mut());
            } else if running.course != Course::Stay {
                self.requeue_if_landed(place);
            } else if matches!(row.work, Work::Chunk { then: Then::Choose, .. }) {
                // The pages of a complete prompt serve others while its owner decodes.
                let (known, drafter) = (running.with_kv().len(), running.with_drafter());
                let Running { lease, sequence, .. } = running;
                self.cache.publish(lease, &sequence.tokens[..known], drafter);
            }
            result.push(Outcome { id, planned: Some(planned), committed, cached });
        }
        for departed in landed.departed.drain(..) {
            self.coming -= departed.coming;
            self.give_back(departed);
        }
        landed.clear();
        self.spare = Some(landed);
        if self.rows.free() == self.rows.total() {
            assert_eq!(self.cache.account().in_use, 0, "pages are in use that no request holds");
        }
        result
    }

    pub(crate) fn give_back(&mut self, departed: Departed) {
        let Departed { row, lease, tokens, drafter, coming: _ } = departed;
        self.rows.release(row);
        self.cache.release(lease, &tokens, drafter);
    }
}

/// Commits what a step chose for a request.
fn commit<'p>(
    running: &mut Running,
    row: &PlannedRow,
    outcome: &RowOutcome,
    piece: impl Fn(u32) -> &'p [u8],
    text: &mut Text,
) -> Committed {
    let computed = match &row.work {
        Work::Chunk { tokens, .. } => tokens.len(),
        Work::Block { .. } => outcome.tokens.len(),
    };
    running.land(&row.work, computed);
    let origin = |i| if i < outcome.accepted { Origin::Draft } else { Origin::Target };
    let offered = outcome.tokens.iter().enumerate().map(|(i, &token)| (token, origin(i)));
    let sequence = &mut running.sequence;
    row.scores.iter().for_each(|scores| sequence.reported(scores));
    if let Work::Chunk { then: Then::End, .. } = row.work {
        return Committed { finish: Some(FinishReason::Length), ..Committed::default() };
    }
    let committed = sequence.commit.offer(offered, outcome.end, piece, text);
    sequence.tokens.extend_from_slice(&outcome.tokens[..committed.kept]);
    committed
}

/// Lets the next widths know how a request's drafts did.
fn observe(widths: &mut Widths, running: &mut Running, row: &PlannedRow, outcome: &RowOutcome) {
    let Work::Block { width, .. } = row.work else { return };
    let own = &mut running.sequence.acceptance;
    if !outcome.chances.is_empty() {
        widths.observe(own, &outcome.chances);
    } else if width > 1 && !outcome.tokens.is_empty() {
        widths.observe_silence(own);
    }
}
