//! Which accesses are ordered: vector clocks (Fidge 1988, Mattern 1989) over the lanes and the
//! host. Shared by the simulated device, which feeds it as it runs, and by [`crate::check`], which
//! feeds it from a recording.

use crate::device::{Access, BufferId, LANES, LaneId, Touch};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Clock entries: the lanes, then the host. All host threads count as one.
const ACTORS: usize = LANES + 1;

/// For each actor, how many of its actions come before a point.
pub(crate) type VectorClock = [u64; ACTORS];

/// Races kept of one run; the first ones say what is wrong.
const MOST_RACES: usize = 100;

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A lane's job.
    Lane(LaneId),
    /// The host, through a staging or readback ring.
    Host,
}

impl Actor {
    fn index(self) -> usize {
        match self {
            Actor::Lane(lane) => lane.index(),
            Actor::Host => LANES,
        }
    }

    fn of(index: usize) -> Actor {
        LaneId::ALL.get(index).map_or(Actor::Host, |&lane| Actor::Lane(lane))
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Lane(lane) => write!(f, "the {} lane", lane.name()),
            Actor::Host => f.write_str("the host"),
        }
    }
}

/// One side of a [`Race`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Who.
    pub actor: Actor,
    /// In which job.
    pub job: &'static str,
    /// How.
    pub access: Access,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = match self.access {
            Access::Read => "a read",
            Access::Write => "a write",
        };
        write!(f, "{access} by `{}` on {}", self.job, self.actor)
    }
}

/// Two accesses to the same elements that nothing orders, at least one of them a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The buffer's label.
    pub buffer: &'static str,
    /// The elements.
    pub elements: Range<usize>,
    /// The access seen first.
    pub first: Site,
    /// The access seen second.
    pub second: Site,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { buffer, elements, first, second } = self;
        write!(f, "{buffer}[{elements:?}]: nothing orders {first} and {second}")
    }
}

/// When an access happened, by its actor's own clock.
#[derive(Clone, Copy, PartialEq)]
struct Stamp {
    time: u64,
    job: &'static str,
}

/// Neighbouring elements with the same past.
#[derive(Clone, PartialEq)]
struct Run {
    start: usize,
    wrote: Option<(usize, Stamp)>,
    read: [Option<Stamp>; ACTORS],
}

/// The past of a buffer: runs in order, the first at 0, each up to the next one's start.
struct Past {
    label: &'static str,
    runs: Vec<Run>,
}

/// What has happened, and which accesses nothing ordered.
#[derive(Default)]
pub(crate) struct Order {
    clocks: [VectorClock; ACTORS],
    buffers: BTreeMap<BufferId, Past>,
    races: Vec<Race>,
}

impl Order {
    /// A buffer named `label`.
    pub(crate) fn register(&mut self, buffer: BufferId, label: &'static str) {
        let run = Run { start: 0, wrote: None, read: [None; ACTORS] };
        self.buffers.insert(buffer, Past { label, runs: vec![run] });
    }

    /// What comes before a point that `actor` has reached: an event, or a launch by the host.
    pub(crate) fn clock(&self, actor: Actor) -> VectorClock {
        self.clocks[actor.index()]
    }

    /// From now on, everything before the point `from` comes before what `actor` does.
    pub(crate) fn after(&mut self, actor: Actor, from: &VectorClock) {
        for (own, other) in self.clocks[actor.index()].iter_mut().zip(from) {
            *own = (*own).max(*other);
        }
    }

    /// `actor` does `job`, all at once, touching `touches`.
    pub(crate) fn act(&mut self, actor: Actor, job: &'static str, touches: &[Touch]) {
        self.clocks[actor.index()][actor.index()] += 1;
        for touch in touches.iter().filter(|touch| !touch.range.is_empty()) {
            self.touch(actor, job, touch);
        }
    }

    /// The unordered accesses so far, at most [`MOST_RACES`].
    pub(crate) fn races(&self) -> &[Race] {
        &self.races
    }

    fn touch(&mut self, actor: Actor, job: &'static str, touch: &Touch) {
        let now = self.clocks[actor.index()];
        let stamp = Stamp { time: now[actor.index()], job };
        let past = self.buffers.get_mut(&touch.buffer).expect("a touched buffer is registered");
        let runs = past.cut(&touch.range);
        for at in runs {
            let end = past.runs.get(at + 1).map_or(touch.range.end, |next| next.start);
            let run = &mut past.runs[at];
            let mut report = |index: usize, earlier: Stamp, access| {
                if now[index] < earlier.time && self.races.len() < MOST_RACES {
                    let first = Site { actor: Actor::of(index), job: earlier.job, access };
                    let second = Site { actor, job, access: touch.access };
                    let elements = run.start..end;
                    self.races.push(Race { buffer: past.label, elements, first, second });
                }
            };
            if let Some((index, earlier)) = run.wrote {
                report(index, earlier, Access::Write);
            }
            match touch.access {
                Access::Read => run.read[actor.index()] = Some(stamp),
                Access::Write => {
                    for (index, earlier) in run.read.iter().enumerate() {
                        earlier.iter().for_each(|&earlier| report(index, earlier, Access::Read));
                    }
                    run.wrote = Some((actor.index(), stamp));
                }
            }
        }
        past.join();
    }
}

impl Past {
    /// Makes runs begin at both ends of `range`; which runs make it up.
    fn cut(&mut self, range: &Range<usize>) -> Range<usize> {
        self.cut_at(range.start)..self.cut_at(range.end)
    }

    /// Makes a run begin at `element`; which one.
    fn cut_at(&mut self, element: usize) -> usize {
        let at = self.runs.partition_point(|run| run.start < element);
        if self.runs.get(at).is_none_or(|run| run.start != element) {
            let run = Run { start: element, ..self.runs[at - 1].clone() };
            self.runs.insert(at, run);
        }
        at
    }

    /// Joins neighbours with the same past.
    fn join(&mut self) {
        self.runs.dedup_by(|next, run| next.wrote == run.wrote && next.read == run.read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: BufferId = BufferId(0);

    fn touch(access: Access, range: Range<usize>) -> Vec<Touch> {
        vec![Touch { buffer: TABLE, access, range }]
    }

    fn order() -> Order {
        let mut order = Order::default();
        order.register(TABLE, "table");
        order
    }

    const SCHEDULE: Actor = Actor::Lane(LaneId::Schedule);
    const PLAN: Actor = Actor::Lane(LaneId::Plan);
    const FORWARD: Actor = Actor::Lane(LaneId::Forward);

    #[test]
    fn an_event_orders_a_read_after_a_write_and_both_places_are_named_without_it() {
        for ordered in [true, false] {
            let mut order = order();
            order.act(SCHEDULE, "fill", &touch(Access::Write, 0..8));
            let event = order.clock(SCHEDULE);
            if ordered {
                order.after(FORWARD, &event);
            }
            order.act(FORWARD, "gather", &touch(Access::Read, 6..10));
            if ordered {
                assert_eq!(order.races(), []);
            } else {
                let said: Vec<String> = order.races().iter().map(Race::to_string).collect();
                let expected = "table[6..8]: nothing orders a write by `fill` on the schedule \
                                lane and a read by `gather` on the forward lane";
                assert_eq!(said, [expected]);
            }
        }
    }

    #[test]
    fn order_goes_through_other_actors() {
        let mut order = order();
        order.act(FORWARD, "read", &touch(Access::Read, 0..4));
        let event = order.clock(FORWARD);
        order.after(Actor::Host, &event);
        order.act(Actor::Host, "store", &[]);
        let launched = order.clock(Actor::Host);
        order.after(PLAN, &launched);
        let event = order.clock(PLAN);
        order.after(SCHEDULE, &event);
        order.act(SCHEDULE, "write", &touch(Access::Write, 0..4));
        assert_eq!(order.races(), []);
        // The forward lane itself has not heard of the write.
        order.act(FORWARD, "read again", &touch(Access::Read, 3..4));
        assert_eq!(order.races().len(), 1);
        assert_eq!(order.races()[0].first.job, "write");
    }

    #[test]
    fn a_write_is_checked_against_every_reader() {
        let mut order = order();
        for (actor, job) in [(PLAN, "p"), (FORWARD, "f"), (Actor::Host, "h")] {
            order.act(actor, job, &touch(Access::Read, 2..3));
        }
        let event = order.clock(FORWARD);
        order.after(SCHEDULE, &event);
        order.act(SCHEDULE, "w", &touch(Access::Write, 0..4));
        let readers: Vec<&str> = order.races().iter().map(|race| race.first.job).collect();
        assert_eq!(readers, ["p", "h"]);
        assert!(order.races().iter().all(|race| race.elements == (2..3)));
    }

    #[test]
    fn apart_elements_do_not_race_and_runs_stay_few() {
        let mut order = order();
        for i in 0..1_000 {
            order.act(SCHEDULE, "low", &touch(Access::Write, 0..i % 7));
            order.act(PLAN, "high", &touch(Access::Write, 7..9 + i % 5));
        }
        assert_eq!(order.races(), []);
        assert!(order.buffers[&TABLE].runs.len() <= 7 + 5 + 2);
    }
}
