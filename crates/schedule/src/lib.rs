//! What runs next and what becomes of it: requests, the queue, plans, and the one commit
//! function. Pure: no device and no clock.
//!
//! A step moves by value: [`Scheduler::plan`] makes a [`StepPlan`], the engine launches it and
//! keeps it while it is in flight, and [`Scheduler::land`] consumes it with what came back.

mod chances;
mod commit;
mod constraint;
mod cost;
mod crew;
mod discipline;
mod land;
mod offer;
mod plan;
mod planner;
mod queue;
mod request;
mod scheduler;
mod sequence;
mod shaping;
mod text;
mod width;

pub use chances::Chances;
pub use commit::{Commit, Committed};
pub use constraint::{Constrained, ConstrainedRequest, Constraint, End, Matcher, RowEnd};
pub use cost::{CostCurve, StepCost};
pub use discipline::Discipline;
pub use land::Outcome;
pub use plan::{
    Absorb, PlannedRow, RowOutcome, Scores, StepPlan, TableWrite, TableWrites, Then, Work,
};
pub use queue::{Admission, Reject, Shortage};
pub use request::{
    Bounds, Early, FinishReason, Limits, PromptLogProbs, Request, RequestError, Sampling,
    Speculation, Stops,
};
pub use scheduler::{Scheduler, SchedulerOptions, Tally};
pub use shaping::{MOST_BIASES, ShapedRequest, Shaping};
pub use text::{Origin, Text};
pub use width::WidthPolicy;
