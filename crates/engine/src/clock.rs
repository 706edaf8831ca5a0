//! Where an engine reads the time, for deadlines and for the times of [`crate::Stats`]: the
//! system's clock, or a clock that only a test moves. What the device spends is measured by the
//! device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock. Clones tell the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { start: Instant },
    Manual(ManualClock),
}

/// A clock that stands still until it is moved, so that no test depends on how fast a machine is.
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    nanoseconds: Arc<AtomicU64>,
}

impl Default for Clock {
    /// The system's clock.
    fn default() -> Clock {
        Clock(Source::System { start: Instant::now() })
    }
}

impl From<&ManualClock> for Clock {
    fn from(manual: &ManualClock) -> Clock {
        Clock(Source::Manual(manual.clone()))
    }
}

impl Clock {
    /// Time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Source::System { start } => start.elapsed(),
            Source::Manual(clock) => {
                Duration::from_nanos(clock.nanoseconds.load(Ordering::Acquire))
            }
        }
    }
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
