//! How one step is ordered after the one before it: the ablation. Slipstream runs on
//! [`Fence::Fine`]; the others are kept to be measured against it.

use crate::device::{Device, DeviceLost, Reason};
use crate::lane::Lanes;
use std::fmt;
use std::str::FromStr;

/// What a step waits for besides what its guards ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fence {
    /// The host blocks until the step before has ended, and plans only then.
    SelfFence,
    /// The host goes on; the device starts nothing of the step until the step before has ended.
    Coarse,
    /// Nothing: the guards' events are all there is.
    #[default]
    Fine,
}

impl Fence {
    /// All of them.
    pub const ALL: [Fence; 3] = [Fence::SelfFence, Fence::Coarse, Fence::Fine];

    /// As written on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Fence::SelfFence => "self",
            Fence::Coarse => "coarse",
            Fence::Fine => "fine",
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not the name of a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFence(String);

impl fmt::Display for UnknownFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no fence is named `{}`: use self, coarse or fine", self.0)
    }
}

impl std::error::Error for UnknownFence {}

impl FromStr for Fence {
    type Err = UnknownFence;

    fn from_str(name: &str) -> Result<Fence, UnknownFence> {
        let found = Fence::ALL.into_iter().find(|fence| fence.name() == name);
        found.ok_or_else(|| UnknownFence(name.to_owned()))
    }
}

/// Applies a [`Fence`] between the steps of a loop.
pub struct StepFence<D: Device> {
    fence: Fence,
    before: Option<D::Event>,
}

impl<D: Device> StepFence<D> {
    /// Before the first step.
    pub fn new(fence: Fence) -> StepFence<D> {
        StepFence { fence, before: None }
    }

    /// To be called before the host plans a step. Blocks for [`Fence::SelfFence`] only, which is
    /// counted as [`crate::Usage::fence`].
    ///
    /// # Errors
    /// [`DeviceLost`] when the step before will never end.
    pub fn before_plan(&mut self, lanes: &Lanes<D>) -> Result<(), DeviceLost> {
        let Some(before) = self.before.take() else { return Ok(()) };
        match self.fence {
            Fence::SelfFence => lanes.device().land(&before, Reason::Fence)?,
            Fence::Coarse => {
                lanes.schedule.wait(&before);
                lanes.plan.wait(&before);
            }
            Fence::Fine => {}
        }
        Ok(())
    }

    /// To be called when a step is launched, with the event behind its last job.
    pub fn launched(&mut self, end: D::Event) {
        self.before = Some(end);
    }
}
