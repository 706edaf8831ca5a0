//! Voyages: the whole engine on the simulated device, whose lanes run in an order drawn from a
//! seed. The scripted target reads its KV back through the page table, so that a wrong page, a
//! stale entry or a step out of order changes tokens; the drafter does the same with its own.
//!
//! Every voyage must give the tokens of the serial, uncached, undrafted run, leave no two accesses
//! unordered, give every page and row back, and end each request exactly once.

mod script;
mod voyage;

use device::{ReadDone, SimOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use voyage::{Ending, sail};

/// Voyages of the gate. More, or others, with `SLIPSTREAM_VOYAGES=first..last`.
const VOYAGES: std::ops::Range<u64> = 0..10_000;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SLIPSTREAM_VOYAGES") else { return VOYAGES };
    let bounds = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    bounds.unwrap_or_else(|| panic!("SLIPSTREAM_VOYAGES is {text}; give first..last"))
}

/// Runs `voyage` for every seed, on all CPUs.
fn fleet(seeds: std::ops::Range<u64>, voyage: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    voyage(seed);
                }
            });
        }
    });
}

#[test]
fn every_voyage_gives_the_serial_tokens() {
    let sums = [const { AtomicU64::new(0) }; 4];
    fleet(seeds(), |seed| {
        let ending = sail(SimOptions { seed, read_done: ReadDone::PerLane, record: 0 });
        let Ending { problem, races, accepted, cancelled, cached, retracted } = ending;
        assert_eq!(problem, None, "voyage {seed}");
        assert_eq!(races, Vec::<String>::new(), "voyage {seed}");
        for (sum, count) in sums.iter().zip([accepted, cancelled, cached, retracted]) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
    });
    let [accepted, cancelled, cached, retracted] = sums.map(AtomicU64::into_inner);
    println!(
        "{accepted} drafts accepted, {cancelled} requests cancelled, {cached} tokens from the prefix cache, {retracted} retractions"
    );
    assert!(accepted > 0 && cancelled > 0 && cached > 0 && retracted > 0, "calm seas prove little");
}

/// Without read-done the same voyages are caught. (One event slot for all readers is caught by the
/// device's own tests: each of the engine's buffers has a single reading lane.)
#[test]
fn missing_fences_are_caught() {
    let caught = AtomicU64::new(0);
    fleet(0..100, |seed| {
        let ending = sail(SimOptions { seed, read_done: ReadDone::Missing, record: 0 });
        let noticed = ending.problem.is_some() || !ending.races.is_empty();
        caught.fetch_add(u64::from(noticed), Ordering::Relaxed);
    });
    let caught = caught.into_inner();
    assert!(caught >= 80, "only {caught} of 100 voyages were caught");
}
