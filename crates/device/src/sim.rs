//! The simulated device: lanes are queues drained in an order drawn from a seed, so that every
//! order the events allow can happen, and vector clocks tell which accesses nothing orders.
//!
//! Each seed also draws a temper: how much the device runs while the host goes on, and how fast
//! each lane is. So some seeds leave a lane far behind and others keep all of them close.
//!
//! Work may be given durations ([`SimOptions::durations`]). The device then has a clock, and
//! [`Device::usage`] has times: exact ones, since they follow from the durations and from what
//! waits for what. Under [`SimOrder::Timed`] the lanes go by that clock instead of the seed, and the
//! host finds reached what is reached by its own time: a real device, without its noise.
//!
//! Jobs never run two at once, on whatever thread the host calls, so a wrong fence makes a race
//! that is reported and a value that is wrong, never undefined behaviour.

use crate::clock::{Clock, Durations, VirtualTime};
use crate::device::{
    Access, Buffer, BufferId, Device, DeviceId, DeviceLost, Element, Job, LANES, LaneId, Program,
    Reason, Touch, Usage, panic_message, same_device,
};
use crate::graph::Kept;
use crate::memory::{Host, HostMemory};
use crate::order::{Actor, Order, Race, VectorClock};
use crate::record::Recorder;
use crate::shared::ReadDone;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// What decides which lane goes on next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SimOrder {
    /// The seed: every order that the events allow can happen.
    #[default]
    Drawn,
    /// The clock: what can start earliest goes first, and nothing starts ahead of the host's time
    /// unless the host waits for it.
    Timed,
}

/// What a simulated device is made with.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// Draws the order of the lanes.
    pub seed: u64,
    /// Whether it does.
    pub order: SimOrder,
    /// How long work takes; no time at all by default.
    pub durations: Durations,
    /// How its shared buffers remember that they were read.
    pub read_done: ReadDone,
    /// Entries of its recorder; none is kept when 0.
    pub record: usize,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            seed: 0,
            order: SimOrder::Drawn,
            durations: |_, _| Duration::ZERO,
            read_done: ReadDone::PerLane,
            record: 0,
        }
    }
}

/// A simulated device.
#[derive(Clone)]
pub struct Sim {
    inner: Arc<Inner>,
}

struct Inner {
    id: DeviceId,
    read_done: ReadDone,
    recorder: Option<Recorder>,
    time: Arc<VirtualTime>,
    clock: Clock,
    state: Mutex<State>,
    /// A job ended.
    idle: Condvar,
}

/// A point in a lane's queue.
#[derive(Clone)]
pub struct SimEvent {
    device: DeviceId,
    id: u64,
    reached: Arc<OnceLock<Reached>>,
}

/// A point that a lane has reached.
struct Reached {
    /// What comes before it.
    after: VectorClock,
    time: Duration,
}

struct State {
    queues: Queues,
    order: Order,
    by: SimOrder,
    buffers: u32,
    events: u64,
    random: Random,
    temper: Temper,
    /// The thread on which a job runs now.
    running: Option<ThreadId>,
    lost: Option<DeviceLost>,
    usage: Usage,
}

type Queues = [VecDeque<Queued>; LANES];

/// What a lane will do, not before it was told to.
struct Queued {
    issued: Duration,
    op: Op,
}

enum Op {
    Record(SimEvent),
    Wait(SimEvent),
    Job {
        what: &'static str,
        touches: Vec<Touch>,
        launched: VectorClock,
        launch: u64,
        job: Job<()>,
    },
}

/// What one call of [`Sim::step`] did.
enum Step {
    Ran,
    /// A job runs already.
    Busy,
    /// Every lane is empty or waits.
    Stuck,
}

/// How a seed's device behaves.
struct Temper {
    /// Operations that run at most while the host calls once.
    drift: u64,
    /// How often each lane is drawn, against the others.
    speed: [u64; LANES],
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

impl Temper {
    fn draw(random: &mut Random) -> Temper {
        // Many are lazy: a device that lags behind the host shows more than one that keeps up.
        let drift = [0, 0, 1, 4][random.below(4) as usize];
        let speed = std::array::from_fn(|_| [1, 4, 16][random.below(3) as usize]);
        Temper { drift, speed }
    }
}

impl Sim {
    /// A device whose lanes run in the order that `seed` draws.
    pub fn new(seed: u64) -> Sim {
        Sim::with(SimOptions { seed, ..SimOptions::default() })
    }

    /// A device as `options` say.
    pub fn with(options: SimOptions) -> Sim {
        let mut random = Random(options.seed);
        let temper = Temper::draw(&mut random);
        let time = Arc::new(VirtualTime::new(options.durations));
        let clock = Clock::simulated(time.clone());
        let state = State {
            queues: Default::default(),
            order: Order::default(),
            by: options.order,
            buffers: 0,
            events: 0,
            random,
            temper,
            running: None,
            lost: None,
            usage: Usage::default(),
        };
        let inner = Inner {
            id: DeviceId::default(),
            read_done: options.read_done,
            recorder: (options.record > 0).then(|| Recorder::new(&clock, options.record)),
            time,
            clock,
            state: Mutex::new(state),
            idle: Condvar::new(),
        };
        Sim { inner: Arc::new(inner) }
    }

    /// The unordered accesses found so far, at most 100.
    pub fn races(&self) -> Vec<Race> {
        self.lock().order.races().to_vec()
    }

    /// Runs everything that is queued. A lost device has nothing queued.
    ///
    /// # Panics
    /// When a job calls it.
    pub fn drain(&self) {
        while self.advance() {}
        let empty = self.lock().queues.iter().all(VecDeque::is_empty);
        assert!(empty, "a lane waits for an event that nothing will record");
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one operation, or waits until another thread has run one; false when none can run.
    fn advance(&self) -> bool {
        match self.step(Duration::MAX) {
            Step::Ran => true,
            Step::Stuck => false,
            Step::Busy => {
                let mut state = self.lock();
                let me = std::thread::current().id();
                assert!(state.running != Some(me), "a job must not wait for its own device");
                while state.running.is_some() {
                    state = self.inner.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                true
            }
        }
    }

    /// Runs one operation of those that can start by `limit`.
    fn step(&self, limit: Duration) -> Step {
        let mut state = self.lock();
        if state.running.is_some() {
            return Step::Busy;
        }
        let time = &self.inner.time;
        let Some((lane, start, op)) = state.next(time, limit) else { return Step::Stuck };
        let (actor, recorder, free) = (Actor::Lane(lane), self.recorder(), time.free(lane));
        time.begin(lane, start);
        match op {
            Op::Record(event) => {
                let reached = Reached { after: state.order.clock(actor), time: start };
                let first = event.reached.set(reached).is_ok();
                assert!(first, "an event is recorded once");
                recorder.inspect(|recorder| recorder.recorded(lane, event.id));
                time.end(lane, start);
            }
            Op::Wait(event) => {
                let reached = event.reached.get().expect("only reached waits are taken");
                state.order.after(actor, &reached.after);
                recorder.inspect(|recorder| recorder.waited(lane, event.id, free));
                time.end(lane, start);
            }
            Op::Job { what, touches, launched, launch, job } => {
                state.order.after(actor, &launched);
                state.order.act(actor, what, &touches);
                state.running = Some(std::thread::current().id());
                drop(state);
                let size = touches.iter().map(|touch| touch.range.len()).sum();
                time.work(what, size);
                let outcome = catch_unwind(AssertUnwindSafe(|| job(&())));
                recorder.inspect(|recorder| recorder.ran(lane, what, touches, launch, start));
                time.end(lane, start);
                self.end(lane, what, outcome);
            }
        }
        Step::Ran
    }

    /// A job ended: the next may run, unless it panicked.
    fn end(&self, lane: LaneId, job: &'static str, outcome: std::thread::Result<()>) {
        let mut state = self.lock();
        state.running = None;
        let mut dropped = Default::default();
        if let Err(payload) = &outcome {
            state.lost = Some(DeviceLost { lane, job, message: panic_message(&**payload) });
            dropped = std::mem::take(&mut state.queues);
        }
        drop(state);
        self.inner.idle.notify_all();
        // Outside the lock: what the jobs own may call the device when it is dropped.
        drop::<Queues>(dropped);
    }

    /// The host called: the device may run a little in the meantime, or not; by the clock, as far
    /// as the host's time.
    fn drift(&self) {
        let (steps, limit) = {
            let mut state = self.lock();
            match state.by {
                SimOrder::Drawn => {
                    let most = state.temper.drift;
                    (state.random.below(most + 1), Duration::MAX)
                }
                SimOrder::Timed => (u64::MAX, self.inner.time.host()),
            }
        };
        for _ in 0..steps {
            if !matches!(self.step(limit), Step::Ran) {
                break;
            }
        }
    }

    fn queue(&self, lane: LaneId, op: impl FnOnce(&mut State) -> Op) {
        let mut state = self.lock();
        if state.lost.is_none() {
            let (issued, op) = (self.inner.time.now(), op(&mut state));
            state.queues[lane.index()].push_back(Queued { issued, op });
        }
        drop(state);
        self.drift();
    }

    fn host_acts(&self, what: &'static str, touch: Touch) {
        let touches = [touch];
        self.lock().order.act(Actor::Host, what, &touches);
        let [touch] = touches;
        self.recorder().inspect(|recorder| recorder.touched(what, touch));
    }

    /// Whether `event` is reached; the host then comes after it.
    fn seen(&self, event: &SimEvent) -> bool {
        same_device(&self.inner.id, &event.device);
        let Some(reached) = event.reached.get() else { return false };
        self.lock().order.after(Actor::Host, &reached.after);
        self.inner.time.host_saw(reached.time);
        true
    }
}

impl State {
    /// When each lane can go on with its next operation; `None` while it cannot.
    fn starts(&self, time: &VirtualTime) -> [Option<Duration>; LANES] {
        LaneId::ALL.map(|lane| {
            let Queued { issued, op } = self.queues[lane.index()].front()?;
            let start = time.free(lane).max(*issued);
            match op {
                Op::Wait(event) => Some(start.max(event.reached.get()?.time)),
                Op::Record(_) | Op::Job { .. } => Some(start),
            }
        })
    }

    /// Takes an operation of those that can start by `limit`, and when it starts.
    fn next(&mut self, time: &VirtualTime, limit: Duration) -> Option<(LaneId, Duration, Op)> {
        let starts = self.starts(time);
        let able = |lane: &LaneId| starts[lane.index()].is_some_and(|start| start <= limit);
        let lane = match self.by {
            SimOrder::Drawn => self.draw(able),
            SimOrder::Timed => {
                LaneId::ALL.into_iter().filter(able).min_by_key(|lane| starts[lane.index()])
            }
        }?;
        let start = starts[lane.index()].expect("an able lane has a start");
        self.queues[lane.index()].pop_front().map(|queued| (lane, start, queued.op))
    }

    /// A lane drawn among the able ones, by their speeds.
    fn draw(&mut self, able: impl Fn(&LaneId) -> bool) -> Option<LaneId> {
        let speed = |lane: LaneId| if able(&lane) { self.temper.speed[lane.index()] } else { 0 };
        let weights = LaneId::ALL.map(speed);
        let total: u64 = weights.iter().sum();
        if total == 0 {
            return None;
        }
        let mut ticket = self.random.below(total);
        LaneId::ALL.into_iter().find(|lane| {
            let weight = weights[lane.index()];
            let found = ticket < weight;
            ticket = ticket.saturating_sub(weight);
            found
        })
    }
}

// SAFETY: `step` takes operations from the front of each queue, runs none while `running` is set,
// and so never two jobs at once, whatever `read_done` says; one mutex orders what they do. A
// wait stays at the front until its event's clock is set, which a record does after everything
// queued before it has run. Foreign events panic in `wait`, `reached` and `land`.
unsafe impl Device for Sim {
    type Event = SimEvent;
    type Space = Host;
    type Queue = ();
    type Captured = Kept;

    fn id(&self) -> &DeviceId {
        &self.inner.id
    }

    fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    fn register(&self, label: &'static str, len: usize) -> Buffer {
        let mut state = self.lock();
        let id = BufferId(state.buffers);
        state.buffers += 1;
        state.order.register(id, label);
        self.recorder().inspect(|recorder| recorder.registered(id, label));
        Buffer { device: self.inner.id.clone(), id, len }
    }

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> HostMemory<T> {
        HostMemory::new(self.register(label, len))
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job<()>) {
        self.queue(lane, |state| {
            let launched = state.order.clock(Actor::Host);
            let launch = self.recorder().map_or(0, |r| r.launched(lane, what, r.now()));
            Op::Job { what, touches, launched, launch, job }
        });
    }

    fn capture(&self, _: LaneId, _: &'static str, program: Program<()>) -> Kept {
        Kept::new(program)
    }

    fn replay(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, captured: &Kept) {
        self.launch(lane, what, touches, captured.job());
    }

    fn record(&self, lane: LaneId) -> SimEvent {
        let id = {
            let mut state = self.lock();
            state.events += 1;
            state.events
        };
        let event = SimEvent { device: self.inner.id.clone(), id, reached: Arc::default() };
        self.queue(lane, |_| Op::Record(event.clone()));
        event
    }

    fn wait(&self, lane: LaneId, event: &SimEvent) {
        same_device(&self.inner.id, &event.device);
        self.queue(lane, |_| Op::Wait(event.clone()));
    }

    fn reached(&self, event: &SimEvent) -> bool {
        self.drift();
        let reached = self.seen(event);
        if reached {
            self.recorder().inspect(|recorder| recorder.host_saw(event.id));
        }
        reached
    }

    fn land(&self, event: &SimEvent, reason: Reason) -> Result<(), DeviceLost> {
        let start = self.inner.time.host();
        self.drift();
        let mut blocked = 0;
        while !self.seen(event) {
            if let Some(lost) = self.lost() {
                return Err(lost);
            }
            blocked = 1;
            // An event is queued before anything can wait for it, so a lane that is stuck here
            // is a mistake of this file; unless another host has run all there was since.
            let ran = self.advance();
            let over = ran || self.lost().is_some() || self.seen(event);
            assert!(over, "deadlock: no lane can reach the event");
        }
        let waited = self.inner.time.host() - start;
        self.lock().usage.waited(reason, blocked, waited);
        self.recorder().inspect(|recorder| recorder.host_waited(event.id, reason, start));
        Ok(())
    }

    fn lost(&self) -> Option<DeviceLost> {
        self.lock().lost.clone()
    }

    fn usage(&self) -> Usage {
        Usage { busy: self.inner.time.busy(), ..self.lock().usage }
    }

    fn recorder(&self) -> Option<&Recorder> {
        self.inner.recorder.as_ref()
    }

    fn read_done(&self) -> ReadDone {
        self.inner.read_done
    }

    unsafe fn store<T: Element>(&self, memory: &HostMemory<T>, data: &[T]) {
        self.host_acts("store", memory.touch(&self.inner.id, Access::Write, data.len()));
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.store(data) }
    }

    unsafe fn load<T: Element>(&self, memory: &HostMemory<T>, len: usize) -> Vec<T> {
        self.host_acts("load", memory.touch(&self.inner.id, Access::Read, len));
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.load(len) }
    }
}
