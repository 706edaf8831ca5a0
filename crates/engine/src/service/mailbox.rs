//! What callers want of the engine's thread, and what it tells them. All of it is bounded: by the
//! requests that may be open, each of which has one ticket.

use super::{Sink, SubmitError};
use crate::{EngineLost, Reject, Request, RequestId, Snapshot, Speculation};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between the callers and the engine's thread. Nothing panics while its lock is held.
pub(super) struct Mailbox {
    state: Mutex<State>,
    /// There are orders, or the phase has changed.
    changed: Condvar,
    /// Most requests that may be open.
    limit: usize,
}

struct State {
    orders: Orders,
    /// Submitted and not ended.
    open: usize,
    phase: Phase,
    /// After the last turn.
    snapshot: Snapshot,
}

enum Phase {
    Open,
    Draining,
    Stopping,
    Ended(Option<EngineLost>),
}

/// What the engine's thread is to do before its next turn, in the order of the fields.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) submissions: Vec<Submission>,
    /// The last word for each request.
    pub(super) speculation: BTreeMap<RequestId, Speculation>,
    pub(super) cancelled: BTreeSet<RequestId>,
    pub(super) then: Then,
}

/// What becomes of the open requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Then {
    #[default]
    GoOn,
    CancelAll,
}

pub(super) struct Submission {
    pub(super) id: RequestId,
    pub(super) request: Request,
    /// By the device's clock.
    pub(super) submitted: Duration,
    pub(super) sink: Sink,
}

impl Orders {
    fn is_empty(&self) -> bool {
        self.submissions.is_empty() && self.speculation.is_empty() && self.cancelled.is_empty()
    }
}

impl State {
    fn take(&mut self) -> Orders {
        let then = match self.phase {
            Phase::Stopping => Then::CancelAll,
            Phase::Open | Phase::Draining | Phase::Ended(_) => Then::GoOn,
        };
        Orders { then, ..std::mem::take(&mut self.orders) }
    }
}

/// The callers' side.
impl Mailbox {
    pub(super) fn new(limit: usize, snapshot: Snapshot) -> Mailbox {
        let state = State { orders: Orders::default(), open: 0, phase: Phase::Open, snapshot };
        Mailbox { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn post(&self, submission: Submission) -> Result<(), SubmitError> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Open if state.open < self.limit => {}
            Phase::Open => return Err(Reject::QueueFull { limit: self.limit }.into()),
            Phase::Ended(Some(lost)) => return Err(lost.clone().into()),
            Phase::Draining | Phase::Stopping | Phase::Ended(None) => {
                return Err(SubmitError::Closed);
            }
        }
        state.open += 1;
        state.orders.submissions.push(submission);
        self.changed.notify_one();
        Ok(())
    }

    pub(super) fn cancel(&self, id: RequestId) {
        self.order(|orders| {
            orders.cancelled.insert(id);
        });
    }

    pub(super) fn set_speculation(&self, id: RequestId, to: Speculation) {
        self.order(|orders| {
            orders.speculation.insert(id, to);
        });
    }

    fn order(&self, what: impl FnOnce(&mut Orders)) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Ended(_)) {
            what(&mut state.orders);
            self.changed.notify_one();
        }
    }

    pub(super) fn drain(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open) {
            state.phase = Phase::Draining;
            self.changed.notify_one();
        }
    }

    pub(super) fn shutdown(&self) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open | Phase::Draining) {
            state.phase = Phase::Stopping;
            self.changed.notify_one();
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        // Those who have come since the last turn included.
        let waiting = state.open.saturating_sub(state.snapshot.running);
        Snapshot { waiting, ..state.snapshot }
    }
}

/// The side of the engine's thread.
impl Mailbox {
    /// What there is to do. Never waits.
    pub(super) fn take(&self) -> Orders {
        self.lock().take()
    }

    /// Sleeps until there is something to do, for an engine that has nothing; `None` when there
    /// never will be.
    pub(super) fn wait(&self) -> Option<Orders> {
        let mut state = self.lock();
        while state.orders.is_empty() {
            if !matches!(state.phase, Phase::Open) {
                state.phase = Phase::Ended(None);
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(state.take())
    }

    /// After a turn that ended `ended` requests. They count no more when their sinks hear of it.
    pub(super) fn settle(&self, ended: usize, snapshot: Snapshot) {
        let mut state = self.lock();
        state.open -= ended;
        state.snapshot = snapshot;
    }

    /// After a failure: nothing more is taken. Returns the sinks of the submissions that were
    /// never looked at.
    pub(super) fn fail(&self, lost: &EngineLost) -> Vec<Sink> {
        let mut state = self.lock();
        state.phase = Phase::Ended(Some(lost.clone()));
        state.open = 0;
        state.snapshot = Snapshot { waiting: 0, running: 0, ..state.snapshot };
        let orders = std::mem::take(&mut state.orders);
        orders.submissions.into_iter().map(|submission| submission.sink).collect()
    }
}
