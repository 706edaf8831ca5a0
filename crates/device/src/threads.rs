//! The CPU as a device: each lane is a thread with a FIFO queue, and events are real.
//!
//! The host blocks in [`Device::land`] and, when the last handle drops, until the lanes have
//! ended. Everything else it calls takes a short lock at most: a queue's (to append) or the
//! events' (to look).

use crate::clock::Clock;
use crate::device::{
    Access, Buffer, BufferId, Device, DeviceId, DeviceLost, Element, Job, LANES, LaneId, Program,
    Reason, Touch, Usage, panic_message, same_device,
};
use crate::graph::Kept;
use crate::memory::{Host, HostMemory};
use crate::record::Recorder;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// A device whose lanes are threads of this process.
#[derive(Clone)]
pub struct Threads {
    inner: Arc<Inner>,
}

struct Inner {
    queues: [Mutex<Queue>; LANES],
    threads: Vec<JoinHandle<()>>,
    waits: Mutex<Usage>,
    buffers: AtomicU32,
    state: Arc<State>,
}

/// The host's end of a lane.
struct Queue {
    ops: Sender<Op>,
    /// Events handed out so far.
    issued: u64,
}

/// What the lanes' threads share with the host.
struct State {
    id: DeviceId,
    /// Events reached so far, by lane.
    reached: Mutex<[u64; LANES]>,
    /// An event was reached, or the device was lost.
    changed: Condvar,
    lost: OnceLock<DeviceLost>,
    /// Nanoseconds inside jobs, by lane.
    busy: [AtomicU64; LANES],
    clock: Clock,
    recorder: Option<Recorder>,
}

/// A point in a lane's queue.
#[derive(Clone)]
pub struct ThreadEvent {
    device: DeviceId,
    lane: LaneId,
    /// Reached when the lane has reached this many.
    ticket: u64,
}

impl ThreadEvent {
    /// The event's number in recordings.
    fn number(&self) -> u64 {
        self.ticket * LANES as u64 + self.lane.index() as u64
    }
}

enum Op {
    Record(ThreadEvent),
    Wait(ThreadEvent),
    Job { what: &'static str, touches: Vec<Touch>, launch: u64, job: Job<()> },
}

impl Threads {
    /// A device with its four lanes.
    pub fn new() -> Threads {
        Threads::start(0, Clock::wall())
    }

    /// A device that keeps the newest `capacity` entries of what its lanes and host do.
    pub fn recording(capacity: usize) -> Threads {
        Threads::start(capacity, Clock::wall())
    }

    /// A device that is measured by `clock`, but for what lanes and waits take.
    pub fn timed_by(clock: Clock) -> Threads {
        Threads::start(0, clock)
    }

    /// No recorder is kept for a capacity of 0.
    fn start(capacity: usize, clock: Clock) -> Threads {
        let state = Arc::new(State {
            id: DeviceId::default(),
            reached: Mutex::default(),
            changed: Condvar::new(),
            lost: OnceLock::new(),
            busy: Default::default(),
            recorder: (capacity > 0).then(|| Recorder::new(&clock, capacity)),
            clock,
        });
        let mut threads = Vec::new();
        let queues = LaneId::ALL.map(|lane| {
            let (ops, queue) = channel();
            let state = state.clone();
            let thread = std::thread::Builder::new()
                .name(format!("lane-{}", lane.name()))
                .spawn(move || state.serve(lane, &queue))
                .expect("the operating system can start a thread");
            threads.push(thread);
            Mutex::new(Queue { ops, issued: 0 })
        });
        let (waits, buffers) = (Mutex::default(), AtomicU32::new(0));
        Threads { inner: Arc::new(Inner { queues, threads, waits, buffers, state }) }
    }

    fn queue(&self, lane: LaneId, op: Op) {
        // A lane that is gone shows at `land`: the device is lost.
        let _ = lock(&self.inner.queues[lane.index()]).ops.send(op);
    }

    fn runs_on(&self, thread: ThreadId) -> bool {
        self.inner.threads.iter().any(|lane| lane.thread().id() == thread)
    }
}

impl Default for Threads {
    fn default() -> Threads {
        Threads::new()
    }
}

/// Locks; what these mutexes guard is never left half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// A lane's thread: runs its queue until every handle is dropped or the device is lost.
    fn serve(&self, lane: LaneId, queue: &Receiver<Op>) {
        let recorder = self.recorder.as_ref();
        while let Ok(op) = queue.recv() {
            let start = recorder.map(Recorder::now);
            match op {
                Op::Record(event) => {
                    recorder.inspect(|recorder| recorder.recorded(lane, event.number()));
                    lock(&self.reached)[lane.index()] = event.ticket;
                    self.changed.notify_all();
                }
                Op::Wait(event) => {
                    if self.until(&event).is_err() {
                        return;
                    }
                    if let (Some(recorder), Some(start)) = (recorder, start) {
                        recorder.waited(lane, event.number(), start);
                    }
                }
                Op::Job { what, touches, launch, job } => {
                    if !self.run(lane, what, job) {
                        return;
                    }
                    if let (Some(recorder), Some(start)) = (recorder, start) {
                        recorder.ran(lane, what, touches, launch, start);
                    }
                }
            }
        }
    }

    /// Runs a job; false when the device is lost.
    fn run(&self, lane: LaneId, what: &'static str, job: Job<()>) -> bool {
        if self.lost.get().is_some() {
            return false;
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| job(&())));
        self.busy[lane.index()].fetch_add(nanoseconds(start.elapsed()), Ordering::Relaxed);
        let Err(payload) = outcome else { return true };
        // The first failure is the cause; `set` refuses later ones.
        let _ = self.lost.set(DeviceLost { lane, job: what, message: panic_message(&*payload) });
        // Whoever is about to sleep holds the lock from its last look until it does.
        drop(lock(&self.reached));
        self.changed.notify_all();
        false
    }

    fn reached(&self, event: &ThreadEvent) -> bool {
        lock(&self.reached)[event.lane.index()] >= event.ticket
    }

    /// Blocks until the event is reached; how often that made it sleep.
    fn until(&self, event: &ThreadEvent) -> Result<u64, DeviceLost> {
        let mut reached = lock(&self.reached);
        let mut slept = 0;
        while reached[event.lane.index()] < event.ticket {
            if let Some(lost) = self.lost.get() {
                return Err(lost.clone());
            }
            reached = self.changed.wait(reached).unwrap_or_else(PoisonError::into_inner);
            slept = 1;
        }
        Ok(slept)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("fewer than 500 years")
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Ends each lane behind what is queued: the new queue has no receiver.
        for queue in &mut self.queues {
            queue.get_mut().unwrap_or_else(PoisonError::into_inner).ops = channel().0;
        }
        // A job may hold the last handle to its own device; a lane that waited for the others
        // here could wait for its own events. They end by themselves then.
        let me = std::thread::current().id();
        if self.threads.iter().all(|thread| thread.thread().id() != me) {
            for thread in self.threads.drain(..) {
                // A panic on a lane was caught and is reported by `land`.
                let _ = thread.join();
            }
        }
    }
}

// SAFETY: a lane's thread takes operations in the order of its channel and runs one at a time.
// Events of a lane are numbered under the lock under which they are queued, so `reached` has
// passed a ticket only when everything queued before that event has run; its mutex makes what
// ran visible to whoever sees that. A wait returns only then, or ends the lane. Foreign events
// panic in `wait`, `reached` and `land`, foreign memory in `store` and `load`. `read_done` is
// the provided one.
unsafe impl Device for Threads {
    type Event = ThreadEvent;
    type Space = Host;
    type Queue = ();
    type Captured = Kept;

    fn id(&self) -> &DeviceId {
        &self.inner.state.id
    }

    fn clock(&self) -> &Clock {
        &self.inner.state.clock
    }

    fn register(&self, label: &'static str, len: usize) -> Buffer {
        let id = BufferId(self.inner.buffers.fetch_add(1, Ordering::Relaxed));
        self.recorder().inspect(|recorder| recorder.registered(id, label));
        Buffer { device: self.id().clone(), id, len }
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> HostMemory<T> {
        HostMemory::new(self.register(label, len))
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job<()>) {
        let launch = self.recorder().map_or(0, |r| r.launched(lane, what, r.now()));
        self.queue(lane, Op::Job { what, touches, launch, job });
    }

    fn capture(&self, _: LaneId, _: &'static str, program: Program<()>) -> Kept {
        Kept::new(program)
    }

    fn replay(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, captured: &Kept) {
        self.launch(lane, what, touches, captured.job());
    }

    fn record(&self, lane: LaneId) -> ThreadEvent {
        let mut queue = lock(&self.inner.queues[lane.index()]);
        queue.issued += 1;
        let event = ThreadEvent { device: self.id().clone(), lane, ticket: queue.issued };
        // A lane that is gone shows at `land`: the device is lost.
        let _ = queue.ops.send(Op::Record(event.clone()));
        event
    }

    fn wait(&self, lane: LaneId, event: &ThreadEvent) {
        same_device(self.id(), &event.device);
        // A lane's own past is always behind it.
        if lane != event.lane {
            self.queue(lane, Op::Wait(event.clone()));
        }
    }

    fn reached(&self, event: &ThreadEvent) -> bool {
        same_device(self.id(), &event.device);
        let reached = self.inner.state.reached(event);
        if reached {
            self.recorder().inspect(|recorder| recorder.host_saw(event.number()));
        }
        reached
    }

    fn land(&self, event: &ThreadEvent, reason: Reason) -> Result<(), DeviceLost> {
        same_device(self.id(), &event.device);
        let me = std::thread::current().id();
        assert!(!self.runs_on(me), "a job must not wait for its own device");
        let (began, start) = (Instant::now(), self.recorder().map(Recorder::now));
        let landed = self.inner.state.until(event);
        let slept = landed.as_ref().copied().unwrap_or(1);
        lock(&self.inner.waits).waited(reason, slept, began.elapsed());
        landed?;
        if let (Some(recorder), Some(start)) = (self.recorder(), start) {
            recorder.host_waited(event.number(), reason, start);
        }
        Ok(())
    }

    fn lost(&self) -> Option<DeviceLost> {
        self.inner.state.lost.get().cloned()
    }

    fn usage(&self) -> Usage {
        let busy = |lane: &AtomicU64| Duration::from_nanos(lane.load(Ordering::Relaxed));
        Usage { busy: self.inner.state.busy.each_ref().map(busy), ..*lock(&self.inner.waits) }
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.inner.state.recorder.as_ref()
    }

    unsafe fn store<T: Element>(&self, memory: &HostMemory<T>, data: &[T]) {
        let touch = memory.touch(self.id(), Access::Write, data.len());
        self.recorder().inspect(|recorder| recorder.touched("store", touch));
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.store(data) }
    }

    unsafe fn load<T: Element>(&self, memory: &HostMemory<T>, len: usize) -> Vec<T> {
        let touch = memory.touch(self.id(), Access::Read, len);
        self.recorder().inspect(|recorder| recorder.touched("load", touch));
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.load(len) }
    }
}
