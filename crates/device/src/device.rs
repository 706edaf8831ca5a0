//! What a device must do: run the jobs of a lane in order, and order lanes by events.
//!
//! A *lane* is a stream with a role. Jobs of one lane run in the order they were launched; jobs
//! of different lanes run in any order unless an event orders them: a lane that waits for an
//! event runs nothing launched later until every job launched before the event was recorded is
//! done. Launching, recording and waiting never block the host; [`Device::land`] is the one call
//! that does.

use crate::clock::Clock;
use crate::record::Recorder;
use crate::shared::ReadDone;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

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
    Copies,
}

impl LaneId {
    /// All of them, by index.
    pub const ALL: [LaneId; LANES] =
        [LaneId::Schedule, LaneId::Plan, LaneId::Forward, LaneId::Copies];

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
            LaneId::Copies => "copies",
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
    /// Role of [`LaneId::Copies`].
    Copies
}

/// Plain data that device buffers hold.
pub trait Element: Copy + Default + Send + Sync + 'static {}
impl<T: Copy + Default + Send + Sync + 'static> Element for T {}

/// Which device: two are the same only when they are clones of one handle. Whatever belongs to a
/// device holds its identity, an allocation of its own, so no later device can be taken for it.
#[derive(Clone, Default)]
pub struct DeviceId(Arc<()>);

impl PartialEq for DeviceId {
    fn eq(&self, other: &DeviceId) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for DeviceId {}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {:p}", Arc::as_ptr(&self.0))
    }
}

/// Identifies a buffer among those of its device, for checks and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A buffer's identity and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The device it lies on.
    pub device: DeviceId,
    /// Which of the device's buffers.
    pub id: BufferId,
    /// Elements.
    pub len: usize,
}

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

/// A job, as a device queues it: it is handed its lane's queue when it runs.
pub type Job<Q> = Box<dyn FnOnce(&Q) + Send>;

/// Work to capture: however often it runs, it does or enqueues the same.
pub type Program<Q> = Box<dyn FnMut(&Q) + Send>;

/// The device can run nothing further: a job panicked, or the driver failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLost {
    /// The lane that failed.
    pub lane: LaneId,
    /// The job that failed.
    pub job: &'static str,
    /// What it said.
    pub message: String,
}

impl fmt::Display for DeviceLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lane, job, message) = (self.lane.name(), self.job, &self.message);
        write!(f, "the device stopped: job `{job}` on the {lane} lane failed: {message}")
    }
}

impl std::error::Error for DeviceLost {}

/// Why the host waits for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// For results on their way out.
    Results,
    /// For the previous step, before planning the next: [`crate::Fence::SelfFence`] only.
    Fence,
}

impl Reason {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Results => "land",
            Reason::Fence => "fence",
        }
    }
}

/// Host waits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Calls of [`Device::land`].
    pub calls: u64,
    /// Those that found their event not reached.
    pub blocked: u64,
    /// Time inside all of them.
    pub time: Duration,
}

/// What a device and its host have spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Host waits for results.
    pub results: Waits,
    /// Host waits for a fence; none unless the ablation asks for them.
    pub fence: Waits,
    /// Time inside jobs, by [`LaneId::index`]. Time in waits is not part of it. Where time is
    /// simulated a job counts whole from its start on.
    pub busy: [Duration; LANES],
}

impl Usage {
    /// Counts one call of [`Device::land`].
    pub(crate) fn waited(&mut self, reason: Reason, blocked: u64, time: Duration) {
        let waits = match reason {
            Reason::Results => &mut self.results,
            Reason::Fence => &mut self.fence,
        };
        waits.calls += 1;
        waits.blocked += blocked;
        waits.time += time;
    }
}

/// Where a device's elements lie, and what a job sees of them.
///
/// # Safety
/// Memory keeps its elements in place for as long as any clone of the handle lives, and
/// [`Space::buffer`] gives the same answer each time.
pub unsafe trait Space: 'static {
    /// Elements of one buffer; clones are handles to the same elements.
    type Memory<T: Element>: Clone + Send + Sync + 'static;
    /// A range of elements as a job reads it.
    type Slice<'j, T: Element>;
    /// A range of elements as a job writes it.
    type SliceMut<'j, T: Element>;

    /// The buffer behind a handle.
    fn buffer<T: Element>(memory: &Self::Memory<T>) -> &Buffer;

    /// A range as a job reads it.
    ///
    /// # Panics
    /// When `range` does not lie within the buffer.
    ///
    /// # Safety
    /// For `'j`, nothing writes any of `range`.
    unsafe fn slice<T: Element>(
        memory: &Self::Memory<T>,
        range: Range<usize>,
    ) -> Self::Slice<'_, T>;

    /// A range as a job writes it.
    ///
    /// # Panics
    /// When `range` does not lie within the buffer.
    ///
    /// # Safety
    /// For `'j`, nothing else reads or writes any of `range`.
    unsafe fn slice_mut<T: Element>(
        memory: &Self::Memory<T>,
        range: Range<usize>,
    ) -> Self::SliceMut<'_, T>;
}

/// The memory of device `D`.
pub type Memory<T, D> = <<D as Device>::Space as Space>::Memory<T>;

/// A device. Handles are cheap to clone and share one device.
///
/// # Safety
/// The rest of this crate rests on these:
/// - jobs of one lane run in the order they were launched and never two at once, whatever thread
///   launches them and even when a job launches another; a job is handed its own lane's queue, and
///   what it enqueues there counts as part of the job;
/// - what a job did is visible to every job and host thread that runs after an event recorded
///   behind it: on a lane that waits for the event, or after `reached` or `land` said so;
/// - a replay is a job that does what its captured program does;
/// - `reached` and `land` never claim an event too early, and each call given an event or memory
///   of another device panics;
/// - `read_done` gives [`ReadDone::PerLane`] unless no two jobs of the device ever run at once.
pub unsafe trait Device: Clone + Send + Sync + 'static {
    /// A point in a lane's queue.
    type Event: Clone + Send + Sync + 'static;
    /// Where its memory lies.
    type Space: Space;
    /// What a job enqueues its lane's work on; `()` where the job itself is the work.
    type Queue: 'static;
    /// Work recorded once, to be replayed whole.
    type Captured: Send + Sync + 'static;

    /// The device's identity.
    fn id(&self) -> &DeviceId;

    /// The time of the device and its host.
    fn clock(&self) -> &Clock;

    /// A new buffer's identity, named `label` in checks and traces.
    fn register(&self, label: &'static str, len: usize) -> Buffer;

    /// A new buffer of `len` default elements.
    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Memory<T, Self>;

    /// A new buffer of `len` default elements that the host reaches too, with `store` and `load`:
    /// page-locked where the device is not the host.
    fn alloc_pinned<T: Element>(&self, label: &'static str, len: usize) -> Memory<T, Self> {
        self.alloc(label, len)
    }

    /// Queues `job`, named `what`, on `lane`. `touches` says which elements it uses.
    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job<Self::Queue>);

    /// Records `program`, named `what`, for replays on `lane`. Nothing of it runs.
    fn capture(
        &self,
        lane: LaneId,
        what: &'static str,
        program: Program<Self::Queue>,
    ) -> Self::Captured;

    /// Queues a replay of `captured`, named `what`, on the lane that it was captured for.
    fn replay(
        &self,
        lane: LaneId,
        what: &'static str,
        touches: Vec<Touch>,
        captured: &Self::Captured,
    );

    /// An event after everything launched on `lane` so far.
    fn record(&self, lane: LaneId) -> Self::Event;

    /// `lane` runs nothing launched from now on before `event`; the host goes on at once.
    fn wait(&self, lane: LaneId, event: &Self::Event);

    /// Whether `event` has been reached. Never blocks.
    fn reached(&self, event: &Self::Event) -> bool;

    /// Blocks the host until `event` has been reached, and counts that under `reason`.
    ///
    /// # Errors
    /// [`DeviceLost`] when it never will be.
    ///
    /// # Panics
    /// When a job calls it: the job's lane would wait for itself.
    #[track_caller]
    fn land(&self, event: &Self::Event, reason: Reason) -> Result<(), DeviceLost>;

    /// Why the device runs nothing further, once it does not.
    fn lost(&self) -> Option<DeviceLost>;

    /// Host waits and lane times so far, by the device's clock.
    fn usage(&self) -> Usage;

    /// What writes down the device's lanes, if anything does.
    fn recorder(&self) -> Option<&Recorder>;

    /// How shared buffers remember that they were read.
    fn read_done(&self) -> ReadDone {
        ReadDone::PerLane
    }

    /// Copies `data` from the host to the start of `memory`, which is pinned.
    ///
    /// # Safety
    /// No job that touches these elements is queued or running.
    unsafe fn store<T: Element>(&self, memory: &Memory<T, Self>, data: &[T]);

    /// The first `len` elements of `memory`, which is pinned, copied to the host.
    ///
    /// # Safety
    /// No job that writes these elements is queued or running.
    unsafe fn load<T: Element>(&self, memory: &Memory<T, Self>, len: usize) -> Vec<T>;
}

/// Panics unless `found` is `expected`: events, buffers and lanes of two devices never mix.
#[track_caller]
pub(crate) fn same_device(expected: &DeviceId, found: &DeviceId) {
    assert!(expected == found, "expected something of {expected:?}, was given one of {found:?}");
}

/// What a panic said.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
