//! Who enqueues now: one thread at a time. What a job asks of its own device waits, in order, until
//! the job has ended, so that no two jobs ever run at once.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// The right to enqueue, and operations of type `O` that wait for the job that asked for them.
pub(super) struct Turns<O> {
    state: Mutex<State<O>>,
    /// Nobody has the turn.
    free: Condvar,
}

struct State<O> {
    holder: Option<ThreadId>,
    later: VecDeque<O>,
}

/// The turn. Dropping it gives it back.
struct Turn<'t, O>(&'t Turns<O>);

impl<O> Drop for Turn<'_, O> {
    fn drop(&mut self) {
        self.0.lock().holder = None;
        self.0.free.notify_all();
    }
}

impl<O> Turns<O> {
    pub(super) fn new() -> Turns<O> {
        let state = State { holder: None, later: VecDeque::new() };
        Turns { state: Mutex::new(state), free: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread has the turn: it runs a job.
    pub(super) fn mine(&self) -> bool {
        self.lock().holder == Some(std::thread::current().id())
    }

    /// Waits until no other thread enqueues: as long as a job takes to enqueue its work.
    fn free(&self) -> MutexGuard<'_, State<O>> {
        let mut state = self.lock();
        while state.holder.is_some() {
            state = self.free.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Returns when no other thread enqueues.
    ///
    /// # Panics
    /// When the calling thread has the turn.
    pub(super) fn pass(&self) {
        assert!(!self.mine(), "a job must not wait for its own device");
        drop(self.free());
    }

    /// Performs `operation`, and then what the jobs in it asked for; or, from within a job, leaves
    /// it for after the job.
    pub(super) fn act(&self, operation: O, perform: impl Fn(O)) {
        let me = std::thread::current().id();
        let mut state = self.lock();
        if state.holder == Some(me) {
            state.later.push_back(operation);
            return;
        }
        drop(state);
        state = self.free();
        state.holder = Some(me);
        drop(state);
        let turn = Turn(self);
        let mut next = Some(operation);
        while let Some(operation) = next {
            perform(operation);
            next = self.lock().later.pop_front();
        }
        drop(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Operations that ask for others run before them, and all in the order they were asked for.
    #[test]
    fn what_a_job_asks_for_comes_after_it() {
        let (turns, ran) = (Turns::<u32>::new(), RefCell::new(Vec::new()));
        let perform = |operation: u32| {
            assert!(turns.mine());
            if operation < 10 {
                turns.act(10 * operation, |_| unreachable!("a job has the turn"));
                turns.act(10 * operation + 1, |_| unreachable!("a job has the turn"));
            }
            ran.borrow_mut().push(operation);
        };
        turns.act(1, perform);
        turns.act(2, perform);
        assert_eq!(*ran.borrow(), [1, 10, 11, 2, 20, 21]);
        assert!(!turns.mine());
    }

    #[test]
    fn threads_take_turns() {
        let turns = Turns::<u32>::new();
        let running = Mutex::new(());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (turns, running) = (&turns, &running);
                scope.spawn(move || {
                    for operation in 0..1_000 {
                        turns.act(1_000 * thread + operation, |_| {
                            drop(running.try_lock().expect("nobody else runs"));
                        });
                    }
                });
            }
        });
        turns.pass();
    }
}
