//! The promises of every device, asked of the devices whose jobs are closures on the host.

#[path = "kit/host.rs"]
mod host;
#[path = "kit/promises.rs"]
mod promises;
#[path = "kit/steps.rs"]
mod steps;

use device::{HostDevice, ReadDone, Sim, SimOptions, Threads};
use host::HostKit;
use std::time::Duration;

/// Runs the promise on threads, and on the simulation under some seeds.
macro_rules! on_both {
    ($($name:ident)*) => {
        mod threads {
            $(#[test] fn $name() { super::promises::$name(&super::threads_open); })*
        }
        mod sim {
            $(#[test] fn $name() { super::under_seeds(|open| super::promises::$name(open)); })*
        }
    };
}

on_both! {
    a_lane_runs_its_jobs_in_order
    a_wait_orders_two_lanes
    a_write_waits_for_every_reader
    rings_are_used_again
    a_replayed_graph_equals_eager_work
    what_jobs_use_outlives_its_owner
    new_buffers_hold_defaults
    a_panic_loses_the_device
    a_job_may_launch_and_must_not_land
    devices_do_not_mix
    two_hosts_share_a_device
}

fn open<D: HostDevice>(device: D) -> (D, HostKit<D>) {
    let kit = HostKit::new(&device);
    (device, kit)
}

fn threads_open() -> (Threads, HostKit<Threads>) {
    open(Threads::new())
}

fn under_seeds(promise: impl Fn(promises::Open<'_, HostKit<Sim>>)) {
    (0..3).for_each(|seed| promise(&|| open(Sim::new(seed))));
}

#[test]
fn steps_on_threads() {
    promises::steps_under_random_delays(&threads_open, 1_000);
}

#[test]
fn steps_in_the_simulation() {
    for seed in 0..20 {
        promises::steps_under_random_delays(&|| open(Sim::new(seed)), 20);
    }
}

/// The readers of the promises notice a device that forgets read-done.
#[test]
fn broken_fences_give_wrong_values() {
    for read_done in [ReadDone::PerLane, ReadDone::OneSlot, ReadDone::Missing] {
        let wrong = |seed| {
            let sim = Sim::with(SimOptions { seed, read_done, ..SimOptions::default() });
            promises::late_readers(&sim, &HostKit::new(&sim), 8, [Duration::ZERO; 4]) > 0
        };
        let seeds = (0..200).filter(|seed| wrong(*seed)).count();
        assert_eq!(seeds > 0, read_done != ReadDone::PerLane, "{read_done:?}: {seeds} of 200");
    }
}
