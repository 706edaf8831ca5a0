//! Virtual time: what the simulated device says about a program whose durations are known is
//! exact, so the effect of each fence is a number that a test can state.

#[path = "kit/host.rs"]
mod host;
#[path = "kit/steps.rs"]
mod steps;

use device::{Device, Fence, LaneId, Lanes, Reason, Sim, SimOptions, SimOrder};
use host::HostKit;
use std::time::Duration;
use steps::{Measured, Times};

const fn micros(time: u64) -> Duration {
    Duration::from_micros(time)
}

const PLANNING: Duration = micros(1_000);
const COMMIT: Duration = micros(300);
const TABLE: Duration = micros(50);
const SNAPSHOT: Duration = micros(200);
const FORWARD: Duration = micros(5_000);

fn run(options: SimOptions, fence: Fence, steps: u32) -> Measured {
    let sim = Sim::with(options);
    let times = Times {
        planning: PLANNING,
        commit: COMMIT,
        table: TABLE,
        snapshot: SNAPSHOT,
        forward: FORWARD,
    };
    let measured = steps::run(&sim, &HostKit::new(&sim), fence, steps, || times);
    assert_eq!(sim.races(), []);
    measured.expect("no job fails")
}

fn timed() -> SimOptions {
    SimOptions { order: SimOrder::Timed, ..SimOptions::default() }
}

/// What a step takes once the loop is steady.
#[derive(Debug, PartialEq)]
struct Step {
    wall: Duration,
    landing: Duration,
    fence: Duration,
    /// Time in which the forward lane runs nothing.
    idle: Duration,
    /// Of 100 steps, those launched before the one ahead had ended.
    led: u32,
}

/// The difference that 100 steps more make.
fn steady(fence: Fence) -> Step {
    let (few, many) = (run(timed(), fence, 10), run(timed(), fence, 110));
    let forward = |run: &Measured| run.usage.busy[LaneId::Forward.index()];
    let wall = many.wall - few.wall;
    Step {
        wall: wall / 100,
        landing: (many.usage.results.time - few.usage.results.time) / 100,
        fence: (many.usage.fence.time - few.usage.fence.time) / 100,
        idle: (wall - (forward(&many) - forward(&few))) / 100,
        led: many.led - few.led,
    }
}

/// The host stands at the fence for nearly a whole forward pass, and while it plans the device
/// has nothing to do.
#[test]
fn a_fence_of_its_own_blocks_the_host() {
    let between = PLANNING + TABLE + SNAPSHOT;
    let expected = Step {
        wall: FORWARD + between,
        landing: Duration::ZERO,
        // While the step runs the host has only the one before to commit.
        fence: FORWARD + TABLE + SNAPSHOT - COMMIT,
        idle: between,
        led: 0,
    };
    assert_eq!(steady(Fence::SelfFence), expected);
}

/// The host goes on, but the device idles through what could have been done before.
#[test]
fn a_coarse_fence_idles_the_device() {
    let between = TABLE + SNAPSHOT;
    let expected = Step {
        wall: FORWARD + between,
        landing: FORWARD + between - PLANNING - COMMIT,
        fence: Duration::ZERO,
        idle: between,
        led: 100,
    };
    assert_eq!(steady(Fence::Coarse), expected);
}

/// The device goes from step to step without a gap, and the host waits for tokens alone.
#[test]
fn read_done_leaves_no_gap() {
    let expected = Step {
        wall: FORWARD,
        landing: FORWARD - PLANNING - COMMIT,
        fence: Duration::ZERO,
        idle: Duration::ZERO,
        led: 100,
    };
    assert_eq!(steady(Fence::Fine), expected);
}

/// A job starts when its lane is free, it is launched, and what the lane waits for is reached; the
/// host's time moves with its own work and with what it learns.
#[test]
fn time_follows_what_waits_for_what() {
    let durations = |what: &'static str, size: usize| match what {
        "forward" => FORWARD,
        "table" => TABLE,
        _ => micros(size as u64),
    };
    let sim = Sim::with(SimOptions { durations, ..timed() });
    let (lanes, clock) = (Lanes::new(&sim), sim.clock());
    let (seen, starts) = std::sync::mpsc::channel();
    let note = |what: &'static str| {
        let (clock, seen) = (clock.clone(), seen.clone());
        move |()| {
            let now = clock.now();
            clock.spend(COMMIT);
            clock.work("so many microseconds", 70);
            assert_eq!(clock.now(), now + COMMIT + micros(70), "a job's time is its lane's");
            seen.send((what, now)).expect("the test listens");
        }
    };
    clock.spend(PLANNING);
    lanes.forward.launch("forward", (), note("first"));
    let first = lanes.forward.record();
    lanes.plan.wait(&first);
    lanes.plan.launch("nothing", (), note("after first"));
    lanes.schedule.launch("table", (), note("free"));
    assert!(!Device::reached(&sim, &first));
    assert_eq!(clock.now(), PLANNING);
    let (all, free) = (lanes.plan.record(), lanes.schedule.record());
    sim.land(&all, Reason::Results).expect("it is reached");
    let (own, first) = (COMMIT + micros(70), PLANNING + FORWARD);
    let expected = [("first", first), ("free", PLANNING + TABLE), ("after first", first + own)];
    assert_eq!(starts.try_iter().collect::<Vec<_>>(), expected);
    let waited = FORWARD + own * 2;
    assert_eq!(clock.now(), PLANNING + waited);
    // What is reached already takes no time, and the host's own time does not go back.
    sim.land(&free, Reason::Fence).expect("it is reached");
    let usage = sim.usage();
    assert_eq!((usage.results.time, usage.fence.time), (waited, Duration::ZERO));
    assert_eq!((usage.results.blocked, usage.fence.blocked), (1, 0));
    assert_eq!(clock.now(), PLANNING + waited);
    assert_eq!(usage.busy, [TABLE + own, own, FORWARD + own, Duration::ZERO]);
}

/// Times do not depend on the order in which a seed happens to run the lanes.
#[test]
fn drawn_orders_take_the_same_time() {
    let expected = run(timed(), Fence::Fine, 20);
    for seed in 0..200 {
        let drawn = run(SimOptions { seed, ..SimOptions::default() }, Fence::Fine, 20);
        assert_eq!((drawn.wall, drawn.usage.busy), (expected.wall, expected.usage.busy));
    }
}
