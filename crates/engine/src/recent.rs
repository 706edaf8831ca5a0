//! When the newest steps were where: planned, in flight, landed. For whoever wants to see the lanes
//! at work; a [`device::Recorder`] writes more down, and costs more.
//!
//! A step is noted once it has landed, in memory that does not grow. That costs a dozen readings of
//! the clock and a lock that nobody else holds for long: next to nothing beside a step of a model.

use crate::counters::StepTimes;
use device::{Clock, LANES, LaneId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Steps that are kept.
pub const RECENT_STEPS: usize = 64;

/// From when to when, by the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub start: Duration,
    /// Its end; never before `start`.
    pub end: Duration,
}

/// One landed step: what it was, and when it was where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// Steps that landed before it.
    pub number: u64,
    /// Rows that were chunks of known tokens.
    pub chunks: usize,
    /// Rows that were verify blocks.
    pub blocks: usize,
    /// Tokens that the target's pass had room for.
    pub tokens: usize,
    /// Drafts that its blocks looked at.
    pub drafted: usize,
    /// Those that the target agreed with.
    pub accepted: usize,
    /// Tokens that the requests were given.
    pub kept: usize,
    /// The host plans and launches it.
    pub planned: Span,
    /// Each lane runs its part; `None` for a lane that had nothing to do.
    pub lanes: [Option<Span>; LANES],
    /// What the forward lane spent on each part of its work.
    pub times: StepTimes,
    /// The host waits for its results; empty when they were there already.
    pub landing: Span,
    /// The host commits what it found.
    pub committed: Span,
}

/// When the lanes ran their parts of one step.
#[derive(Clone)]
pub(crate) struct LaneSpans {
    clock: Clock,
    spans: Arc<[OnceLock<Span>; LANES]>,
}

impl LaneSpans {
    pub(crate) fn new(clock: &Clock) -> LaneSpans {
        LaneSpans { clock: clock.clone(), spans: Arc::default() }
    }

    /// Runs `lane`'s part.
    pub(crate) fn during<T>(&self, lane: LaneId, part: impl FnOnce() -> T) -> T {
        let (value, span) = self.timed(part);
        self.set(lane, span);
        value
    }

    /// Runs something, and says when.
    pub(crate) fn timed<T>(&self, part: impl FnOnce() -> T) -> (T, Span) {
        let start = self.clock.now();
        let value = part();
        (value, Span { start, end: self.clock.now() })
    }

    /// When `lane` ran its part.
    pub(crate) fn set(&self, lane: LaneId, span: Span) {
        // A lane has one part in a step.
        let _ = self.spans[lane.index()].set(span);
    }

    /// All of them, once the step has landed.
    pub(crate) fn all(&self) -> [Option<Span>; LANES] {
        LaneId::ALL.map(|lane| self.spans[lane.index()].get().copied())
    }
}

/// The newest steps. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<StepRecord>>>);

impl Recent {
    pub(crate) fn push(&self, step: StepRecord) {
        let mut steps = self.lock();
        if steps.len() == RECENT_STEPS {
            steps.pop_front();
        }
        steps.push_back(step);
    }

    /// A copy of what is kept, oldest first.
    pub(crate) fn steps(&self) -> Vec<StepRecord> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<StepRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
