//! A lane: a thread that runs jobs in the order they were queued and owns the state they change.

use std::sync::mpsc;
use std::thread::JoinHandle;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A FIFO queue of jobs over state `S`. Only jobs of this lane can reach the state, so a second
/// writer does not compile.
pub struct Lane<S> {
    jobs: Option<mpsc::Sender<Job<S>>>,
    thread: Option<JoinHandle<()>>,
}

/// The lane's thread is gone: a job panicked. Nothing queued after it will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLost;

impl std::fmt::Display for LaneLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the device lane stopped: a job on it panicked")
    }
}

impl std::error::Error for LaneLost {}

/// A job in flight. [`Pending::land`] waits for it and yields its result.
#[must_use = "a step that is never landed loses its tokens"]
pub struct Pending<T> {
    result: mpsc::Receiver<T>,
}

impl<S: Send + 'static> Lane<S> {
    /// Starts a lane named `name` that owns `state`.
    pub fn new(name: &str, state: S) -> Lane<S> {
        let (jobs, queue) = mpsc::channel::<Job<S>>();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut state = state;
                while let Ok(job) = queue.recv() {
                    job(&mut state);
                }
            })
            .expect("the operating system can start a thread");
        Lane { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Queues `job` behind everything queued before; returns at once.
    pub fn launch<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Pending<T> {
        let (done, result) = mpsc::channel();
        let boxed: Job<S> = Box::new(move |state| {
            // The receiver may be gone when the engine shuts down; the result is then unwanted.
            let _ = done.send(job(state));
        });
        if let Some(jobs) = &self.jobs {
            // A lost lane shows at `land`: the job, and `done` with it, is dropped here.
            let _ = jobs.send(boxed);
        }
        Pending { result }
    }
}

impl<T> Pending<T> {
    /// Waits for the job and returns its result: the one place where a host thread blocks.
    ///
    /// # Errors
    /// [`LaneLost`] when the job, or one before it, panicked.
    pub fn land(self) -> Result<T, LaneLost> {
        self.result.recv().map_err(|_| LaneLost)
    }
}

impl<S> Drop for Lane<S> {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // A panic on the lane was already reported by `land`.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_and_own_their_state() {
        let lane = Lane::new("test", Vec::new());
        let pending: Vec<_> = (0..100)
            .map(|i| {
                lane.launch(move |seen: &mut Vec<u32>| {
                    seen.push(i);
                    seen.len()
                })
            })
            .collect();
        for (i, p) in pending.into_iter().enumerate() {
            assert_eq!(p.land(), Ok(i + 1));
        }
        assert_eq!(lane.launch(|seen| seen.clone()).land(), Ok((0..100).collect()));
    }

    #[test]
    fn a_panic_is_reported_and_nothing_hangs() {
        let lane = Lane::new("test", 0u32);
        let broken = lane.launch(|_| panic!("expected by the test"));
        let after = lane.launch(|state| *state);
        assert_eq!(broken.land(), Err::<(), _>(LaneLost));
        assert_eq!(after.land(), Err(LaneLost));
        assert_eq!(lane.launch(|state| *state).land(), Err(LaneLost));
    }
}
