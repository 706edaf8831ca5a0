//! What stays as long as a model and is read by every step: a copy on each memory node.

use crate::lasting::Lasting;
use crate::nodes::{Here, Seats};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Bytes that are there once for each memory node on which a pool has threads. They start on a cache line.
pub struct Replicas {
    copies: Box<[Lasting]>,
}

impl Replicas {
    /// Copies by node, at least one.
    pub(crate) fn new(copies: Vec<Lasting>) -> Replicas {
        assert!(!copies.is_empty(), "somewhere the bytes are");
        Replicas { copies: copies.into() }
    }

    /// The copy of the node that the caller computes on. A pool of more nodes than the one that made the copies reads
    /// the first where it has none.
    pub fn on(&self, here: Here) -> &[u8] {
        self.copy(here.node())
    }

    pub(crate) fn copy(&self, node: usize) -> &[u8] {
        self.copies.get(node).unwrap_or(&self.copies[0])
    }
}

/// Fills a copy for each of the nodes that `seats` has, chunk by chunk, with `fill(index, chunk)`.
///
/// The system takes a page from the node of the thread that first writes it, so each copy is written by threads that are
/// kept on its node. They are as many as the pool has there, but not the pool's own, which take any part
/// of a region. To ask the system for a node instead takes a right that containers withhold.
///
/// # Panics
/// When `fill` panics.
pub(crate) fn fill(
    seats: &Seats,
    copies: &mut [Lasting],
    chunk: usize,
    fill: &(dyn Fn(usize, &mut [u8]) + Sync),
) {
    let counts = copies.iter().map(|copy| copy.len().div_ceil(chunk)).collect::<Vec<_>>();
    let chunks = |copy| Mutex::new(<[u8]>::chunks_mut(copy, chunk).enumerate());
    let left: Vec<_> = copies.iter_mut().map(|copy| chunks(&mut copy[..])).collect();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (node, left) in left.iter().enumerate() {
            let work = move || {
                seats.stay(node);
                let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some((index, chunk)) = next() {
                    fill(index, chunk);
                }
            };
            for _ in 0..seats.threads(node).min(counts[node]) {
                let thread = thread::Builder::new().name(format!("node-{node}"));
                let started = thread.spawn_scoped(scope, work);
                threads.push(started.expect("the operating system can start a thread"));
            }
        }
        for thread in threads {
            thread.join().unwrap_or_else(|payload| resume_unwind(payload));
        }
    });
}
