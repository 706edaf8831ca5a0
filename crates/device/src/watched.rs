//! A device that is watched: a [`Watcher`] hears of every launch, of every job that starts, and of
//! every wait of the host with its place in the source. It sees no memory and changes no order, but
//! it may hold a lane back, which is how a test stops the device while the host plans.

use crate::clock::Clock;
use crate::device::{
    Buffer, Device, DeviceId, DeviceLost, Element, Job, LaneId, Memory, Program, Reason, Touch,
    Usage,
};
use crate::record::Recorder;
use crate::shared::ReadDone;
use std::panic::Location;
use std::sync::Arc;

/// What is told of a device.
pub trait Watcher: Send + Sync + 'static {
    /// The host launches a job named `what` on `lane`. The mark is the watcher's own: it comes back
    /// when the job starts.
    fn launching(&self, lane: LaneId, what: &'static str) -> u64;

    /// A job starts, on the thread of its lane. Blocking here holds the lane back.
    fn starting(&self, lane: LaneId, mark: u64);

    /// The host is about to wait for an event, at `site`: where the engine landed a
    /// [`crate::Pending`], or where something else called [`Device::land`].
    fn landing(&self, reason: Reason, site: &'static Location<'static>);
}

/// `D`, watched. Memory and events are those of the device itself.
pub struct Watched<D: Device> {
    device: D,
    watcher: Arc<dyn Watcher>,
}

impl<D: Device> Watched<D> {
    /// `device` with `watcher` at its side.
    pub fn new(device: D, watcher: Arc<dyn Watcher>) -> Watched<D> {
        Watched { device, watcher }
    }
}

impl<D: Device> Clone for Watched<D> {
    fn clone(&self) -> Self {
        Watched { device: self.device.clone(), watcher: self.watcher.clone() }
    }
}

// SAFETY: every call goes to `device` with its own arguments, but for `launch`, whose job does the
// same behind a call of the watcher, in the same place of the same lane. The watcher reaches
// neither jobs nor memory.
unsafe impl<D: Device> Device for Watched<D> {
    type Event = D::Event;
    type Space = D::Space;
    type Queue = D::Queue;
    type Captured = D::Captured;

    fn id(&self) -> &DeviceId {
        self.device.id()
    }

    fn clock(&self) -> &Clock {
        self.device.clock()
    }

    fn register(&self, label: &'static str, len: usize) -> Buffer {
        self.device.register(label, len)
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> Memory<T, Self> {
        self.device.alloc(label, len)
    }

    fn alloc_pinned<T: Element>(&self, label: &'static str, len: usize) -> Memory<T, Self> {
        self.device.alloc_pinned(label, len)
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job<D::Queue>) {
        let mark = self.watcher.launching(lane, what);
        let watcher = self.watcher.clone();
        let watched = Box::new(move |queue: &D::Queue| {
            watcher.starting(lane, mark);
            job(queue);
        });
        self.device.launch(lane, what, touches, watched);
    }

    fn capture(&self, lane: LaneId, what: &'static str, program: Program<D::Queue>) -> D::Captured {
        self.device.capture(lane, what, program)
    }

    /// The watcher hears of the launch; a replay has no start that it could hold back.
    fn replay(
        &self,
        lane: LaneId,
        what: &'static str,
        touches: Vec<Touch>,
        captured: &D::Captured,
    ) {
        self.watcher.launching(lane, what);
        self.device.replay(lane, what, touches, captured);
    }

    fn record(&self, lane: LaneId) -> D::Event {
        self.device.record(lane)
    }

    fn wait(&self, lane: LaneId, event: &D::Event) {
        self.device.wait(lane, event);
    }

    fn reached(&self, event: &D::Event) -> bool {
        self.device.reached(event)
    }

    fn land(&self, event: &D::Event, reason: Reason) -> Result<(), DeviceLost> {
        self.watcher.landing(reason, Location::caller());
        self.device.land(event, reason)
    }

    fn lost(&self) -> Option<DeviceLost> {
        self.device.lost()
    }

    fn usage(&self) -> Usage {
        self.device.usage()
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.device.recorder()
    }

    fn read_done(&self) -> ReadDone {
        self.device.read_done()
    }

    unsafe fn store<T: Element>(&self, memory: &Memory<T, Self>, data: &[T]) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.device.store(memory, data) }
    }

    unsafe fn load<T: Element>(&self, memory: &Memory<T, Self>, len: usize) -> Vec<T> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.device.load(memory, len) }
    }
}
