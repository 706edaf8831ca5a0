//! What the engine did, and where the time went.

use std::ops::{AddAssign, Sub};
use std::time::Duration;

/// What the engine did since it started. How long the host waited, and for what, the device counts:
/// see [`device::Device::usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Landed steps.
    pub steps: u64,
    /// Those that were still running when the step behind them had been launched.
    pub led: u64,
    /// Rows of those steps: prompt chunks and verify blocks.
    pub rows: u64,
    /// Tokens that their target passes had room for; the device may have narrowed a block.
    pub tokens: u64,
    /// Host time for planning and launching steps, of steps in flight too.
    pub planning: Duration,
    /// Host time for committing what landed steps found.
    pub committing: Duration,
    /// Device time of landed steps, by part.
    pub times: StepTimes,
}

/// Device time of the parts of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Draft pass.
    pub draft: Duration,
    /// Following constrained texts: which tokens each row of theirs may choose.
    pub masks: Duration,
    /// Verify pass and choice.
    pub verify: Duration,
    /// Absorbing committed tokens, whether in the step that committed them or later.
    pub absorb: Duration,
}

impl StepTimes {
    /// Of all parts.
    pub fn total(&self) -> Duration {
        self.draft + self.masks + self.verify + self.absorb
    }
}

impl AddAssign for StepTimes {
    fn add_assign(&mut self, other: StepTimes) {
        self.draft += other.draft;
        self.masks += other.masks;
        self.verify += other.verify;
        self.absorb += other.absorb;
    }
}

impl Sub for Counters {
    type Output = Counters;

    /// What was done between `earlier` and this reading.
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            steps: self.steps - earlier.steps,
            led: self.led - earlier.led,
            rows: self.rows - earlier.rows,
            tokens: self.tokens - earlier.tokens,
            planning: self.planning - earlier.planning,
            committing: self.committing - earlier.committing,
            times: StepTimes {
                draft: self.times.draft - earlier.times.draft,
                masks: self.times.masks - earlier.times.masks,
                verify: self.times.verify - earlier.times.verify,
                absorb: self.times.absorb - earlier.times.absorb,
            },
        }
    }
}
