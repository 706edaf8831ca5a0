//! Planning and landing grow linearly with the running requests: held by what they allocate, which
//! a busy machine does not change.

use allocation_counter::{AllocationInfo, measure};
use schedule::{
    Bounds, Chances, CostCurve, Discipline, Request, RowOutcome, Scheduler, SchedulerOptions,
    StepCost, StepPlan, Stops, Text, Then, WidthPolicy, Work,
};

const WIDTH: usize = 8;
const STEPS: usize = 64;

/// Of a step: allocations and their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    count: u64,
    bytes: u64,
}

fn scheduler(running: usize) -> Scheduler {
    let verify = CostCurve::measured([(1, 4.0), (512, 9.0), (1024, 14.0)]);
    let cost = StepCost { verify, draft: CostCurve::measured([(1, 1.0)]), ..StepCost::default() };
    let kv_tokens = running * 2048;
    Scheduler::new(SchedulerOptions {
        bounds: Bounds { vocab: 1000, context: 2048, kv_tokens, max_width: WIDTH },
        page_size: 16,
        step_tokens: running * 64,
        max_running: running,
        max_waiting: running,
        width: WIDTH,
        widths: WidthPolicy::Adaptive(cost),
        discipline: Discipline::Sound,
    })
}

fn request(id: u64) -> Request {
    Request {
        stops: Stops { ids: vec![2], strings: vec!["\n\n".into()] },
        ..Request::new((0..40).map(|i| ((id + i) % 1000) as u32).collect())
    }
}

/// Every row has half of its drafts accepted.
fn outcomes(plan: &StepPlan) -> Vec<RowOutcome> {
    let outcome = |work: &Work| match work {
        Work::Block { width, .. } => {
            let (accepted, drafted) = (width / 2, width - 1);
            let mut chances = Chances::default();
            (0..drafted).for_each(|i| chances.add(if i < accepted { 1.0 } else { 0.0 }));
            let tokens = vec![7; accepted + 1];
            RowOutcome { tokens, accepted, drafted, chances, end: None }
        }
        Work::Chunk { then: Then::Choose, .. } => {
            RowOutcome { tokens: vec![7], ..RowOutcome::default() }
        }
        Work::Chunk { .. } => RowOutcome::default(),
    };
    plan.rows.iter().map(|row| outcome(&row.work)).collect()
}

/// What steps of `running` decoding requests cost, the cheapest first.
fn costs(running: usize) -> Vec<Cost> {
    let (mut scheduler, mut text) = (scheduler(running), Text::default());
    for id in 0..running as u64 {
        scheduler.submit(id, request(id)).expect("the request is in bounds");
    }
    let mut flying = scheduler.plan();
    let mut step = || {
        let outcomes = outcomes(flying.as_ref().expect("a step is in flight"));
        let AllocationInfo { count_total: count, bytes_total: bytes, .. } = measure(|| {
            let next = scheduler.plan();
            let landed = std::mem::replace(&mut flying, next).expect("a step is in flight");
            text.clear();
            let youngest = flying.as_mut();
            let all = scheduler.land(landed, &outcomes, youngest, |_| b" token", &mut text);
            assert_eq!(all.len(), running, "every request has a part in every step");
        });
        Cost { count, bytes }
    };
    // The prompts, and the first steps, which make buffers that are kept.
    for _ in 0..8 {
        step();
    }
    let mut costs: Vec<Cost> = (0..STEPS).map(|_| step()).collect();
    costs.sort_unstable();
    costs
}

#[test]
fn a_step_of_many_requests_allocates_no_more_often_than_one_of_few() {
    let [few, many] = [16, 1024].map(costs);
    let middle = STEPS / 2;
    assert_eq!(few[middle].count, many[middle].count);
    assert!(few[middle].count <= 6, "{} allocations a step", few[middle].count);
    assert!(many[middle].bytes <= few[middle].bytes * 1024 / 16, "bytes grow linearly");
}

/// Tokens and pages of each request pile up in memory that doubles now and then.
#[test]
fn what_requests_keep_grows_with_them_and_seldom() {
    for running in [16, 256, 1024] {
        let all: u64 = costs(running).iter().map(|cost| cost.count).sum();
        let limit = STEPS * (6 + running / 8);
        assert!(all <= limit as u64, "{running} requests: {all} allocations in {STEPS} steps");
    }
}
