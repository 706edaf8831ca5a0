//! What time it is: the machine's time, a simulated device's own, or what a test says.

use crate::device::{LANES, LaneId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long a piece of work takes on a simulated device, by its name and size. The lanes' jobs go
/// by the name they are launched with and the elements they touch; other work as [`Clock::work`]
/// is told. Times given to [`Clock::spend`] come on top.
pub type Durations = fn(what: &'static str, size: usize) -> Duration;

/// The time that everything on and around one device is measured by. Clones show the same time.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Wall(Instant),
    Virtual(Arc<VirtualTime>),
    Manual(ManualClock),
}

/// A clock that stands still until it is moved, so that no test depends on how fast a machine is.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    nanoseconds: Arc<AtomicU64>,
}

impl ManualClock {
    /// Moves the clock forward.
    ///
    /// # Panics
    /// When `by` is 500 years or more.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).expect("fewer than 500 years");
        self.nanoseconds.fetch_add(by, Ordering::AcqRel);
    }
}

impl From<&ManualClock> for Clock {
    fn from(manual: &ManualClock) -> Clock {
        Clock(Source::Manual(manual.clone()))
    }
}

impl Clock {
    /// The machine's time, from now on.
    pub fn wall() -> Clock {
        Clock(Source::Wall(Instant::now()))
    }

    pub(crate) fn simulated(time: Arc<VirtualTime>) -> Clock {
        Clock(Source::Virtual(time))
    }

    /// Time since the clock was started. A simulated device has one time a lane, which its jobs
    /// read, and one that the host reads.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::Wall(start) => start.elapsed(),
            Source::Virtual(time) => time.now(),
            Source::Manual(clock) => {
                Duration::from_nanos(clock.nanoseconds.load(Ordering::Acquire))
            }
        }
    }

    /// Lets `time` pass for whoever calls: real time by sleeping, a simulated device's at once. A
    /// manual clock stands still.
    pub fn spend(&self, time: Duration) {
        match &self.0 {
            Source::Wall(_) if time.is_zero() => {}
            Source::Wall(_) => std::thread::sleep(time),
            Source::Virtual(simulated) => *simulated.lock().own() += time,
            Source::Manual(_) => {}
        }
    }

    /// Says that a piece of work of `size` was done by whoever calls: the host, or a job on the
    /// thread that it was started on. Real time passes by itself; on a simulated device its
    /// [`Durations`] say how long that took.
    pub fn work(&self, what: &'static str, size: usize) {
        if let Source::Virtual(time) = &self.0 {
            time.work(what, size);
        }
    }
}

/// The times of a simulated device's lanes and of its host. They follow from durations and from
/// what waits for what alone: a lane's job starts when the lane is free, the job is launched, and
/// what the lane waits for is reached.
pub(crate) struct VirtualTime {
    durations: Durations,
    times: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    host: Duration,
    lanes: [Duration; LANES],
    busy: [Duration; LANES],
    /// The lane that acts now, and the thread it does that on.
    acting: Option<(LaneId, ThreadId)>,
}

impl Times {
    /// The time of whoever calls.
    fn own(&mut self) -> &mut Duration {
        match self.acting {
            Some((lane, thread)) if thread == std::thread::current().id() => {
                &mut self.lanes[lane.index()]
            }
            _ => &mut self.host,
        }
    }
}

impl VirtualTime {
    pub(crate) fn new(durations: Durations) -> VirtualTime {
        VirtualTime { durations, times: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        *self.lock().own()
    }

    pub(crate) fn work(&self, what: &'static str, size: usize) {
        *self.lock().own() += (self.durations)(what, size);
    }

    /// The host's time.
    pub(crate) fn host(&self) -> Duration {
        self.lock().host
    }

    /// The host knows of something that happened at `time`.
    pub(crate) fn host_saw(&self, time: Duration) {
        let mut times = self.lock();
        times.host = times.host.max(time);
    }

    /// When a lane is done with all it has run.
    pub(crate) fn free(&self, lane: LaneId) -> Duration {
        self.lock().lanes[lane.index()]
    }

    /// `lane` begins to act at `start`, on this thread.
    pub(crate) fn begin(&self, lane: LaneId, start: Duration) {
        let mut times = self.lock();
        times.lanes[lane.index()] = start;
        times.acting = Some((lane, std::thread::current().id()));
    }

    /// `lane` has run a job that began at `start`, or reached a point of its queue.
    pub(crate) fn end(&self, lane: LaneId, start: Duration) {
        let mut times = self.lock();
        let took = times.lanes[lane.index()] - start;
        times.busy[lane.index()] += took;
        times.acting = None;
    }

    /// Time inside jobs.
    pub(crate) fn busy(&self) -> [Duration; LANES] {
        self.lock().busy
    }
}
