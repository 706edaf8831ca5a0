//! What scheduling costs: the time to plan a step and to land the one before it, by load and by
//! running requests.
//!
//! `cargo bench -p slipstream-schedule`
//!
//! Ended requests are replaced, so steps admit, finish, lease and release pages as a busy server's
//! do. What the device does, and submitting, is not counted. Criterion reports the mean of many
//! steps; below it stand single steps: the median, and what one in a hundred exceeds.

use criterion::measurement::{Measurement, WallTime};
use criterion::{BenchmarkId, Criterion};
use schedule::{
    Bounds, Chances, CostCurve, Discipline, Limits, PlannedRow, Request, RowOutcome, Scheduler,
    SchedulerOptions, StepCost, StepPlan, Stops, Text, Then, WidthPolicy, Work,
};
use std::hint::black_box;
use std::time::Duration;

/// Widest block of a drafter.
const WIDTH: usize = 8;
const RUNNING: [usize; 5] = [1, 16, 64, 256, 1024];
/// Steps until requests end as often as they start.
const WARM_UP: usize = 300;

/// What the requests of a run are like.
struct Load {
    name: &'static str,
    max_width: usize,
    widths: WidthPolicy,
    prompt: usize,
    /// One prompt in so many is unlike all others.
    unlike: u64,
}

fn loads() -> [Load; 4] {
    let adaptive = || {
        let verify = CostCurve::measured([(1, 0.004), (512, 0.009)]);
        WidthPolicy::Adaptive(StepCost {
            verify,
            draft: CostCurve::measured([(1, 0.001)]),
            ..StepCost::default()
        })
    };
    let load = |name, max_width, widths| Load { name, max_width, widths, prompt: 200, unlike: 5 };
    [
        load("plain", 1, WidthPolicy::Fixed),
        load("fixed widths", WIDTH, WidthPolicy::Fixed),
        load("adaptive widths", WIDTH, adaptive()),
        // Long prompts that no cache knows: chunks are part of most steps.
        Load { prompt: 600, unlike: 1, ..load("with chunks", WIDTH, adaptive()) },
    ]
}

/// A small generator (SplitMix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    /// A number in `[0, 1)`.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A device made of dice.
struct Device {
    /// Tokens with KV, by row.
    lengths: Vec<usize>,
    dice: Dice,
}

impl Device {
    fn outcome(&mut self, row: &PlannedRow) -> RowOutcome {
        let len = &mut self.lengths[row.row.index];
        match &row.work {
            Work::Chunk { tokens, start, then } => {
                *len = start + tokens.len();
                let chosen = if *then == Then::Choose { vec![7] } else { vec![] };
                RowOutcome { tokens: chosen, ..RowOutcome::default() }
            }
            Work::Block { width, price, .. } => {
                // The last block ends where the request does.
                let width = (*width).min(row.limit - 1 - *len);
                if width == 0 {
                    return RowOutcome::default();
                }
                // Some requests are easier to draft for than others.
                let chance = [0.9, 0.7, 0.4][row.id as usize % 3];
                let (drafted, chances) = judged(chance, width, *price);
                let accepted = (0..drafted).take_while(|_| self.dice.roll() < chance).count();
                *len += accepted + 1;
                let tokens = vec![7; accepted + 1];
                RowOutcome { tokens, accepted, drafted, chances, end: None }
            }
        }
    }
}

/// Of a block of `width` tokens whose drafts are each accepted with `chance`: how many are worth
/// `price`, and how likely all of them are.
fn judged(chance: f64, width: usize, price: f32) -> (usize, Chances) {
    let (mut chances, mut drafted) = (Chances::default(), 0);
    for place in 1..width {
        let likely = chance.powi(place as i32) as f32;
        chances.add(likely);
        drafted += usize::from(likely >= price);
    }
    (drafted, chances)
}

/// A scheduler with `running` requests, a step in flight, and its device.
struct Server<'a> {
    load: &'a Load,
    running: usize,
    scheduler: Scheduler,
    flying: Option<StepPlan>,
    submitted: u64,
    text: Text,
    device: Device,
}

impl Server<'_> {
    fn new(load: &Load, running: usize) -> Server<'_> {
        let kv_tokens = running * (load.prompt + 1000);
        let scheduler = Scheduler::new(SchedulerOptions {
            bounds: Bounds { vocab: 1000, context: 4096, kv_tokens, max_width: load.max_width },
            page_size: 16,
            step_tokens: running * load.max_width + 512,
            max_running: running,
            max_waiting: running,
            width: load.max_width,
            widths: load.widths.clone(),
            discipline: Discipline::Sound,
        });
        let text = Text::default();
        let device = Device { lengths: vec![0; running], dice: Dice(1) };
        Server { load, running, scheduler, flying: None, submitted: 0, text, device }
    }

    /// One that requests leave as often as they come.
    fn busy(load: &Load, running: usize) -> Server<'_> {
        let mut server = Server::new(load, running);
        for _ in 0..WARM_UP {
            let outcomes = server.prepare();
            server.turn(&outcomes);
        }
        server
    }

    fn request(&self, id: u64) -> Request {
        let family = if id.is_multiple_of(self.load.unlike) { 3 + id } else { id % 3 };
        Request {
            stops: Stops { ids: vec![2], strings: vec!["\n\n".into()] },
            limits: Limits { max_tokens: Some(100 + id as usize % 400), ..Limits::default() },
            ..Request::new(
                (0..self.load.prompt as u64).map(|i| ((family + i) % 1000) as u32).collect(),
            )
        }
    }

    /// Keeps the server full, and lets the device run the step in flight.
    fn prepare(&mut self) -> Vec<RowOutcome> {
        while self.scheduler.load().0 + self.scheduler.load().1 < self.running {
            let request = self.request(self.submitted);
            self.scheduler.submit(self.submitted, request).expect("the request is in bounds");
            self.submitted += 1;
        }
        let Some(plan) = &self.flying else { return Vec::new() };
        plan.rows.iter().map(|row| self.device.outcome(row)).collect()
    }

    /// One turn of the engine's loop: plans a step, then lands the one before it.
    fn turn(&mut self, outcomes: &[RowOutcome]) {
        let next = self.scheduler.plan();
        let before = std::mem::replace(&mut self.flying, next);
        if let Some(plan) = before {
            let verify = 0.004 + 1e-5 * plan.verified(outcomes) as f64;
            self.scheduler.learn(&plan, outcomes, verify, 0.001);
            let youngest = self.flying.as_mut();
            self.text.clear();
            let text = &mut self.text;
            black_box(self.scheduler.land(plan, outcomes, youngest, |_| b" token", text));
        }
    }
}

fn step(criterion: &mut Criterion) {
    for load in &loads() {
        let mut group = criterion.benchmark_group(load.name);
        for running in RUNNING {
            let (mut server, mut times) = (None, Vec::new());
            group.bench_function(BenchmarkId::from_parameter(running), |bencher| {
                let server = server.get_or_insert_with(|| Server::busy(load, running));
                bencher.iter_custom(|steps| {
                    let first = times.len();
                    for _ in 0..steps {
                        let outcomes = server.prepare();
                        let start = WallTime.start();
                        server.turn(&outcomes);
                        times.push(WallTime.end(start));
                    }
                    times[first..].iter().sum()
                });
            });
            report(times);
        }
        group.finish();
    }
}

fn report(mut times: Vec<Duration>) {
    if times.is_empty() {
        return;
    }
    times.sort_unstable();
    let micros =
        |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let [fast, median, slow] = [0.1, 0.5, 0.99].map(micros);
    println!("{:24}single steps: 10 % {fast:.1}, 50 % {median:.1}, 99 % {slow:.1} µs", "");
}

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    step(&mut criterion);
    criterion.final_summary();
}
