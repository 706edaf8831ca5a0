//! The CPU as a device: a fixed number of threads that split loops.
//!
//! One word, the *gate*, publishes a region: its epoch, whether it is open, and how many workers
//! are inside. A worker that sees a new epoch enters if the gate is still open. When no part is
//! left to start the caller closes the gate and waits only for workers that are inside. A worker
//! whose core is busy elsewhere simply never enters, so nobody waits for it. All waits spin
//! briefly and then sleep; meanwhile they bring what is [read soon](Cpu::soon).
//!
//! Each thread owns an equal run of consecutive parts and takes those first, then what is left of
//! the others'. So, when no thread is late, the same thread does the same neighbouring parts time
//! after time, and few cache lines travel between cores. That is what a region costs, up to a
//! microsecond each where the cores share no cache: so the region lies in the gate's own line, and what a
//! thread claims is counted from one region to the next without anybody setting it back.
//!
//! On a machine with several [memory nodes](Nodes) each thread stays on one of them, and neighbours on the same. Any thread
//! may take any part, so what is read follows the thread: a part that [asks](Cpu::parallel_here) learns where it runs.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};

use crate::Disjoint;
use crate::lasting::{Lasting, Slabs};
use crate::nodes::{Here, Nodes, Seats};
use crate::replicas::{self, Replicas};
use crate::soon::{Board, Bringer, Soon};

/// Looks at the gate a worker takes before it sleeps. One look is about 15 to 40 ns, so this
/// covers the serial gaps of a forward pass (tens of microseconds) and little more.
const WORKER_SPINS: u32 = 2_000;
/// Looks at the gate the caller takes, when parts of its region still run, before it sleeps and
/// leaves its core to them.
const CALLER_SPINS: u32 = 1_000;

/// Gate: workers inside the region.
const INSIDE: u64 = 0xffff;
/// Gate: the region may be entered.
const OPEN: u64 = 1 << 16;
/// Gate: the caller sleeps until the last worker has left.
const ASLEEP: u64 = 1 << 17;
/// Gate: one epoch.
const EPOCH: u64 = 1 << 18;

/// Bits of a count of claimed parts that hold the part; the others hold the epoch it belongs to.
const PART_BITS: u32 = 24;

/// A CPU device: its thread pool. Cloning shares the pool.
#[derive(Clone)]
pub struct Cpu {
    pool: Arc<Pool>,
}

struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// By memory node: a huge page lies on one, so pieces of several share none.
    slabs: Box<[Mutex<Slabs>]>,
}

/// What runs for each part of a region, told where.
type Body<'a> = dyn Fn(Here, usize) + Sync + 'a;

/// One loop being split.
struct Region {
    /// Borrowed from the caller of `parallel`, which outlasts the region.
    body: *const Body<'static>,
    parts: usize,
    caller: Thread,
}

/// What belongs to whoever opens regions.
#[derive(Default)]
struct Caller {
    /// To be published with the next region, for each memory node; nothing if it is empty.
    soon: Vec<Soon>,
    bringer: Bringer,
}

/// A thread in a region, or on its way to one.
#[derive(Clone, Copy)]
struct Seat<'a> {
    thread: usize,
    here: Here,
    /// What is read soon, on its node.
    soon: &'a Board,
}

/// A value alone on its cache lines, so that writes to it do not slow reads of its neighbours.
#[repr(align(128))]
struct Apart<T>(T);

/// The gate, and on the same line what is behind it.
struct Gate {
    word: AtomicU64,
    /// Written by the holder of `submit` while the gate is closed and nobody is inside; read by
    /// whoever is inside.
    region: UnsafeCell<Option<Region>>,
}

struct Shared {
    gate: Apart<Gate>,
    /// For each thread, the next part to claim of those it owns, see [`claimed`]. What belongs to
    /// an earlier epoch says that none was claimed yet.
    next: Box<[Apart<AtomicU64>]>,
    /// Held by the caller whose region runs.
    submit: Mutex<Caller>,
    /// What is read behind the region that runs, for each memory node.
    soon: Box<[Apart<Board>]>,
    seats: Seats,
    /// The first panic of the region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers asleep on `wake`.
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

/// That in this epoch the parts before `part` are claimed. Of the epoch its low bits, which after so
/// many regions that weeks pass come again: what is asked of them is only whether they are the same.
fn claimed(epoch: u64, part: usize) -> u64 {
    epoch << PART_BITS | part as u64
}

// SAFETY: `region` is the only field that is not Sync by itself. The gate orders its accesses:
// it is written while closed and empty (release on opening) and read only from inside (acquire
// on entering, release on leaving). The body it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer is only used from inside a region.
unsafe impl Send for Shared {}

impl Cpu {
    /// A device of `threads` threads (at least 1), the calling thread included, that run anywhere.
    pub fn new(threads: usize) -> Cpu {
        Cpu::on(&Nodes::one(), threads)
    }

    /// The same, its threads dealt out to `nodes` by how many CPUs they have. If threads are on several, each stays on
    /// its own, and the calling thread counts for the one it happens to be on.
    pub fn on(nodes: &Nodes, threads: usize) -> Cpu {
        let threads = threads.clamp(1, INSIDE as usize);
        let seats = Seats::new(nodes, threads);
        let slabs = (0..seats.nodes()).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared {
            gate: Apart(Gate { word: AtomicU64::new(0), region: UnsafeCell::new(None) }),
            next: (0..threads).map(|_| Apart(AtomicU64::new(0))).collect(),
            submit: Mutex::default(),
            soon: (0..seats.nodes()).map(|_| Apart(Board::default())).collect(),
            seats,
            panic: Mutex::new(None),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let workers = (1..threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("cpu-{i}"))
                    .spawn(move || shared.serve(i))
                    .expect("the operating system can start a thread")
            })
            .collect();
        Cpu { pool: Arc::new(Pool { shared, workers, slabs }) }
    }

    /// A device of as many threads as this process may run at once, on the memory nodes of this machine.
    pub fn host() -> Cpu {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        Cpu::on(&Nodes::host(), threads)
    }

    /// Threads that take part in [`Cpu::parallel`].
    pub fn threads(&self) -> usize {
        self.pool.workers.len() + 1
    }

    /// Memory nodes on which threads are: so many copies there are of what is [replicated](Cpu::replicated).
    pub fn nodes(&self) -> usize {
        self.pool.shared.seats.nodes()
    }

    /// `bytes` bytes for what stays as long as a model, in huge pages where the system has them, once for each of
    /// [`Cpu::nodes`]. They are zeroed, then filled by `fill(i, chunk i)` of `chunk` bytes each (the last may be shorter), for
    /// each copy alike, by threads on its node.
    ///
    /// # Panics
    /// When `chunk` is 0, `fill` panics, or the system has no addresses left.
    pub fn replicated(
        &self,
        bytes: usize,
        chunk: usize,
        fill: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) -> Replicas {
        let Pool { shared, slabs, .. } = &*self.pool;
        let mut copies: Vec<Lasting> = slabs.iter().map(|slabs| lock(slabs).cut(bytes)).collect();
        match &mut copies[..] {
            [only] => self.chunks(&mut only[..], chunk, fill),
            copies => replicas::fill(&shared.seats, copies, chunk, fill),
        }
        Replicas::new(copies)
    }

    /// Says what the region behind the next one reads, so that threads that wait meanwhile bring their node's copy nearer:
    /// groups of items that `read` finds the bytes of, of each group every thread an equal share in order. It holds
    /// until something else is said.
    pub fn soon<T>(&self, groups: &[&[T]], read: impl Fn(&T) -> &Replicas) {
        if let Some(mut turn) = self.pool.shared.take_turn() {
            turn.soon.clear();
            let of = |node| Soon::of(groups, |item| read(item).copy(node));
            turn.soon.extend((0..self.nodes()).map(of));
        }
    }

    /// Runs `body(0) … body(parts - 1)`, each once, spread over the threads; returns when all
    /// have ended. Which thread runs which part is unspecified, so results must not depend on it.
    ///
    /// A region started while another one runs (from another thread, or from inside a body) runs
    /// on its caller alone.
    ///
    /// # Panics
    /// When a body panics: with its payload, after all running parts have ended. Parts not yet
    /// started are then skipped.
    pub fn parallel(&self, parts: usize, body: &(impl Fn(usize) + Sync + ?Sized)) {
        self.parallel_here(parts, &|_, part| body(part));
    }

    /// The same for bodies that read [`Replicas`]: each is told where it runs.
    ///
    /// # Panics
    /// As [`Cpu::parallel`].
    pub fn parallel_here(&self, parts: usize, body: &(dyn Fn(Here, usize) + Sync)) {
        let shared = &*self.pool.shared;
        let seat = shared.seat(0, shared.seats.caller());
        let alone = parts <= 1 || self.pool.workers.is_empty();
        let Some(mut turn) = (if alone { None } else { shared.take_turn() }) else {
            (0..parts).for_each(|part| body(seat.here, part));
            return;
        };
        // SAFETY: only the lifetime changes. The pointer is used from inside the region, and
        // this function returns (or unwinds) only after `close` saw the region empty.
        let erased = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let epoch = shared.open(Region { body: erased, parts, caller: std::thread::current() });
        for (board, soon) in shared.soon.iter().zip(turn.soon.drain(..)) {
            board.0.publish(&soon);
        }
        shared.claim_parts(seat, epoch, body, parts);
        shared.close(seat, &mut turn.bringer);
        let panic = lock(&shared.panic).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Cuts `data` into chunks of `chunk` elements (the last may be shorter) and runs
    /// `body(i, chunk i)` for each, spread over the threads like [`Cpu::parallel`].
    ///
    /// # Panics
    /// When `chunk` is 0, or a body panics.
    pub fn chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        body: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        assert!(chunk > 0, "a chunk has at least one element");
        let len = data.len();
        let data = Disjoint::new(data);
        self.parallel(len.div_ceil(chunk), &|i| {
            // SAFETY: each `i` runs once, and chunks of different `i` do not overlap.
            body(i, unsafe { data.slice(i * chunk..len.min((i + 1) * chunk)) });
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.0.word.fetch_add(EPOCH, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // Bodies' panics are caught and handed to their callers, so there is none to report.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn seat(&self, thread: usize, here: Here) -> Seat<'_> {
        Seat { thread, here, soon: &self.soon[here.node()].0 }
    }

    /// The right to run a region; `None` while another one runs.
    fn take_turn(&self) -> Option<MutexGuard<'_, Caller>> {
        match self.submit.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Publishes `region`; its epoch. The caller holds `submit`.
    fn open(&self, region: Region) -> u64 {
        assert!(region.parts < 1 << PART_BITS, "{} parts of a region", region.parts);
        let Gate { word, region: cell } = &self.gate.0;
        // SAFETY: the gate is closed and nobody is inside (the previous `close` waited for that,
        // and `submit` keeps other callers out), so nobody else reads or writes the cell.
        unsafe { *cell.get() = Some(region) };
        let opened = word.load(Ordering::Relaxed) + EPOCH + OPEN;
        // SeqCst, as in `sleep_until_change`: either the worker about to sleep sees the new
        // epoch, or this thread sees the worker in `sleeping`.
        word.store(opened, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            self.wake_sleepers();
        }
        opened / EPOCH
    }

    /// Ends the region: lets nobody in and waits until nobody is inside.
    fn close(&self, seat: Seat<'_>, bringer: &mut Bringer) {
        let word = &self.gate.0.word;
        let mut gate = word.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..CALLER_SPINS {
            if gate & INSIDE == 0 {
                return;
            }
            self.pass_time(seat, bringer);
            gate = word.load(Ordering::Acquire);
        }
        gate = word.fetch_or(ASLEEP, Ordering::AcqRel);
        while gate & INSIDE != 0 {
            std::thread::park();
            gate = word.load(Ordering::Acquire);
        }
        word.fetch_and(!ASLEEP, Ordering::Relaxed);
    }

    /// The parts that `thread` takes first.
    fn owned(&self, thread: usize, parts: usize) -> Range<usize> {
        let threads = self.next.len();
        parts * thread / threads..parts * (thread + 1) / threads
    }

    /// Claims the next part of those that `owner` takes first.
    fn claim(&self, owner: usize, epoch: u64, parts: usize) -> Option<usize> {
        const PART: u64 = (1 << PART_BITS) - 1;
        let (next, own) = (&self.next[owner].0, self.owned(owner, parts));
        let mut seen = next.load(Ordering::Relaxed);
        loop {
            let of_this = seen & !PART == claimed(epoch, 0);
            let part = if of_this { (seen & PART) as usize } else { own.start };
            if part >= own.end {
                return None;
            }
            let after = claimed(epoch, part + 1);
            match next.compare_exchange_weak(seen, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(part),
                Err(now) => seen = now,
            }
        }
    }

    /// Runs parts until none is left. A panic ends the region early and is kept for the caller.
    fn claim_parts(&self, seat: Seat<'_>, epoch: u64, body: &Body<'_>, parts: usize) {
        let (Seat { thread, here, .. }, threads) = (seat, self.next.len());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for owner in (thread..threads).chain(0..thread) {
                while let Some(part) = self.claim(owner, epoch, parts) {
                    body(here, part);
                }
            }
        }));
        if let Err(payload) = outcome {
            let all = claimed(epoch, parts);
            self.next.iter().for_each(|next| next.0.store(all, Ordering::Relaxed));
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// The life of worker `thread`.
    fn serve(&self, thread: usize) {
        let seat = self.seat(thread, self.seats.take(thread));
        let (mut seen, mut bringer) = (0, Bringer::default());
        loop {
            let gate = self.wait_for_change(seat, seen, &mut bringer);
            seen = gate / EPOCH;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter(gate) {
                self.work(seat, seen);
            }
        }
    }

    /// Waits as a worker for an epoch other than `seen`; returns the gate.
    fn wait_for_change(&self, seat: Seat<'_>, seen: u64, bringer: &mut Bringer) -> u64 {
        for _ in 0..WORKER_SPINS {
            // Acquire: whoever sees the last epoch must see `stop`, too, or it sleeps for ever.
            let gate = self.gate.0.word.load(Ordering::Acquire);
            if gate / EPOCH != seen {
                return gate;
            }
            self.pass_time(seat, bringer);
        }
        let mut sleep = lock(&self.sleep);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let gate = loop {
            let gate = self.gate.0.word.load(Ordering::SeqCst);
            if gate / EPOCH != seen {
                break gate;
            }
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        gate
    }

    /// What a thread does between two looks at the gate.
    fn pass_time(&self, seat: Seat<'_>, bringer: &mut Bringer) {
        if !bringer.step(seat.soon, seat.thread, self.next.len()) {
            std::hint::spin_loop();
        }
    }

    fn wake_sleepers(&self) {
        // A worker holds `sleep` from its last look at the gate until it waits; taking the lock
        // makes sure that the notification does not fall in between.
        drop(lock(&self.sleep));
        self.wake.notify_all();
    }

    /// Tries to enter the region of `gate`'s epoch.
    fn enter(&self, mut gate: u64) -> bool {
        let epoch = gate / EPOCH;
        while gate & OPEN != 0 && gate / EPOCH == epoch {
            let word = &self.gate.0.word;
            match word.compare_exchange_weak(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Takes part in the region just entered, then leaves it.
    fn work(&self, seat: Seat<'_>, epoch: u64) {
        let Gate { word, region } = &self.gate.0;
        // SAFETY: this thread is inside, so the region was published before and is not replaced
        // before this thread has left.
        let region = unsafe { (*region.get()).as_ref() }.expect("an open region");
        // SAFETY: the caller keeps the body alive until everybody inside has left.
        self.claim_parts(seat, epoch, unsafe { &*region.body }, region.parts);
        let mut gate = word.load(Ordering::Relaxed);
        loop {
            // The region may be gone as soon as this thread has left it. A caller that falls asleep
            // meanwhile changes the gate, so that this is looked at again.
            let last = gate & (INSIDE | ASLEEP) == ASLEEP + 1;
            let caller = last.then(|| region.caller.clone());
            match word.compare_exchange_weak(gate, gate - 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return caller.iter().for_each(Thread::unpark),
                Err(now) => gate = now,
            }
        }
    }
}

/// Locks; a poisoned lock still guards consistent data, since no panic can happen while one of
/// these is held and its data half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
