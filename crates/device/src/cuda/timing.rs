//! How long a lane's jobs take on the card: a timed event before and behind each.

use super::driver::{Event, Stream};
use crate::device::{LANES, LaneId};
use cudarc::driver::result::DriverError;
use std::collections::VecDeque;
use std::time::Duration;

/// Times of jobs, by lane.
#[derive(Default)]
pub(super) struct Timing {
    busy: [Duration; LANES],
    /// Before and behind each job that was not yet seen to end, oldest first.
    running: [VecDeque<(Event, Event)>; LANES],
    free: Vec<Event>,
}

impl Timing {
    /// An event at this point of `stream`.
    pub(super) fn mark(&mut self, stream: &Stream) -> Result<Event, DriverError> {
        let event = self.free.pop().map_or_else(Event::timed, Ok)?;
        event.record(stream)?;
        Ok(event)
    }

    /// A job of `lane` was enqueued between two marks.
    pub(super) fn ran(
        &mut self,
        lane: LaneId,
        start: Event,
        end: Event,
    ) -> Result<(), DriverError> {
        self.running[lane.index()].push_back((start, end));
        self.collect(lane)
    }

    /// Time inside jobs that have ended.
    pub(super) fn busy(&mut self) -> Result<[Duration; LANES], DriverError> {
        LaneId::ALL.into_iter().try_for_each(|lane| self.collect(lane))?;
        Ok(self.busy)
    }

    fn collect(&mut self, lane: LaneId) -> Result<(), DriverError> {
        let running = &mut self.running[lane.index()];
        while let Some((_, end)) = running.front() {
            if !end.reached()? {
                break;
            }
            let (start, end) = running.pop_front().expect("the entry just looked at");
            let milliseconds = end.since(&start)?;
            self.busy[lane.index()] += Duration::from_secs_f32(milliseconds.max(0.0) / 1e3);
            self.free.extend([start, end]);
        }
        Ok(())
    }
}
