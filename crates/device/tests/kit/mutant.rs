//! A CUDA device whose shared buffers forget that they were read: what the fences are for.

use device::cuda::{Cuda, CudaEvent, CudaGraph, CudaMemory, OnCard, Queue};
use device::{
    Buffer, Clock, Device, DeviceId, DeviceLost, Element, Job, LaneId, Program, ReadDone, Reason,
    Recorder, Touch, Usage,
};

/// The device, and how its buffers remember.
#[derive(Clone)]
pub(crate) struct Mutant {
    pub(crate) cuda: Cuda,
    pub(crate) read_done: ReadDone,
}

// SAFETY: all but `read_done` is the device's own. Where that forgets a reader, copies on the card
// meet in memory that only the card touches: numbers are wrong, and that is what the test counts.
unsafe impl Device for Mutant {
    type Event = CudaEvent;
    type Space = OnCard;
    type Queue = Queue;
    type Captured = CudaGraph;

    fn id(&self) -> &DeviceId {
        self.cuda.id()
    }

    fn clock(&self) -> &Clock {
        self.cuda.clock()
    }

    fn register(&self, label: &'static str, len: usize) -> Buffer {
        self.cuda.register(label, len)
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> CudaMemory<T> {
        self.cuda.alloc(label, len)
    }

    fn alloc_pinned<T: Element>(&self, label: &'static str, len: usize) -> CudaMemory<T> {
        self.cuda.alloc_pinned(label, len)
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job<Queue>) {
        self.cuda.launch(lane, what, touches, job);
    }

    fn capture(&self, lane: LaneId, what: &'static str, program: Program<Queue>) -> CudaGraph {
        self.cuda.capture(lane, what, program)
    }

    fn replay(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, graph: &CudaGraph) {
        self.cuda.replay(lane, what, touches, graph);
    }

    fn record(&self, lane: LaneId) -> CudaEvent {
        self.cuda.record(lane)
    }

    fn wait(&self, lane: LaneId, event: &CudaEvent) {
        self.cuda.wait(lane, event);
    }

    fn reached(&self, event: &CudaEvent) -> bool {
        self.cuda.reached(event)
    }

    fn land(&self, event: &CudaEvent, reason: Reason) -> Result<(), DeviceLost> {
        self.cuda.land(event, reason)
    }

    fn lost(&self) -> Option<DeviceLost> {
        self.cuda.lost()
    }

    fn usage(&self) -> Usage {
        self.cuda.usage()
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.cuda.recorder()
    }

    fn read_done(&self) -> ReadDone {
        self.read_done
    }

    unsafe fn store<T: Element>(&self, memory: &CudaMemory<T>, data: &[T]) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.cuda.store(memory, data) }
    }

    unsafe fn load<T: Element>(&self, memory: &CudaMemory<T>, len: usize) -> Vec<T> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.cuda.load(memory, len) }
    }
}
