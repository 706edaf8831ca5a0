//! What the lanes and the host did, written down in bounded memory. A [`Trace`] is a copy of it,
//! for [`crate::check`] and for [`Trace::write_json`].
//!
//! Entries are kept in an order that agrees with what events ordered: a launch before its job, a
//! job before the event behind it, an event before who waited for it. So when the oldest entries
//! make room for new ones, whatever came before a lost entry is lost too, and what remains can be
//! checked by itself.

use crate::clock::Clock;
use crate::device::{BufferId, LaneId, Reason, Touch};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Writes down one device. Cloning shares the writing.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    clock: Clock,
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: VecDeque<Entry>,
    dropped: u64,
    launches: u64,
    labels: BTreeMap<BufferId, &'static str>,
}

/// Where a span of [`Recorder::span`] is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// Beside the host's launches and waits.
    Host,
    /// In a row of its own: a request, by the number its owner gave it.
    Request(u64),
}

/// From when to when, by the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: Duration,
    pub(crate) end: Duration,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The host launched a job.
    Launched { launch: u64, lane: LaneId, job: &'static str, span: Span },
    /// A lane ran it.
    Ran { launch: u64, lane: LaneId, job: &'static str, touches: Vec<Touch>, span: Span },
    /// A lane reached an event.
    Recorded { lane: LaneId, event: u64 },
    /// A lane waited for an event.
    Waited { lane: LaneId, event: u64, span: Span },
    /// The host found an event reached, without waiting.
    HostSaw { event: u64 },
    /// The host waited for an event.
    HostWaited { event: u64, reason: Reason, span: Span },
    /// The host read or wrote a ring's slot.
    HostTouched { what: &'static str, touch: Touch },
    /// Something the owner of the recorder did.
    Owner { track: Track, what: &'static str, span: Span },
}

impl Recorder {
    /// A recorder that keeps the newest `capacity` entries (an entry is about 100 bytes; a step
    /// of a model makes a few dozen).
    pub(crate) fn new(clock: &Clock, capacity: usize) -> Recorder {
        Recorder(Arc::new(Inner { clock: clock.clone(), capacity, kept: Mutex::default() }))
    }

    /// The device's time.
    pub fn now(&self) -> Duration {
        self.0.clock.now()
    }

    /// Something that its owner did since `start`, drawn beside the lanes.
    pub fn span(&self, track: Track, what: &'static str, start: Duration) {
        self.keep(Entry::Owner { track, what, span: self.since(start) });
    }

    /// A copy of what is kept.
    pub fn trace(&self) -> Trace {
        let kept = self.lock();
        Trace {
            entries: kept.entries.iter().cloned().collect(),
            labels: kept.labels.clone(),
            dropped: kept.dropped,
        }
    }

    pub(crate) fn registered(&self, buffer: BufferId, label: &'static str) {
        self.lock().labels.insert(buffer, label);
    }

    /// Called before the job is queued; the launch's number.
    pub(crate) fn launched(&self, lane: LaneId, job: &'static str, start: Duration) -> u64 {
        let span = self.since(start);
        let mut kept = self.lock();
        kept.launches += 1;
        let launch = kept.launches;
        kept.push(self.0.capacity, Entry::Launched { launch, lane, job, span });
        launch
    }

    /// Called before the lane goes on.
    pub(crate) fn ran(
        &self,
        lane: LaneId,
        job: &'static str,
        touches: Vec<Touch>,
        launch: u64,
        start: Duration,
    ) {
        self.keep(Entry::Ran { launch, lane, job, touches, span: self.since(start) });
    }

    /// Called before anybody can find the event reached.
    pub(crate) fn recorded(&self, lane: LaneId, event: u64) {
        self.keep(Entry::Recorded { lane, event });
    }

    pub(crate) fn waited(&self, lane: LaneId, event: u64, start: Duration) {
        self.keep(Entry::Waited { lane, event, span: self.since(start) });
    }

    pub(crate) fn host_saw(&self, event: u64) {
        self.keep(Entry::HostSaw { event });
    }

    pub(crate) fn host_waited(&self, event: u64, reason: Reason, start: Duration) {
        self.keep(Entry::HostWaited { event, reason, span: self.since(start) });
    }

    pub(crate) fn touched(&self, what: &'static str, touch: Touch) {
        self.keep(Entry::HostTouched { what, touch });
    }

    fn since(&self, start: Duration) -> Span {
        Span { start, end: self.now() }
    }

    fn keep(&self, entry: Entry) {
        self.lock().push(self.0.capacity, entry);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn push(&mut self, capacity: usize, entry: Entry) {
        while self.entries.len() >= capacity {
            self.entries.pop_front();
            self.dropped += 1;
        }
        self.entries.push_back(entry);
    }
}

/// A copy of what a recorder kept.
#[derive(Clone, Debug)]
pub struct Trace {
    pub(crate) entries: Vec<Entry>,
    pub(crate) labels: BTreeMap<BufferId, &'static str>,
    pub(crate) dropped: u64,
}

impl Trace {
    /// Entries that made room for newer ones.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Entries kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When each launch was made, by its number.
    pub(crate) fn launches(&self) -> HashMap<u64, Span> {
        let launched = |entry: &Entry| match entry {
            Entry::Launched { launch, span, .. } => Some((*launch, *span)),
            _ => None,
        };
        self.entries.iter().filter_map(launched).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_kept() {
        let recorder = Recorder::new(&Clock::wall(), 3);
        for event in 0..5 {
            recorder.recorded(LaneId::Plan, event);
        }
        let trace = recorder.trace();
        let kept: Vec<Entry> =
            (2..5).map(|event| Entry::Recorded { lane: LaneId::Plan, event }).collect();
        assert_eq!(trace.entries, kept);
        assert_eq!((trace.dropped(), trace.len()), (2, 3));
    }
}
