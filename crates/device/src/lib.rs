//! Where work runs: the CPU's threads, and lanes whose order is part of the types. Knows no
//! models.
//!
//! # Lanes
//!
//! A [`Lane`] is a stream with a role. Launching a job on it never blocks; jobs of one lane run
//! in order, and lanes are ordered only by events, which guards record and wait for:
//!
//! - [`Shared`] is a buffer that one lane writes and any lane reads. [`Shared::read`] makes the
//!   reading lane wait for the last write; dropping its guard records read-done for that lane.
//!   [`Shared::write`] makes the writing lane wait for every lane's read-done.
//! - [`Local`] is state that one lane owns.
//! - [`Staging`] and [`Readback`] are rings through which the host hands arrays in and gets
//!   results out. [`Pending::land`] is where the host blocks.
//! - A launch takes *views* borrowed from guards, so forgetting a guard does not compile, and a
//!   job sees its memory only while it runs.
//!
//! Two overlapped steps. Time runs to the right; `w` waits for an event on the device, `^` is
//! where an event comes from.
//!
//! ```text
//! host      plan N | launch N | land N-1 ........ | commit N-1 | plan N+1 | launch N+1 | land N
//!
//! schedule         [write N]                               w[write N+1]
//!                          ^ written                       ^ waits for plan's read-done N: passed
//! plan                     w[snapshot N]                             w[snapshot N+1]
//!                                      ^ read-done and written       ^ waits for forward's
//!                                                                      read-done N-1 (other slot)
//! forward    [...... step N-1 ......]  w[........... step N ...........][....... step N+1 ...
//!                                   ^ results N-1                      ^ results N
//! ```
//!
//! The page table is read by the short snapshot only, so the write of step N + 1 waits for
//! something that ended long ago, and the forward lane goes from step to step without a gap. What
//! the snapshot writes is a ring of [`Shared`] buffers, a slot a step: the forward lane still
//! reads slot N while slot N + 1 is written.
//!
//! # Devices
//!
//! [`Threads`] runs each lane as a thread. [`Sim`] runs lanes in an order drawn from a seed and
//! names every pair of accesses that nothing orders; [`check`] finds the same in what a
//! [`Recorder`] wrote down. Both see host memory ([`HostDevice`]), and a job is a closure that does
//! its work there; [`Watched`] tells a test what the host asks of either. With the feature `cuda` a
//! CUDA card is a device too: a job there enqueues its work, on the queue that [`Lane::queue`] hands
//! it.
//!
//! Nothing but [`Device::land`] blocks the host, besides a device's last handle, which waits
//! until the lanes have ended: each other call appends to a queue or looks at a counter.
//! [`Device::usage`] counts and times every call of `land` by its [`Reason`].
//!
//! # The CPU
//!
//! - [`Cpu`]: the thread pool that splits loops inside a job.
//! - [`Disjoint`]: a slice whose parts the threads of a region write without overlap.
//! - [`Mapped`]: a file's bytes, mapped read-only.
//! - [`Replicas`]: memory for weights, in huge pages where the system has them, a copy on each of the [`Nodes`].

mod affinity;
mod check;
mod clock;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod disjoint;
mod fence;
mod graph;
mod json;
mod lane;
mod lasting;
mod local;
mod mapped;
mod memory;
mod nodes;
mod order;
mod record;
mod replicas;
mod shared;
mod sim;
mod soon;
mod staging;
mod threads;
mod watched;

pub use check::check;
pub use clock::{Clock, Durations, ManualClock};
pub use cpu::Cpu;
pub use device::{
    Access, Buffer, BufferId, Copies, Device, DeviceId, DeviceLost, Element, Forward, Job, LANES,
    LaneId, Memory, Plan, Program, Reason, Role, Schedule, Space, Touch, Usage, Waits,
    panic_message,
};
pub use disjoint::Disjoint;
pub use fence::{Fence, StepFence, UnknownFence};
pub use graph::{Graph, Kept};
pub use lane::{
    Arguments, Held, HeldQueue, HeldView, HeldViewMut, Lane, Lanes, OnQueue, View, ViewMut,
};
pub use local::{HeldLocal, Local, LocalView};
pub use mapped::Mapped;
pub use memory::{Host, HostDevice, HostMemory};
pub use nodes::{Here, Nodes};
pub use order::{Actor, Race, Site};
pub use record::{Recorder, Trace, Track};
pub use replicas::Replicas;
pub use shared::{ReadDone, Reading, Shared, Writing};
pub use sim::{Sim, SimEvent, SimOptions, SimOrder};
pub use staging::{Filling, Pending, Readback, Staged, Staging};
pub use threads::{ThreadEvent, Threads};
pub use watched::{Watched, Watcher};
