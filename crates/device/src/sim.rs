//! The simulated device: lanes are queues drained in an order drawn from a seed, so that every
//! order the events allow can happen. Vector clocks (Fidge 1988, Mattern 1989) tell which accesses
//! nothing orders.

use crate::device::{
    Access, BufferId, Device, DeviceLost, Element, Job, LANES, LaneId, Touch,
};
use crate::memory::{HostMemory, HostMut, HostRef};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};

/// Clock entries: the lanes, then the host.
const ACTORS: usize = LANES + 1;
const HOST: usize = LANES;

type Clock = [u32; ACTORS];

/// A simulated device.
#[derive(Clone)]
pub struct Sim {
    state: Arc<Mutex<State>>,
}

/// A point in a lane's queue: the lane's clock once it was reached.
#[derive(Clone)]
pub struct SimEvent(Arc<OnceLock<Clock>>);

struct State {
    queues: [VecDeque<Op>; LANES],
    clocks: [Clock; ACTORS],
    buffers: Vec<Buffer>,
    races: Vec<Race>,
    random: u64,
    lost: bool,
}

enum Op {
    Record(SimEvent),
    Wait(SimEvent),
    /// A job, and the host's clock when it was launched.
    Job { what: &'static str, touches: Vec<Touch>, launched: Clock, job: Job },
}

struct Buffer {
    label: &'static str,
    cells: Vec<Cell>,
}

/// Who last wrote and read an element, and when by their own clocks.
#[derive(Clone, Copy, Default)]
struct Cell {
    wrote: Option<Stamp>,
    read: [Option<Stamp>; ACTORS],
}

#[derive(Clone, Copy)]
struct Stamp {
    actor: u8,
    time: u32,
    what: &'static str,
}

/// Two accesses to one element that nothing orders, at least one of them a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The buffer's label.
    pub buffer: &'static str,
    /// The element.
    pub element: usize,
    /// Lane, job and access that ran first.
    pub first: (&'static str, &'static str, Access),
    /// Lane, job and access that ran second.
    pub second: (&'static str, &'static str, Access),
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |(lane, what, access): (&str, &str, Access)| {
            format!("{} in `{what}` on {lane}", if access == Access::Read { "read" } else { "write" })
        };
        let (first, second) = (side(self.first), side(self.second));
        write!(f, "{}[{}]: {first} and {second} are unordered", self.buffer, self.element)
    }
}

fn actor(index: u8) -> &'static str {
    LaneId::ALL.get(usize::from(index)).map_or("host", |lane| lane.name())
}

fn join(into: &mut Clock, from: &Clock) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

impl Sim {
    /// A device whose lanes run in the order that `seed` draws.
    pub fn new(seed: u64) -> Sim {
        let state = State {
            queues: Default::default(),
            clocks: [[0; ACTORS]; ACTORS],
            buffers: Vec::new(),
            races: Vec::new(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            lost: false,
        };
        Sim { state: Arc::new(Mutex::new(state)) }
    }

    /// The unordered accesses found so far.
    pub fn races(&self) -> Vec<Race> {
        self.lock().races.clone()
    }

    /// Runs everything that is queued.
    ///
    /// # Panics
    /// When a lane waits for an event that nothing will record.
    pub fn drain(&self) {
        while self.step() {}
        let stuck = self.lock().queues.iter().any(|queue| !queue.is_empty());
        assert!(!stuck, "a lane waits for an event that is never recorded");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs one operation of a lane drawn at random; false when none can run.
    fn step(&self) -> bool {
        let Some((lane, op)) = self.lock().draw() else { return false };
        match op {
            Op::Record(event) => {
                let clock = self.lock().clocks[lane];
                event.0.set(clock).expect("an event is recorded once");
            }
            Op::Wait(event) => {
                let clock = event.0.get().expect("only reached waits are drawn");
                join(&mut self.lock().clocks[lane], clock);
            }
            Op::Job { what, touches, launched, job } => {
                self.lock().enter(lane, what, &touches, &launched);
                // The lock is free while the job runs.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    self.lock().lose();
                }
            }
        }
        true
    }

    /// The host called: the device may run a little in the meantime, or not.
    fn drift(&self) {
        let steps = self.lock().next() % 4;
        for _ in 0..steps {
            self.step();
        }
    }

    fn queue(&self, lane: LaneId, op: impl FnOnce(&State) -> Op) {
        let mut state = self.lock();
        if state.lost {
            return;
        }
        let op = op(&state);
        state.queues[lane.index()].push_back(op);
        drop(state);
        self.drift();
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn draw(&mut self) -> Option<(usize, Op)> {
        let ready = |queue: &VecDeque<Op>| match queue.front() {
            None => false,
            Some(Op::Wait(event)) => event.0.get().is_some(),
            Some(_) => true,
        };
        let mut lanes = [0; LANES];
        let mut count = 0;
        for (lane, queue) in self.queues.iter().enumerate() {
            if ready(queue) {
                lanes[count] = lane;
                count += 1;
            }
        }
        if count == 0 {
            return None;
        }
        let lane = lanes[(self.next() >> 11) as usize % count];
        self.queues[lane].pop_front().map(|op| (lane, op))
    }

    /// Orders a job after its launch and checks what it touches.
    fn enter(&mut self, lane: usize, what: &'static str, touches: &[Touch], launched: &Clock) {
        join(&mut self.clocks[lane], launched);
        self.clocks[lane][lane] += 1;
        for touch in touches {
            self.touch(lane, what, touch);
        }
    }

    fn touch(&mut self, actor_index: usize, what: &'static str, touch: &Touch) {
        let now = self.clocks[actor_index];
        let stamp = Stamp { actor: actor_index as u8, time: now[actor_index], what };
        let buffer = &mut self.buffers[touch.buffer.0 as usize];
        let unordered = |earlier: &Stamp| now[usize::from(earlier.actor)] < earlier.time;
        for element in touch.range.clone() {
            let cell = &mut buffer.cells[element];
            let mut report = |earlier: Stamp, access| {
                self.races.push(Race {
                    buffer: buffer.label,
                    element,
                    first: (actor(earlier.actor), earlier.what, access),
                    second: (actor(stamp.actor), what, touch.access),
                });
            };
            if let Some(earlier) = cell.wrote.filter(&unordered) {
                report(earlier, Access::Write);
            }
            match touch.access {
                Access::Read => cell.read[actor_index] = Some(stamp),
                Access::Write => {
                    for earlier in cell.read.iter().flatten().copied().filter(&unordered) {
                        report(earlier, Access::Read);
                    }
                    cell.wrote = Some(stamp);
                }
            }
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.queues = Default::default();
    }
}

impl Device for Sim {
    type Event = SimEvent;
    type Memory<T: Element> = HostMemory<T>;
    type Ref<T: Element> = HostRef<T>;
    type Mut<T: Element> = HostMut<T>;

    fn alloc<T: Element>(&self, label: &'static str, len: usize) -> HostMemory<T> {
        let mut state = self.lock();
        let id = BufferId(u32::try_from(state.buffers.len()).expect("few buffers"));
        state.buffers.push(Buffer { label, cells: vec![Cell::default(); len] });
        HostMemory::new(id, len)
    }

    fn describe<T: Element>(&self, memory: &HostMemory<T>) -> (BufferId, usize) {
        (memory.id, memory.len())
    }

    fn launch(&self, lane: LaneId, what: &'static str, touches: Vec<Touch>, job: Job) {
        self.queue(lane, |state| Op::Job { what, touches, launched: state.clocks[HOST], job });
    }

    fn record(&self, lane: LaneId) -> SimEvent {
        let event = SimEvent(Arc::default());
        self.queue(lane, |_| Op::Record(event.clone()));
        event
    }

    fn wait(&self, lane: LaneId, event: &SimEvent) {
        self.queue(lane, |_| Op::Wait(event.clone()));
    }

    fn reached(&self, event: &SimEvent) -> bool {
        let Some(clock) = event.0.get() else { return false };
        join(&mut self.lock().clocks[HOST], clock);
        true
    }

    /// # Panics
    /// When nothing can run and the event is not reached: a deadlock.
    fn land(&self, event: &SimEvent) -> Result<(), DeviceLost> {
        while !self.reached(event) {
            if self.lock().lost {
                return Err(DeviceLost);
            }
            assert!(self.step(), "deadlock: the event is never recorded");
        }
        Ok(())
    }

    unsafe fn reader<T: Element>(&self, memory: &HostMemory<T>, range: Range<usize>) -> HostRef<T> {
        // SAFETY: the caller's promise, passed on. Jobs of a simulated device never overlap.
        unsafe { HostRef::new(memory, range) }
    }

    unsafe fn writer<T: Element>(&self, memory: &HostMemory<T>, range: Range<usize>) -> HostMut<T> {
        // SAFETY: the caller's promise, passed on. Jobs of a simulated device never overlap.
        unsafe { HostMut::new(memory, range) }
    }

    unsafe fn host<'a, T: Element>(
        &self,
        memory: &'a HostMemory<T>,
        access: Access,
        range: Range<usize>,
    ) -> &'a mut [T] {
        let mut state = self.lock();
        state.clocks[HOST][HOST] += 1;
        state.touch(HOST, "host", &Touch { buffer: memory.id, access, range: range.clone() });
        // SAFETY: the caller's promise, passed on.
        unsafe { memory.slice(range) }
    }
}
