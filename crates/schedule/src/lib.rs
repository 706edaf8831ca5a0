//! What runs next and what becomes of it: requests, plans, and the one commit function. Pure:
//! no device and no clock.
//!
//! A step moves by value: [`Scheduler::plan`] makes a [`StepPlan`], the engine launches it and
//! keeps it while it is in flight, and [`Scheduler::land`] consumes it with what came back.

mod commit;
mod plan;
mod request;
mod scheduler;

pub use commit::{Commit, Committed, Origin};
pub use plan::{PlannedRow, RowOutcome, StepPlan, Then, Work};
pub use request::{
    Bounds, FinishReason, Limits, Request, RequestError, Sampling, Speculation, Stops,
};
pub use scheduler::{Outcome, Scheduler, SchedulerOptions};
