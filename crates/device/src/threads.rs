//! The CPU as a device: each lane is a thread with a FIFO queue, and events are real.

use crate::device::{
    Access, BufferId, Device, DeviceLost, Element, Job, LANES, LaneId, Touch,
};
use crate::memory::{HostMemory, HostMut, HostRef};
use crate::record::{Recorder, Track};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A device whose lanes are threads of this process.
#[derive(Clone)]
pub struct Threads {
    inner: Arc<Inner>,
}

struct Inner {
    queues: [Mutex<Option<Sender<Op>>>; LANES],
    threads: Mutex<Vec<JoinHandle<()>>>,
    signal: Arc<Signal>,
    buffers: AtomicU32,
    events: AtomicU64,
    recorder: Option<Recorder>,
}

/// A point in a lane's queue: the number of it.
#[derive(Clone)]
pub struct ThreadEvent {
    id: u64,
    lane: LaneId,
    /// Reached when the lane has recorded this many events.
    ticket: u64,
}

enum Op {
    Record { id: u64 },
    Wait(ThreadEvent),
    Job { what: &'static str, touches: Vec<Touch>, job: Job },
}

/// What lanes and the host wait on.
#[derive(Default)]
struct Signal {
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Events recorded so far, by lane.
    reached: [u64; LANES],
    /// Events handed out so far, by lane.
    issued: [u64; LANES],
    lost: bool,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until the event is reached; an error when the device is lost before.
    fn until(&self, event: &ThreadEvent) -> Result<(), DeviceLost> {
        let mut progress = self.lock();
        loop {
            if progress.reached[event.lane.index()] >= event.ticket {
                return Ok(());
            }
            if progress.lost {
                return Err(DeviceLost);
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lose(&self) {
        self.lock().lost = true;
        self.changed.notify_all();
    }
}

impl Threads {
    /// A device with its four lanes.
    pub fn new() -> Threads {
        Threads::start(None)
    }

    /// A device that writes down what its lanes do.
    pub fn recorded(recorder: Recorder) -> Threads {
        Threads::start(Some(recorder))
    }

    fn start(recorder: Option<Recorder>) -> Threads {
        let signal = Arc::new(Signal::default());
        let mut threads = Vec::new();
        let queues = LaneId::ALL.map(|lane| {
            let (send, receive) = channel();
            let (signal, recorder) = (signal.clone(), recorder.clone());
            let thread = std::thread::Builder::new()
                .name(format!("lane-{}", lane.name()))
                .spawn(move || serve(lane, &receive, &signal, recorder.as_ref()))
                .expect("the operating system can start a thread");
            threads.push(thread);
            Mutex::new(Some(send))
        });
        let inner = Inner {
            queues,
            threads: Mutex::new(threads),
            signal,
            buffers: AtomicU32::new(0),
            events: AtomicU64::new(0),
            recorder,
        };
        Threads { inner: Arc::new(inner) }
    }

    fn queue(&self, lane: LaneId, op: Op) {
        let queue = self.inner.queues[lane.index()].lock();
        let queue = queue.unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queue.as_ref() {
            // A lane that is gone shows at `land`: the device is lost.
            let _ = queue.send(op);
        }
    }
}

impl Default for Threads {
    fn default() -> Threads {
        Threads::new()
    }
}

/// A lane's thread: runs its queue until the device is dropped or lost.
fn serve(lane: LaneId, queue: &Receiver<Op>, signal: &Signal, recorder: Option<&Recorder>) {
    while let Ok(op) = queue.recv() {
        match op {
            Op::Record { id } => {
                if let Some(recorder) = recorder {
                    recorder.recorded(Track::Lane(lane), id);
                }
                signal.lock().reached[lane.index()] += 1;
                signal.changed.notify_all();
            }
            Op::Wait(event) => {
                let start = recorder.map(Recorder::now);
                if signal.until(&event).is_err() {
                    return;
                }
                if let (Some(recorder), Some(start)) = (recorder, start) {
                    recorder.waited(Track::Lane(lane), event.id, start);
                }
            }
            Op::Job { what, touches, job } => {
                let start = recorder.map(Recorder::now);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    signal.lose();
                    return;
                }
                if let (Some(recorder), Some(start)) = (recorder, start) {
                    recorder.ran(Track::Lane(lane), what, touches, start);
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A job may hold the last handle to its own device; a thread cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                // A panic on a lane was caught and reported by `land`.
                let _ = thread.join();
            }
        }
    }
}

impl Device for Threads {
    type Event = ThreadEvent;
    type Memory<T: Element> = HostMemory<T>;
    type Ref<T: Element> = HostRef<T>;
    type Mut<T: Element> = HostMut<T>;

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> HostMemory<T> {
        let id = BufferId(self.inner.buffers.fetch_add(1, Ordering::Relaxed));
        if let Some(recorder) = &self.inner.recorder {
            recorder.named(id, label);
        }
        HostMemory::new(id, len)
    }

    fn describe<T: Element>(&self, memory: &HostMemory<T>) -> (BufferId, usize) {
        (memory.id, memory.len())
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job) {
        self.queue(lane, Op::Job { what, touches, job });
    }

    fn record(&self, lane: LaneId) -> ThreadEvent {
        let id = self.inner.events.fetch_add(1, Ordering::Relaxed);
        let ticket = {
            let mut progress = self.inner.signal.lock();
            progress.issued[lane.index()] += 1;
            progress.issued[lane.index()]
        };
        self.queue(lane, Op::Record { id });
        ThreadEvent { id, lane, ticket }
    }

    fn wait(&self, lane: LaneId, event: &ThreadEvent) {
        // A lane's own past is always behind it.
        if lane != event.lane {
            self.queue(lane, Op::Wait(event.clone()));
        }
    }

    fn reached(&self, event: &ThreadEvent) -> bool {
        let reached = self.inner.signal.lock().reached[event.lane.index()] >= event.ticket;
        if let (true, Some(recorder)) = (reached, &self.inner.recorder) {
            recorder.waited(Track::Host, event.id, recorder.now());
        }
        reached
    }

    fn land(&self, event: &ThreadEvent) -> Result<(), DeviceLost> {
        let start = self.inner.recorder.as_ref().map(Recorder::now);
        self.inner.signal.until(event)?;
        if let (Some(recorder), Some(start)) = (&self.inner.recorder, start) {
            recorder.waited(Track::Host, event.id, start);
        }
        Ok(())
    }

    unsafe fn reader<T: Element>(&self, memory: &HostMemory<T>, range: Range<usize>) -> HostRef<T> {
        // SAFETY: the caller's promise, passed on.
        unsafe { HostRef::new(memory, range) }
    }

    unsafe fn writer<T: Element>(&self, memory: &HostMemory<T>, range: Range<usize>) -> HostMut<T> {
        // SAFETY: the caller's promise, passed on.
        unsafe { HostMut::new(memory, range) }
    }

    unsafe fn host<'a, T: Element>(
        &self,
        memory: &'a HostMemory<T>,
        access: Access,
        range: Range<usize>,
    ) -> &'a mut [T] {
        if let Some(recorder) = &self.inner.recorder {
            let touch = Touch { buffer: memory.id, access, range: range.clone() };
            recorder.ran(Track::Host, "host", vec![touch], recorder.now());
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.slice(range) }
    }
}
