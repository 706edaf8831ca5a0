//! A CUDA card as a device: lanes are streams, and events are the driver's.
//!
//! A job runs on the host when it is launched and enqueues copies, clears and kernels on its lane's
//! [`Queue`]; what it enqueues runs on the card when the lane gets there. The slices a job sees are
//! ranges of the card's or of pinned memory: only the queue that the job is handed takes them, and
//! neither outlives the job.
//!
//! ```no_run
//! use device::cuda::{Cuda, CudaOptions, Grid, Module, Source, Writes};
//! use device::{Forward, Lanes, Readback, Shared};
//! const SOURCE: Source = Source {
//!     name: "fill.cu",
//!     text: "extern \"C\" __global__ void fill(unsigned *to, unsigned long long len, unsigned v)
//!            {
//!                if (threadIdx.x < len) to[threadIdx.x] = v;
//!            }",
//! };
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = Cuda::new(CudaOptions::default())?;
//! // SAFETY: the function has these parameters and writes to the slice only.
//! let fill = unsafe { Module::load(&cuda, &SOURCE)?.kernel::<(Writes<u32>, u32)>("fill")? };
//! let lanes = Lanes::new(&cuda);
//! let mut out: Readback<u32, Forward, Cuda> = Readback::new(&cuda, "out", 1, 4);
//! let mut filling = out.fill(&lanes.forward, 4);
//! let arguments = (lanes.forward.queue(), filling.view());
//! lanes.forward.launch("fill", arguments, move |(queue, out)| {
//!     queue.launch(&fill, Grid { blocks: 1, threads: 32 }, (out, 7));
//! });
//! assert_eq!(filling.pending().land()?, [7; 4]);
//! # Ok(())
//! # }
//! ```
//!
//! The library links nothing of CUDA: the driver and the compiler are opened when they are asked
//! for, and a machine without them gets a [`CudaError`] that says what is missing.
//!
//! A device is lost for good when a job panics or the driver fails. Failures on the card come to
//! light later, at whatever call is made next: the message then names the job behind which it did.
//!
//! Besides [`Device::land`] and the end of the last handle, making a buffer may wait for the
//! driver: buffers are made when a program starts. The driver itself waits for the card when about
//! 110 recorded events are pending (driver 580); two steps in flight leave about twenty.

mod compile;
mod driver;
mod error;
mod graph;
mod memory;
mod module;
mod queue;
mod timing;
mod turn;

pub use compile::{Compiled, Source, compile};
pub use error::CudaError;
pub use graph::CudaGraph;
pub use memory::{CudaMemory, CudaSlice, CudaSliceMut, OnCard};
pub use module::{Kernel, Module, Number, Parameter, Parameters, Reads, Words, Writes};
pub use queue::{Grid, Queue};

use crate::clock::Clock;
use crate::device::{
    Buffer, BufferId, Device, DeviceId, DeviceLost, Element, Job, LANES, LaneId, Program, Reason,
    Touch, Usage, panic_message, same_device,
};
use crate::record::Recorder;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use driver::{Context, Event, Handle, Priority, Stream, failed, said};
use memory::{Kind, Retired};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use timing::Timing;
use turn::Turns;

/// A device whose lanes are streams of one card.
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

/// What a CUDA device is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Which card, from 0.
    pub card: usize,
    /// Lanes whose kernels go before those of the others that are ready.
    pub urgent: Vec<LaneId>,
    /// The folder where compiled kernels are kept; none are without one.
    pub cache: Option<PathBuf>,
    /// Whether times inside jobs are measured.
    pub timing: JobTiming,
}

/// Whether [`Usage::busy`] is measured, with two more events a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum JobTiming {
    /// It stays zero.
    #[default]
    Off,
    /// It is the time that what jobs enqueued took on the card.
    On,
}

impl Default for CudaOptions {
    /// The first card, the short kernels of the other lanes before the forward lane's, which fill
    /// the card; nothing kept, nothing timed.
    fn default() -> CudaOptions {
        let urgent = vec![LaneId::Schedule, LaneId::Plan, LaneId::Copies];
        let timing = JobTiming::Off;
        CudaOptions { card: 0, urgent, cache: None, timing }
    }
}

/// Fields are dropped from first to last: the context outlives what lies in it.
struct Inner {
    id: DeviceId,
    clock: Clock,
    queues: [Queue; LANES],
    /// Fills new buffers.
    setup: Stream,
    turns: Turns<Op>,
    /// Events that nobody holds.
    pool: Mutex<Vec<Event>>,
    retired: Mutex<Vec<Retired>>,
    timing: Option<Mutex<Timing>>,
    modules: Mutex<Vec<Handle<sys::CUmodule>>>,
    buffers: AtomicU32,
    waits: Mutex<Usage>,
    latest: Mutex<Latest>,
    lost: OnceLock<DeviceLost>,
    options: CudaOptions,
    context: Context,
}

/// What was launched last: where a failure comes to light.
struct Latest {
    lane: LaneId,
    /// The last job of each lane.
    jobs: [&'static str; LANES],
}

/// A point in a lane's stream.
#[derive(Clone)]
pub struct CudaEvent(Arc<Point>);

struct Point {
    of: Arc<Inner>,
    lane: LaneId,
    /// Once it was enqueued, with the lane's last job before it; never on a lost device.
    recorded: OnceLock<(Event, &'static str)>,
}

impl Drop for Point {
    fn drop(&mut self) {
        if let Some((event, _)) = self.recorded.take() {
            self.of.pool().push(event);
        }
    }
}

/// What is enqueued in turn.
enum Op {
    Record(CudaEvent),
    Wait(LaneId, CudaEvent),
    Launch(LaneId, &'static str, Job<Queue>),
}

/// Locks; what these mutexes guard is never left half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cuda {
    /// Opens a card.
    ///
    /// # Errors
    /// No driver, one that is too old, no such card, a card that is too old, or a failure of the
    /// driver.
    pub fn new(options: CudaOptions) -> Result<Cuda, CudaError> {
        let context = Context::new(options.card)?;
        let capability = context.capability;
        if capability.0 < 8 {
            return Err(CudaError::OldCard { name: context.name.clone(), capability });
        }
        let id = DeviceId::default();
        let making = failed("making a stream");
        let stream = |lane: LaneId| {
            let urgent = options.urgent.contains(&lane);
            Stream::new(if urgent { Priority::Highest } else { Priority::Lowest })
        };
        let [schedule, plan, forward, copies] = LaneId::ALL.map(stream);
        let queue = |stream: Result<Stream, DriverError>| {
            stream.map(|stream| Queue::new(id.clone(), stream)).map_err(&making)
        };
        let queues = [queue(schedule)?, queue(plan)?, queue(forward)?, queue(copies)?];
        let timing = (options.timing == JobTiming::On).then(Mutex::default);
        let inner = Inner {
            queues,
            setup: Stream::new(Priority::Lowest).map_err(&making)?,
            id,
            clock: Clock::wall(),
            turns: Turns::new(),
            pool: Mutex::default(),
            retired: Mutex::default(),
            timing,
            modules: Mutex::default(),
            buffers: AtomicU32::new(0),
            waits: Mutex::default(),
            latest: Mutex::new(Latest { lane: LaneId::Forward, jobs: ["none"; LANES] }),
            lost: OnceLock::new(),
            options,
            context,
        };
        Ok(Cuda { inner: Arc::new(inner) })
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        &self.inner.context.name
    }

    /// What kernels are compiled for, such as `sm_90a`.
    pub fn target(&self) -> String {
        compile::target(self.inner.context.capability)
    }

    /// What it was made with.
    pub fn options(&self) -> &CudaOptions {
        &self.inner.options
    }

    /// Its multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.inner.context.multiprocessors
    }

    /// Bytes of shared memory that a block of threads may have at most.
    pub fn shared(&self) -> u32 {
        self.inner.context.shared
    }

    /// Bytes of the card's memory that nobody has, and all.
    ///
    /// # Errors
    /// A failure of the driver.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let asking = failed("asking for free memory");
        self.bind().map_err(&asking)?;
        result::mem_get_info().map_err(&asking)
    }

    fn cache(&self) -> Option<&Path> {
        self.inner.options.cache.as_deref()
    }

    fn bind(&self) -> Result<(), DriverError> {
        self.inner.context.bind()
    }

    /// Keeps a module until the device ends: kernels may run until then.
    fn keep(&self, module: Handle<sys::CUmodule>) {
        lock(&self.inner.modules).push(module);
    }

    fn make<T: Element>(&self, label: &'static str, kind: Kind, len: usize) -> CudaMemory<T> {
        let bytes = len.checked_mul(size_of::<T>()).expect("a buffer's bytes are a number");
        if let Err(error) = self.bind() {
            self.inner.lose_somewhere(error);
        }
        let block = self.inner.lease(label, kind, bytes);
        let memory = CudaMemory::new(self.register(label, len), block);
        if let Err(error) = self.inner.fill(&memory) {
            self.inner.lose_somewhere(error);
        }
        memory
    }
}

impl Inner {
    fn pool(&self) -> MutexGuard<'_, Vec<Event>> {
        lock(&self.pool)
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Retired>> {
        lock(&self.retired)
    }

    fn queue(&self, lane: LaneId) -> &Queue {
        &self.queues[lane.index()]
    }

    /// An event at this point of `stream`.
    fn event_on(&self, stream: &Stream) -> Result<Event, DriverError> {
        let pooled = self.pool().pop();
        let event = pooled.map_or_else(Event::new, Ok)?;
        event.record(stream)?;
        Ok(event)
    }

    /// The first failure is the cause; later ones change nothing.
    fn lose(&self, lane: LaneId, job: &'static str, message: String) {
        let _ = self.lost.set(DeviceLost { lane, job, message });
    }

    /// A failure that no call for one lane brought to light.
    fn lose_somewhere(&self, error: DriverError) {
        let lane = lock(&self.latest).lane;
        self.lose(lane, self.latest_of(lane), behind(error));
    }

    fn latest_of(&self, lane: LaneId) -> &'static str {
        lock(&self.latest).jobs[lane.index()]
    }

    fn act(self: &Arc<Inner>, op: Op) {
        self.turns.act(op, |op| self.perform(op));
    }

    fn perform(&self, op: Op) {
        if self.lost.get().is_some() {
            return;
        }
        if let Err(error) = self.context.bind() {
            return self.lose_somewhere(error);
        }
        match op {
            Op::Record(CudaEvent(point)) => {
                let job = self.latest_of(point.lane);
                match self.event_on(self.queue(point.lane).stream()) {
                    Ok(event) => {
                        let recorded = point.recorded.set((event, job));
                        assert!(recorded.is_ok(), "an event is recorded once");
                    }
                    Err(error) => self.lose(point.lane, job, behind(error)),
                }
            }
            Op::Wait(lane, CudaEvent(point)) => {
                // An event without a record is a lost device's, and nothing runs behind it.
                let Some((event, job)) = point.recorded.get() else { return };
                if let Err(error) = self.queue(lane).stream().wait(event) {
                    self.lose(point.lane, job, behind(error));
                }
            }
            Op::Launch(lane, what, job) => {
                {
                    let mut latest = lock(&self.latest);
                    latest.lane = lane;
                    latest.jobs[lane.index()] = what;
                }
                if let Err(message) = self.run(lane, job) {
                    self.lose(lane, what, message);
                }
            }
        }
    }

    /// Runs a job, which enqueues its work.
    fn run(&self, lane: LaneId, job: Job<Queue>) -> Result<(), String> {
        let queue = self.queue(lane);
        let mark = || {
            let timing = self.timing.as_ref();
            timing.map(|timing| lock(timing).mark(queue.stream())).transpose().map_err(said)
        };
        let start = mark()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| job(queue)));
        let failure = queue.failure();
        outcome.map_err(|payload| panic_message(&*payload))?;
        failure.map_or(Ok(()), Err)?;
        if let (Some(timing), Some(start), Some(end)) = (&self.timing, start, mark()?) {
            lock(timing).ran(lane, start, end).map_err(said)?;
        }
        Ok(())
    }
}

/// The text for a failure on the card, which is known only some time after the job that failed.
fn behind(error: DriverError) -> String {
    format!("{}; it came to light behind this job", said(error))
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What the lanes still run uses memory and modules that go now. Failures change nothing:
        // the process has no other use for what could not be given back.
        let _ = self.context.bind();
        for queue in &self.queues {
            let _ = queue.stream().synchronize();
        }
        for module in lock(&self.modules).drain(..) {
            // SAFETY: loaded by `Module::load`, unloaded here only; no kernel runs any more.
            let _ = unsafe { result::module::unload(module.0) };
        }
    }
}

// SAFETY: jobs run in turn, one at a time, when they are launched, and what a job enqueues goes to
// its lane's stream only, which keeps the order. What a job asks for itself comes after it. A wait
// is a wait of the stream, enqueued before anything launched later. An event is recorded in its
// lane's stream behind everything launched before; the driver makes what ran before it visible to
// streams that wait for it, and to the host that saw it reached. A lost device enqueues nothing
// more, and an event that was not recorded is never reached. A graph is launched on its lane's
// stream. Foreign events panic in `wait`, `reached` and `land`, foreign memory in `store` and
// `load`. `read_done` is the provided one.
unsafe impl Device for Cuda {
    type Event = CudaEvent;
    type Space = OnCard;
    type Queue = Queue;
    type Captured = CudaGraph;

    fn id(&self) -> &DeviceId {
        &self.inner.id
    }

    fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    fn register(&self, _: &'static str, len: usize) -> Buffer {
        let id = BufferId(self.inner.buffers.fetch_add(1, Ordering::Relaxed));
        Buffer { device: self.id().clone(), id, len }
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> CudaMemory<T> {
        self.make(label, Kind::Card, len)
    }

    fn alloc_pinned<T: Element>(&self, label: &'static str, len: usize) -> CudaMemory<T> {
        self.make(label, Kind::Pinned, len)
    }

    fn launch(&self, lane: LaneId, what: &'static str, _: Vec<Touch>, job: Job<Queue>) {
        self.inner.act(Op::Launch(lane, what, job));
    }

    fn capture(&self, lane: LaneId, what: &'static str, program: Program<Queue>) -> CudaGraph {
        let (graph, capturing) = CudaGraph::new(&self.inner, program);
        self.inner.act(Op::Launch(lane, what, capturing));
        graph
    }

    fn replay(&self, lane: LaneId, what: &'static str, _: Vec<Touch>, captured: &CudaGraph) {
        self.inner.act(Op::Launch(lane, what, captured.job()));
    }

    fn record(&self, lane: LaneId) -> CudaEvent {
        let point = Point { of: self.inner.clone(), lane, recorded: OnceLock::new() };
        let event = CudaEvent(Arc::new(point));
        self.inner.act(Op::Record(event.clone()));
        event
    }

    fn wait(&self, lane: LaneId, event: &CudaEvent) {
        same_device(self.id(), &event.0.of.id);
        // A lane's own past is always behind it.
        if lane != event.0.lane {
            self.inner.act(Op::Wait(lane, event.clone()));
        }
    }

    fn reached(&self, event: &CudaEvent) -> bool {
        same_device(self.id(), &event.0.of.id);
        let Some((recorded, job)) = event.0.recorded.get() else { return false };
        let reached = self.bind().and_then(|()| recorded.reached());
        reached.unwrap_or_else(|error| {
            self.inner.lose(event.0.lane, job, behind(error));
            false
        })
    }

    fn land(&self, event: &CudaEvent, reason: Reason) -> Result<(), DeviceLost> {
        same_device(self.id(), &event.0.of.id);
        // An event that a job of another thread asked for is recorded when that job has ended.
        self.inner.turns.pass();
        let began = Instant::now();
        let mut blocked = 1;
        if let Some((recorded, job)) = event.0.recorded.get() {
            let landed = self.bind().and_then(|()| {
                blocked = u64::from(!recorded.reached()?);
                recorded.synchronize()
            });
            lock(&self.inner.waits).waited(reason, blocked, began.elapsed());
            return landed.map_err(|error| {
                self.inner.lose(event.0.lane, job, behind(error));
                self.lost().expect("the device was just lost")
            });
        }
        lock(&self.inner.waits).waited(reason, blocked, began.elapsed());
        Err(self.lost().expect("only a lost device leaves an event unrecorded"))
    }

    fn lost(&self) -> Option<DeviceLost> {
        self.inner.lost.get().cloned()
    }

    fn usage(&self) -> Usage {
        let mut usage = *lock(&self.inner.waits);
        if let Some(timing) = &self.inner.timing {
            let busy = self.bind().and_then(|()| lock(timing).busy());
            match busy {
                Ok(busy) => usage.busy = busy,
                Err(error) => self.inner.lose_somewhere(error),
            }
        }
        usage
    }

    fn recorder(&self) -> Option<&Recorder> {
        None
    }

    unsafe fn store<T: Element>(&self, memory: &CudaMemory<T>, data: &[T]) {
        same_device(self.id(), &memory.buffer().device);
        if let Some(start) = memory.pinned(data.len()) {
            // SAFETY: in bounds (checked by `pinned`), and by the caller's promise nothing else
            // touches these elements now. `data` is borrowed from elsewhere: no safe code on the
            // host holds a slice of this memory.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start, data.len()) }
        }
    }

    unsafe fn load<T: Element>(&self, memory: &CudaMemory<T>, len: usize) -> Vec<T> {
        same_device(self.id(), &memory.buffer().device);
        let Some(start) = memory.pinned(len) else { return vec![T::default(); len] };
        // SAFETY: in bounds (checked by `pinned`), initialised when it was made, and by the
        // caller's promise nothing writes these elements now.
        unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
    }
}
