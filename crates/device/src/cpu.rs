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

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};

use crate::Disjoint;
use crate::lasting::{Lasting, Slabs};
use crate::soon::{Board, Bringer, STRETCHES, Soon};

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
    slabs: Mutex<Slabs>,
}

/// One loop being split.
struct Region {
    /// Borrowed from the caller of `parallel`, which outlasts the region.
    body: *const (dyn Fn(usize) + Sync),
    parts: usize,
    caller: Thread,
}

/// What belongs to whoever opens regions.
#[derive(Default)]
struct Caller {
    /// To be published with the next region.
    soon: Option<Soon>,
    bringer: Bringer,
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
    /// What is read behind the region that runs.
    soon: Apart<Board>,
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
    /// A device of `threads` threads (at least 1), the calling thread included.
    pub fn new(threads: usize) -> Cpu {
        let threads = threads.clamp(1, INSIDE as usize);
        let shared = Arc::new(Shared {
            gate: Apart(Gate { word: AtomicU64::new(0), region: UnsafeCell::new(None) }),
            next: (0..threads).map(|_| Apart(AtomicU64::new(0))).collect(),
            submit: Mutex::default(),
            soon: Apart(Board::default()),
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
        Cpu { pool: Arc::new(Pool { shared, workers, slabs: Mutex::default() }) }
    }

    /// A device of as many threads as this process may run at once.
    pub fn host() -> Cpu {
        Cpu::new(std::thread::available_parallelism().map_or(1, |threads| threads.get()))
    }

    /// Threads that take part in [`Cpu::parallel`].
    pub fn threads(&self) -> usize {
        self.pool.workers.len() + 1
    }

    /// `bytes` zeroed bytes for what stays as long as a model, in huge pages where the system has them.
    ///
    /// # Panics
    /// When the system has no addresses left.
    pub fn lasting(&self, bytes: usize) -> Lasting {
        self.pool.slabs.lock().unwrap_or_else(PoisonError::into_inner).cut(bytes)
    }

    /// Stretches that [`Cpu::soon`] takes at most; more are left out.
    pub const SOON: usize = STRETCHES;

    /// Says what the region behind the next one reads, so that threads that wait meanwhile bring it nearer: groups of
    /// stretches, of each group every thread an equal share in order. It holds until something else is said.
    pub fn soon(&self, groups: &[&[&[u8]]]) {
        if let Some(mut turn) = self.pool.shared.take_turn() {
            turn.soon = Some(Soon::of(groups));
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
    pub fn parallel(&self, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.pool.shared;
        let alone = parts <= 1 || self.pool.workers.is_empty();
        let Some(mut turn) = (if alone { None } else { shared.take_turn() }) else {
            (0..parts).for_each(body);
            return;
        };
        // SAFETY: only the lifetime changes. The pointer is used from inside the region, and
        // this function returns (or unwinds) only after `close` saw the region empty.
        let erased = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                body,
            )
        };
        let epoch = shared.open(Region { body: erased, parts, caller: std::thread::current() });
        if let Some(soon) = turn.soon.take() {
            shared.soon.0.publish(&soon);
        }
        shared.claim_parts(0, epoch, body, parts);
        shared.close(&mut turn.bringer);
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
    fn close(&self, bringer: &mut Bringer) {
        let word = &self.gate.0.word;
        let mut gate = word.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..CALLER_SPINS {
            if gate & INSIDE == 0 {
                return;
            }
            self.pass_time(bringer, 0);
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
    fn claim_parts(&self, thread: usize, epoch: u64, body: &(dyn Fn(usize) + Sync), parts: usize) {
        let threads = self.next.len();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for owner in (thread..threads).chain(0..thread) {
                while let Some(part) = self.claim(owner, epoch, parts) {
                    body(part);
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
        let (mut seen, mut bringer) = (0, Bringer::default());
        loop {
            let gate = self.wait_for_change(thread, seen, &mut bringer);
            seen = gate / EPOCH;
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter(gate) {
                self.work(thread, seen);
            }
        }
    }

    /// Waits as worker `thread` for an epoch other than `seen`; returns the gate.
    fn wait_for_change(&self, thread: usize, seen: u64, bringer: &mut Bringer) -> u64 {
        for _ in 0..WORKER_SPINS {
            // Acquire: whoever sees the last epoch must see `stop`, too, or it sleeps for ever.
            let gate = self.gate.0.word.load(Ordering::Acquire);
            if gate / EPOCH != seen {
                return gate;
            }
            self.pass_time(bringer, thread);
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
    fn pass_time(&self, bringer: &mut Bringer, thread: usize) {
        if !bringer.step(&self.soon.0, thread, self.next.len()) {
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
    fn work(&self, thread: usize, epoch: u64) {
        let Gate { word, region } = &self.gate.0;
        // SAFETY: this thread is inside, so the region was published before and is not replaced
        // before this thread has left.
        let region = unsafe { (*region.get()).as_ref() }.expect("an open region");
        // SAFETY: the caller keeps the body alive until everybody inside has left.
        self.claim_parts(thread, epoch, unsafe { &*region.body }, region.parts);
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
mod tests {
    use super::*;
    use std::time::Duration;

    /// Runs a region of `parts` and checks that each part ran exactly once.
    fn check_each_part_once(cpu: &Cpu, parts: usize) {
        let runs: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        cpu.parallel(parts, &|part| {
            runs[part].fetch_add(1, Ordering::Relaxed);
        });
        assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1), "{parts} parts: {runs:?}");
    }

    #[test]
    fn every_part_runs_once() {
        for threads in [1, 2, 3, 8] {
            let cpu = Cpu::new(threads);
            assert_eq!(cpu.threads(), threads);
            for parts in [0, 1, 2, 3, 7, 64, 1000] {
                check_each_part_once(&cpu, parts);
            }
        }
        assert_eq!(Cpu::new(0).threads(), 1);
        assert!(Cpu::host().threads() >= 1);
    }

    #[test]
    fn many_tiny_regions_back_to_back_and_after_sleeps() {
        let cpu = Cpu::new(3);
        let total = AtomicUsize::new(0);
        for _ in 0..5_000 {
            cpu.parallel(3, &|part| {
                total.fetch_add(part + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.load(Ordering::Relaxed), 5_000 * 6);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(2));
            check_each_part_once(&cpu, 5);
        }
    }

    /// A count keeps the low bits of its epoch; when those begin again no part is lost.
    #[test]
    fn parts_run_when_the_bits_of_epochs_begin_again() {
        let cpu = Cpu::new(2);
        check_each_part_once(&cpu, 7);
        let again = 1 << (u64::BITS - PART_BITS);
        cpu.pool.shared.gate.0.word.store((again - 3) * EPOCH, Ordering::SeqCst);
        for _ in 0..6 {
            check_each_part_once(&cpu, 7);
        }
    }

    #[test]
    fn all_threads_take_part() {
        let cpu = Cpu::new(2);
        let both = std::sync::Barrier::new(2);
        // Ends only when two threads are in a body at once.
        cpu.parallel(2, &|_| {
            both.wait();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let cpu = Cpu::new(2);
        for bad in [0, 1, 99] {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                cpu.parallel(100, &|part| assert!(part != bad, "part {bad} broke"));
            }));
            let payload = outcome.expect_err("the panic reaches the caller");
            assert_eq!(*payload.downcast_ref::<String>().unwrap(), format!("part {bad} broke"));
            check_each_part_once(&cpu, 10);
        }
    }

    #[test]
    fn a_panic_on_a_worker_reaches_the_caller() {
        let cpu = Cpu::new(2);
        let caller = std::thread::current().id();
        let both = std::sync::Barrier::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            cpu.parallel(2, &|_| {
                both.wait();
                assert_eq!(std::thread::current().id(), caller, "on a worker");
            });
        }));
        assert!(outcome.is_err());
        check_each_part_once(&cpu, 10);
    }

    #[test]
    fn nested_and_concurrent_regions_end() {
        let cpu = Cpu::new(2);
        let total = AtomicUsize::new(0);
        cpu.parallel(4, &|_| {
            cpu.parallel(4, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.load(Ordering::Relaxed), 16);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let cpu = cpu.clone();
                scope.spawn(move || (0..200).for_each(|_| check_each_part_once(&cpu, 4)));
            }
        });
    }

    #[test]
    fn chunks_cover_the_slice() {
        let cpu = Cpu::new(3);
        let mut data = vec![0usize; 103];
        cpu.chunks(&mut data, 10, &|i, chunk| {
            assert_eq!(chunk.len(), if i == 10 { 3 } else { 10 });
            chunk.iter_mut().enumerate().for_each(|(j, v)| *v = i * 10 + j);
        });
        assert!(data.iter().enumerate().all(|(i, &v)| i == v));
    }
}
