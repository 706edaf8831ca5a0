//! What scheduling costs: microseconds of planning and landing a step, by running requests.
//!
//! `cargo run --release -p slipstream-engine --example scheduling`
//!
//! It lives here and not in `schedule`, which knows no clock. Every request decodes with a drafter
//! that has half of each block accepted; ended ones are replaced, so steps admit, finish, lease
//! and release pages as a busy server's do. Submitting is not counted.

use schedule::{
    Bounds, CostCurve, Discipline, Limits, Request, RowOutcome, Sampling, Scheduler,
    SchedulerOptions, Speculation, StepCost, StepPlan, Stops, Then, WidthPolicy, Work,
};
use std::time::{Duration, Instant};

const WIDTH: usize = 8;
const STEPS: usize = 2000;

fn scheduler(running: usize, widths: WidthPolicy) -> Scheduler {
    Scheduler::new(SchedulerOptions {
        bounds: Bounds { vocab: 1000, context: 4096, kv_tokens: running * 1024, max_width: WIDTH },
        page_size: 16,
        step_tokens: running * WIDTH + 512,
        max_running: running,
        max_waiting: running,
        width: WIDTH,
        widths,
        discipline: Discipline::Sound,
    })
}

fn request(id: u64) -> Request {
    // Four prompts in five begin like others.
    let family = if id.is_multiple_of(5) { id } else { id % 3 };
    Request {
        prompt: (0..200).map(|i| ((family + i) % 1000) as u32).collect(),
        sampling: Sampling::default(),
        stops: Stops { ids: vec![2], strings: vec!["\n\n".into()] },
        limits: Limits { max_tokens: Some(100 + id as usize % 400), ..Limits::default() },
        speculation: Speculation::Auto,
        priority: 0,
        logprobs: None,
    }
}

fn outcomes(plan: &StepPlan) -> Vec<RowOutcome> {
    let outcome = |work: &Work| match work {
        Work::Block { width } => {
            let accepted = width / 2;
            RowOutcome { tokens: vec![7; accepted + 1], accepted, drafted: width - 1 }
        }
        Work::Chunk { then: Then::Choose, .. } => {
            RowOutcome { tokens: vec![7], accepted: 0, drafted: 0 }
        }
        Work::Chunk { .. } => RowOutcome::default(),
    };
    plan.rows.iter().map(|row| outcome(&row.work)).collect()
}

/// Planning and landing time of each step, ascending.
fn measure(running: usize, widths: WidthPolicy) -> Vec<Duration> {
    let mut scheduler = scheduler(running, widths);
    let mut id = 0;
    let mut flying: Option<StepPlan> = None;
    let mut times = Vec::with_capacity(STEPS);
    for step in 0..STEPS + 200 {
        while scheduler.load().0 + scheduler.load().1 < running {
            scheduler.submit(id, request(id)).expect("the request is in bounds");
            id += 1;
        }
        let start = Instant::now();
        let next = scheduler.plan();
        let mut time = start.elapsed();
        let before = std::mem::replace(&mut flying, next);
        if let Some(plan) = before {
            let outcomes = outcomes(&plan);
            let start = Instant::now();
            scheduler.learn(&plan, 0.004 + 1e-5 * plan.tokens() as f64, 0.001);
            let landed = scheduler.land(plan, &outcomes, flying.as_mut(), |_| b" token");
            time += start.elapsed();
            assert!(!landed.is_empty());
        }
        // The first steps fill the engine.
        if step >= 200 {
            times.push(time);
        }
    }
    times.sort_unstable();
    times
}

fn main() {
    let cost = StepCost {
        verify: CostCurve::measured([(1, 0.004), (512, 0.009)]),
        draft: CostCurve::measured([(1, 0.001)]),
    };
    println!("running  widths    median     99 %   (plan + land, µs a step)");
    for running in [16, 64, 256, 1024] {
        for (name, widths) in
            [("fixed", WidthPolicy::Fixed), ("adaptive", WidthPolicy::Adaptive(cost.clone()))]
        {
            let times = measure(running, widths);
            let micros =
                |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
            println!("{running:7}  {name:8} {:7.1}  {:7.1}", micros(0.5), micros(0.99));
        }
    }
}
