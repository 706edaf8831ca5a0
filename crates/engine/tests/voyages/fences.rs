//! The three fences on the whole engine, in virtual time: what each costs a step is exact.

use crate::script::{Promises, Quality, ScriptDrafter, ScriptTarget, Words};
use device::{Device, LaneId, Sim, SimOptions, SimOrder};
use engine::draft::Follows;
use engine::{Engine, EngineOptions, Fence, Leaves, Parts, Request, WidthPolicy};
use std::sync::Arc;
use std::time::Duration;

const WIDTH: usize = 4;
const PAGE: usize = 512;

const fn micros(time: u64) -> Duration {
    Duration::from_micros(time)
}

const PLAN: Duration = micros(400);
const COMMIT: Duration = micros(100);
const SNAPSHOT: Duration = micros(60);
const DRAFT: Duration = micros(700);
const VERIFY: Duration = micros(2_000);
const ABSORB: Duration = micros(40);
const COPY: Duration = micros(30);
/// The forward lane's part of a step that drafts.
const STEP: Duration = micros(700 + 2_000 + 40);

fn durations(what: &'static str, _: usize) -> Duration {
    match what {
        "plan" => PLAN,
        "commit" => COMMIT,
        "snapshot pages" => SNAPSHOT,
        "draft" => DRAFT,
        "verify" => VERIFY,
        "absorb" => ABSORB,
        "results" => COPY,
        _ => Duration::ZERO,
    }
}

/// What a step takes on average.
#[derive(Debug, PartialEq)]
struct Step {
    wall: Duration,
    landing: Duration,
    fence: Duration,
    /// Time in which the forward lane runs nothing.
    idle: Duration,
    /// Of 50 steps, those launched before the one ahead had ended.
    led: u64,
}

fn engine(sim: &Sim, fence: Fence) -> Engine<Sim> {
    let promises = Promises::of(0, Leaves::default(), Follows::Tokens);
    let parts = Parts {
        target: Box::new(ScriptTarget::new(PAGE, PAGE, promises.clone())),
        drafter: Box::new(ScriptDrafter::new((PAGE, PAGE), WIDTH, Quality::Perfect, promises)),
        vocabulary: Arc::new(Words),
        context: PAGE,
        pages: 1,
        mask_id: None,
    };
    let options = EngineOptions {
        page_size: PAGE,
        width: WIDTH,
        widths: WidthPolicy::Fixed,
        fence,
        ..Default::default()
    };
    Engine::assemble(sim, parts, options)
}

/// One request, drafted perfectly; 50 of its steps.
fn steady(fence: Fence) -> Step {
    let order = SimOrder::Timed;
    let sim = Sim::with(SimOptions { order, durations, ..SimOptions::default() });
    let mut engine = engine(&sim, fence);
    let request = Request::new(vec![1, 2, 3]);
    engine.submit(request).expect("the request is in bounds");
    let mut turns = |turns: usize| {
        let committed: usize = (0..turns)
            .flat_map(|_| engine.turn().expect("the step runs"))
            .map(|update| update.tokens.len())
            .sum();
        (committed, sim.clock().now(), sim.usage(), engine.counters())
    };
    let (_, start, before, counted) = turns(10);
    let (committed, end, after, counters) = turns(50);
    assert_eq!(committed, 50 * WIDTH, "each step commits a whole block");
    let counters = counters - counted;
    assert_eq!(counters.times.draft, DRAFT * 50);
    assert_eq!(counters.times.verify, VERIFY * 50);
    assert_eq!(counters.times.absorb, ABSORB * 50);
    let busy = after.busy[LaneId::Forward.index()] - before.busy[LaneId::Forward.index()];
    Step {
        wall: (end - start) / 50,
        landing: (after.results.time - before.results.time) / 50,
        fence: (after.fence.time - before.fence.time) / 50,
        idle: (end - start - busy) / 50,
        led: counters.led,
    }
}

/// The host stands at the fence for a whole verify pass, and the device waits while it plans.
#[test]
fn a_fence_of_its_own_blocks_the_host() {
    let idle = PLAN + SNAPSHOT;
    let fence = STEP + SNAPSHOT - COMMIT;
    let landing = Duration::ZERO;
    assert_eq!(steady(Fence::SelfFence), Step { wall: STEP + idle, landing, fence, idle, led: 0 });
    assert!(fence > VERIFY);
}

/// The host goes on, but nothing of a step runs beside the one before.
#[test]
fn a_coarse_fence_idles_the_device() {
    let wall = STEP + SNAPSHOT;
    let landing = wall - PLAN - COMMIT;
    let expected = Step { wall, landing, fence: Duration::ZERO, idle: SNAPSHOT, led: 50 };
    assert_eq!(steady(Fence::Coarse), expected);
}

/// The device goes from step to step without a gap; the host waits in landing alone.
#[test]
fn read_done_leaves_no_gap() {
    let (zero, landing) = (Duration::ZERO, STEP - PLAN - COMMIT);
    let expected = Step { wall: STEP, landing, fence: zero, idle: zero, led: 50 };
    assert_eq!(steady(Fence::Fine), expected);
}
