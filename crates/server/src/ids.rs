//! Names and seeds that nobody else has: drawn from the system's entropy by way of the standard
//! library's hash keys, and a counter.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes ids and seeds.
pub(crate) struct Ids {
    keys: [RandomState; 2],
    next: AtomicU64,
}

/// Seeds that are drawn lie below this, so that clients whose numbers are floats can send them back.
const SEEDS: u64 = 1 << 53;

impl Ids {
    pub(crate) fn new() -> Ids {
        Ids { keys: [RandomState::new(), RandomState::new()], next: AtomicU64::new(0) }
    }

    /// 32 hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let [high, low] = &self.keys;
        format!("{:016x}{:016x}", high.hash_one(next), low.hash_one(next))
    }

    /// A seed for a request that names none.
    pub(crate) fn seed(&self) -> u64 {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.keys[0].hash_one((next, "seed")) % SEEDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_and_seeds_differ() {
        let ids = Ids::new();
        let many: HashSet<String> = (0..1000).map(|_| ids.id()).collect();
        assert_eq!(many.len(), 1000);
        assert!(many.iter().all(|id| id.len() == 32));
        let seeds: HashSet<u64> = (0..1000).map(|_| ids.seed()).collect();
        assert_eq!(seeds.len(), 1000);
        assert!(seeds.iter().all(|seed| *seed < SEEDS));
    }
}
