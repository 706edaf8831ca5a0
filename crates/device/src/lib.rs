//! Where work runs: the CPU's threads and the lanes that order it. Knows no models.
//!
//! - [`Cpu`]: the instruction sets and the thread pool one device owns.
//! - [`Disjoint`]: a slice whose parts the threads of a region write without overlap.
//! - [`Mapped`]: a file's bytes, mapped read-only.
//! - [`Lane`]: a FIFO queue of jobs that owns the state its jobs change. Handing a job to a
//!   lane never blocks; [`Pending::land`] is the only place where a host thread waits.

mod cpu;
mod disjoint;
mod lane;
mod mapped;

pub use cpu::Cpu;
pub use disjoint::Disjoint;
pub use lane::{Lane, LaneLost, Pending};
pub use mapped::Mapped;
