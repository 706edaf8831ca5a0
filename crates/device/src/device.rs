//! What a device must do: run the jobs of a lane in order, and order lanes by events.
//!
//! A *lane* is a stream with a role. Jobs of one lane run in the order they were launched; jobs
//! of different lanes run in any order unless an event orders them: a lane that waits for an
//! event runs nothing further until every job launched before the event was recorded is done.
//! Launching, recording and waiting never block the host; [`Device::land`] is the one call that
//! does.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

/// Lanes of a device.
pub const LANES: usize = 4;

/// Which lane, at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LaneId {
    /// Writes the page table.
    Schedule,
    /// Turns the page table into a step's own metadata.
    Plan,
    /// Runs the model.
    Forward,
    /// Copies results back to the host.
    Copy,
}

impl LaneId {
    /// All of them, by index.
    pub const ALL: [LaneId; LANES] =
        [LaneId::Schedule, LaneId::Plan, LaneId::Forward, LaneId::Copy];

    /// Position in arrays of [`LANES`] entries.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            LaneId::Schedule => "schedule",
            LaneId::Plan => "plan",
            LaneId::Forward => "forward",
            LaneId::Copy => "copy",
        }
    }
}

/// A lane's role, as a type: who may write what is decided when the program is compiled.
pub trait Role: Send + Sync + 'static {
    /// The lane of this role.
    const LANE: LaneId;
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident),*) => {$(
        $(#[$doc])*
        pub enum $role {}
        impl Role for $role {
            const LANE: LaneId = LaneId::$role;
        }
    )*};
}

roles! {
    /// Role of [`LaneId::Schedule`].
    Schedule,
    /// Role of [`LaneId::Plan`].
    Plan,
    /// Role of [`LaneId::Forward`].
    Forward,
    /// Role of [`LaneId::Copy`].
    Copy
}

/// Plain data that device buffers hold.
pub trait Element: Copy + Default + Send + Sync + 'static {}
impl<T: Copy + Default + Send + Sync + 'static> Element for T {}

/// Identifies a buffer of a device, for checks and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Whether a job reads or writes what it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes, and perhaps reads.
    Write,
}

/// What a job does to one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The buffer.
    pub buffer: BufferId,
    /// How.
    pub access: Access,
    /// Which elements.
    pub range: Range<usize>,
}

/// A job, as a device queues it.
pub type Job = Box<dyn FnOnce() + Send>;

/// The device can run nothing further: a job panicked, or the driver failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLost;

impl fmt::Display for DeviceLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the device stopped: a job on it failed")
    }
}

impl std::error::Error for DeviceLost {}

/// A device. Handles are cheap to clone and share one device.
pub trait Device: Clone + Send + 'static {
    /// A point in a lane's queue.
    type Event: Clone + Send + 'static;
    /// Elements in the device's memory; clones are handles to the same elements.
    type Memory<T: Element>: Clone + Send + 'static;
    /// A range of elements as a job reads it.
    type Ref<T: Element>: Deref<Target = [T]> + Send + 'static;
    /// A range of elements as a job writes it.
    type Mut<T: Element>: DerefMut<Target = [T]> + Send + 'static;

    /// `len` default elements, named `label` in checks and traces.
    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Self::Memory<T>;

    /// The buffer behind a handle, and its elements.
    fn describe<T: Element>(&self, memory: &Self::Memory<T>) -> (BufferId, usize);

    /// Queues `job` on `lane`. `touches` says which elements of shared buffers it uses.
    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job);

    /// An event after everything launched on `lane` so far.
    fn record(&self, lane: LaneId) -> Self::Event;

    /// `lane` runs nothing launched from now on before `event`; the host goes on at once.
    fn wait(&self, lane: LaneId, event: &Self::Event);

    /// Whether `event` has been reached. Never blocks.
    fn reached(&self, event: &Self::Event) -> bool;

    /// Blocks the host until `event` has been reached.
    ///
    /// # Errors
    /// [`DeviceLost`] when it never will be.
    fn land(&self, event: &Self::Event) -> Result<(), DeviceLost>;

    /// A range as a job reads it.
    ///
    /// # Safety
    /// The result may be used only inside a job that this device runs, and no job that writes any
    /// of `range` may run at the same time: the caller orders them by events.
    unsafe fn reader<T: Element>(&self, memory: &Self::Memory<T>, range: Range<usize>)
    -> Self::Ref<T>;

    /// A range as a job writes it.
    ///
    /// # Safety
    /// As [`Device::reader`], for every other job that touches any of `range`.
    unsafe fn writer<T: Element>(&self, memory: &Self::Memory<T>, range: Range<usize>)
    -> Self::Mut<T>;

    /// Host access to memory that the host shares with the device (staging, results).
    ///
    /// # Safety
    /// No job that touches the range is queued or running: the caller has seen its event reached.
    unsafe fn host<'a, T: Element>(
        &self,
        memory: &'a Self::Memory<T>,
        access: Access,
        range: Range<usize>,
    ) -> &'a mut [T];
}
