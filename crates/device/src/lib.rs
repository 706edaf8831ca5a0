//! Where work runs: the CPU's threads and the lanes that order it. Knows no models.
//!
//! - [`Cpu`]: the instruction sets and the thread pool one device owns.
//! - [`Disjoint`]: a slice of which the threads of a loop each write their own part.
//! - [`Lane`]: a FIFO queue of jobs that owns the state its jobs change. Handing a job to a
//!   lane never blocks; [`Pending::land`] is the only place where a host thread waits.

mod cpu;
mod disjoint;
mod lane;

pub use cpu::Cpu;
pub use disjoint::Disjoint;
pub use lane::{Lane, LaneLost, Pending};
