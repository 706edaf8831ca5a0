//! Adaptive widths on a simulated clock: whatever drafts are worth, whatever steps cost and however
//! many requests run, drafting never makes throughput clearly worse than plain decoding, and where
//! it pays it is used.

use schedule::{
    Absorb, Bounds, Chances, CostCurve, Discipline, Limits, PlannedRow, Request, RowOutcome,
    Scheduler, SchedulerOptions, Speculation, StepCost, StepPlan, Text, Then, WidthPolicy, Work,
};
use std::collections::HashMap;

const WIDTH: usize = 8;
const PROMPT: usize = 40;

/// A machine: what passes take, in milliseconds.
struct Machine {
    name: &'static str,
    /// The target's pass, by tokens.
    verify: &'static [(usize, f64)],
    /// The drafter's, by requests, or by the positions that they draft where there are blocks.
    draft: &'static [(usize, f64)],
    /// Taking in a committed token.
    absorb: f64,
    /// The numbers of positions that may be drafted.
    blocks: &'static [usize],
    /// Numbers of tokens of which any other costs what the next of them does, and positions likewise.
    stairs: &'static [usize],
}

impl Machine {
    fn stair(&self, count: usize) -> usize {
        self.stairs.iter().copied().find(|&stair| stair >= count).unwrap_or(count)
    }
}

/// The default pair on two CPU cores: every token costs.
const CPU: Machine = Machine {
    name: "two cores",
    verify: &[(1, 3.5), (4, 4.4), (8, 5.6), (16, 9.8), (64, 36.0), (512, 280.0)],
    draft: &[(1, 2.5), (2, 4.0), (64, 95.0)],
    absorb: 0.012,
    blocks: &[],
    stairs: &[],
};

/// The same, whose drafter knows narrow blocks too.
const CPU_IN_BLOCKS: Machine = Machine {
    name: "two cores with blocks",
    draft: &[(4, 1.6), (8, 2.5), (16, 4.0), (512, 95.0)],
    blocks: &[4, 5, 6, 7, WIDTH],
    ..CPU
};

/// An 8B pair on one large GPU: reading the weights is what costs.
const GPU: Machine = Machine {
    name: "a GPU",
    verify: &[(1, 4.2), (16, 4.3), (64, 4.5), (128, 4.7), (256, 6.8), (512, 11.8)],
    draft: &[(1, 0.8), (16, 0.9), (64, 1.4), (256, 4.0)],
    absorb: 0.001,
    blocks: &[],
    stairs: &[],
};

/// An 8B pair on an H200, where passes of many rows go in tiles; the drafter knows narrow blocks too.
const H200: Machine = Machine {
    name: "an H200 with blocks",
    verify: &[
        (1, 4.0),
        (16, 4.4),
        (32, 5.0),
        (64, 6.3),
        (128, 7.6),
        (192, 9.7),
        (256, 11.4),
        (384, 15.3),
        (512, 18.5),
    ],
    draft: &[
        (4, 0.7),
        (16, 0.76),
        (64, 1.0),
        (128, 1.3),
        (256, 2.0),
        (384, 2.9),
        (512, 3.3),
        (1024, 6.6),
    ],
    absorb: 0.001,
    blocks: &[4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    stairs: &[1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512],
};

/// How often drafts are accepted: the chance of one after those before it, for a request.
#[derive(Clone, Copy, Debug)]
enum Drafts {
    /// Between 0.45 and 0.85 from request to request.
    Greedy,
    /// Between 0.4 and 0.65.
    Sampled,
    /// Like greedy ones on average, but each is either nearly sure or unlikely, and the drafter knows
    /// which.
    Told,
    Useless,
    Perfect,
    /// All alike: τ 6.48 in blocks of 16.
    Alike,
}

impl Drafts {
    /// Of the next draft of a request.
    fn rate(self, request: u64, dice: &mut Dice) -> f64 {
        let share = Dice(request).roll();
        match self {
            Drafts::Told => {
                if dice.roll() < 0.6 {
                    0.95
                } else {
                    0.2
                }
            }
            Drafts::Greedy => 0.45 + 0.4 * share,
            Drafts::Sampled => 0.4 + 0.25 * share,
            Drafts::Useless => 0.0,
            Drafts::Perfect => 1.0,
            Drafts::Alike => 0.8593,
        }
    }
}

/// A small generator (SplitMix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    /// From 0 up to 1.
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z >> 11) as f64 / (1u64 << 53) as f64
    }

    /// What a clock reads of something that takes `seconds` on a machine that does other things
    /// too.
    fn reading(&mut self, seconds: f64) -> f64 {
        let interrupted = if self.roll() < 0.02 { 3.0 } else { 1.0 };
        seconds * interrupted * (0.95 + 0.2 * self.roll())
    }
}

/// What is known of costs when the first request comes.
#[derive(Clone, Copy, Debug)]
enum Known {
    /// What an engine measures in its first moments.
    Measured,
    Nothing,
}

/// A run: tokens made, and milliseconds.
struct Run {
    tokens: usize,
    time: f64,
}

impl Run {
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.time
    }
}

/// Tokens of a request's output: from 60 on to 200.
fn short(id: u64) -> usize {
    60 + id as usize * 77 % 140
}

/// The same, so long that a step seldom has another one's prompt beside it.
fn long(id: u64) -> usize {
    400 + id as usize * 77 % 60
}

fn request(id: u64, tokens: usize, speculation: Speculation) -> Request {
    Request {
        limits: Limits { max_tokens: Some(tokens), ..Limits::default() },
        speculation,
        ..Request::new((0..PROMPT as u32).map(|i| i + 100 * id as u32).collect())
    }
}

fn scheduler(machine: &Machine, running: usize, known: Known) -> Scheduler {
    let known_at = |counts: &[usize], points: &[(usize, f64)]| {
        let curve = CostCurve::measured(points.iter().copied());
        CostCurve::measured(counts.iter().map(|&count| (count, curve.seconds(count))))
    };
    let cost = match known {
        Known::Measured => {
            let mut verify = CostCurve::of_stairs(machine.stairs.to_vec());
            let curve = CostCurve::measured(machine.verify.iter().copied());
            [1, 4].iter().for_each(|&count| verify.learn(count, curve.seconds(count)));
            let ends = match machine.blocks {
                [] => vec![1],
                [first, .., last] => vec![*first, *last],
                [only] => vec![*only],
            };
            StepCost {
                verify,
                draft: known_at(&ends, machine.draft),
                blocks: machine.blocks.to_vec(),
            }
        }
        Known::Nothing => StepCost::default(),
    };
    Scheduler::new(SchedulerOptions {
        bounds: Bounds {
            vocab: usize::MAX,
            context: 1 << 20,
            kv_tokens: running * 512,
            max_width: 16,
        },
        page_size: 16,
        step_tokens: 512,
        max_running: running,
        max_waiting: usize::MAX,
        width: machine.blocks.last().copied().unwrap_or(WIDTH),
        widths: WidthPolicy::Adaptive(cost),
        discipline: Discipline::Sound,
    })
}

/// Positions of the block that is drafted for a row with room for so many drafts.
fn room(machine: &Machine, likely: usize) -> usize {
    let fits = machine.blocks.iter().copied().find(|&block| block > likely);
    fits.or(machine.blocks.last().copied()).unwrap_or(usize::MAX)
}

/// What becomes of a row. `lengths` are the tokens with KV, by request, as the device knows them.
fn device(
    machine: &Machine,
    row: &PlannedRow,
    lengths: &mut HashMap<u64, usize>,
    drafts: Drafts,
    dice: &mut Dice,
) -> RowOutcome {
    let len = lengths.entry(row.id).or_default();
    match &row.work {
        Work::Chunk { tokens, start, then } => {
            *len = start + tokens.len();
            let chosen = if *then == Then::Choose { vec![1] } else { vec![] };
            RowOutcome { tokens: chosen, ..RowOutcome::default() }
        }
        Work::Block { width, price, likely } => {
            // The sequence's end narrows the last block.
            let width = (*width).min(row.limit - 1 - *len).min(room(machine, *likely));
            if width == 0 {
                return RowOutcome::default();
            }
            let rates: Vec<f64> = (1..width).map(|_| drafts.rate(row.id, dice)).collect();
            let (mut chances, mut drafted, mut likely) = (Chances::default(), 0, 1.0);
            for rate in &rates {
                likely *= *rate as f32;
                chances.add(likely);
                drafted += usize::from(likely >= *price);
            }
            // What was not drafted is as usual.
            for _ in rates.len()..machine.blocks.last().map_or(0, |block| block - 1) {
                likely *= drafts.rate(row.id, dice) as f32;
                chances.add(likely);
            }
            let accepted = rates[..drafted].iter().take_while(|rate| dice.roll() < **rate).count();
            *len += accepted + 1;
            RowOutcome { tokens: vec![1; accepted + 1], accepted, drafted, chances, end: None }
        }
    }
}

/// Tokens of a row that the drafter takes in.
fn absorbed((planned, outcome): (&PlannedRow, &RowOutcome)) -> usize {
    match &planned.work {
        _ if planned.absorb == Absorb::Skip => 0,
        Work::Chunk { tokens, .. } => tokens.len(),
        Work::Block { .. } => outcome.tokens.len(),
    }
}

/// Runs `count` requests, `running` at once; `luck` tells runs apart.
fn run(
    luck: u64,
    machine: &Machine,
    running: usize,
    (count, tokens): (u64, fn(u64) -> usize),
    drafts: Drafts,
    known: Known,
    speculation: Speculation,
) -> Run {
    let mut scheduler = scheduler(machine, running, known);
    let [verify, draft] =
        [machine.verify, machine.draft].map(|points| CostCurve::measured(points.iter().copied()));
    (0..count).for_each(|id| {
        scheduler.submit(id, request(id, tokens(id), speculation)).expect("it fits")
    });
    let (mut dice, mut made) = (Dice(count + luck), Run { tokens: 0, time: 0.0 });
    let (mut flying, mut lengths): (Option<StepPlan>, _) = (None, HashMap::new());
    loop {
        let launched = scheduler.plan();
        let Some(landed) = std::mem::replace(&mut flying, launched) else {
            if scheduler.is_idle() {
                return made;
            }
            continue;
        };
        let outcomes: Vec<RowOutcome> = landed
            .rows
            .iter()
            .map(|row| device(machine, row, &mut lengths, drafts, &mut dice))
            .collect();
        let drafting: usize = match machine.blocks {
            [] => landed.drafting().count(),
            _ => landed.drafting().map(|likely| room(machine, likely)).sum(),
        };
        let tokens = machine.stair(landed.verified(&outcomes));
        let (v, d) = (verify.seconds(tokens), draft.seconds(machine.stair(drafting)));
        made.time += v + d;
        let rows = landed.rows.iter().zip(&outcomes);
        made.time += machine.absorb * rows.map(absorbed).sum::<usize>() as f64;
        scheduler.learn(&landed, &outcomes, dice.reading(v), dice.reading(d));
        let mut text = Text::default();
        for outcome in scheduler.land(landed, &outcomes, flying.as_mut(), |_| b"", &mut text) {
            made.tokens += outcome.committed.kept;
        }
    }
}

/// Runs of which the mean is judged: where drafting is worth nothing, one alone is a percent better or worse by luck.
const RUNS: u64 = 4;

/// Throughput with a drafter over throughput without, for each number of requests at once.
fn ratios(machine: &Machine, drafts: Drafts, known: Known) -> Vec<(usize, f64)> {
    let ratio = |running: usize| {
        let count = 40.max(8 * running as u64);
        let one = |luck| {
            let go = |speculation| {
                run(luck, machine, running, (count, short), drafts, known, speculation)
            };
            let (plain, drafted) = (go(Speculation::Off), go(Speculation::Auto));
            assert_eq!(drafted.tokens, plain.tokens, "each request has its length");
            drafted.rate() / plain.rate()
        };
        (running, (0..RUNS).map(one).sum::<f64>() / RUNS as f64)
    };
    let ratios: Vec<(usize, f64)> = [1, 2, 4, 8, 16, 32, 64].map(ratio).to_vec();
    let line: Vec<String> = ratios.iter().map(|(n, ratio)| format!("{n}: {ratio:.3}")).collect();
    println!("{}, {drafts:?}, costs {known:?}: {}", machine.name, line.join(", "));
    ratios
}

#[test]
fn drafting_never_makes_throughput_clearly_worse() {
    for machine in [CPU, GPU] {
        for drafts in
            [Drafts::Greedy, Drafts::Sampled, Drafts::Told, Drafts::Useless, Drafts::Perfect]
        {
            for known in [Known::Measured, Known::Nothing] {
                for (running, ratio) in ratios(&machine, drafts, known) {
                    let what = format!("{}, {drafts:?}, {known:?}, {running}", machine.name);
                    assert!(ratio >= 0.98, "{what} at once: {ratio:.3} of plain decoding");
                }
            }
        }
    }
}

/// Least ratios where drafting pays.
#[test]
fn drafting_is_used_where_it_pays() {
    for (machine, drafts, least) in [
        (CPU, Drafts::Greedy, &[(1, 1.05)][..]),
        (CPU, Drafts::Told, &[(1, 1.2)]),
        (CPU, Drafts::Perfect, &[(1, 2.3), (2, 1.6), (4, 1.1)]),
        (CPU_IN_BLOCKS, Drafts::Greedy, &[(1, 1.3), (2, 1.05)]),
        (CPU_IN_BLOCKS, Drafts::Told, &[(1, 1.25), (2, 1.05)]),
        (GPU, Drafts::Greedy, &[(1, 2.1), (2, 2.1), (4, 2.0), (8, 2.0), (16, 1.8), (32, 1.5)]),
        (GPU, Drafts::Sampled, &[(1, 1.6), (2, 1.6), (4, 1.6), (8, 1.5), (16, 1.4), (32, 1.25)]),
        (GPU, Drafts::Perfect, &[(1, 5.5), (2, 5.0), (4, 5.0), (8, 5.0), (16, 4.0), (32, 3.0)]),
    ] {
        for ((running, ratio), (at, least)) in
            ratios(&machine, drafts, Known::Measured).into_iter().zip(least)
        {
            assert_eq!(running, *at);
            assert!(ratio >= *least, "{}, {drafts:?}, {running}: {ratio:.3}", machine.name);
        }
    }
}

/// No width that all requests name makes more than what the planner chooses.
#[test]
fn blocks_are_as_wide_as_pays() {
    for running in [1, 4, 16, 32, 64] {
        let count = 40.max(4 * running as u64);
        let go = |speculation| {
            run(0, &H200, running, (count, long), Drafts::Alike, Known::Measured, speculation)
                .rate()
        };
        let chosen = go(Speculation::Auto);
        let fixed =
            [2, 3, 4, 5, 6, 8, 10, 12, 16].map(|width| (width, go(Speculation::Width(width))));
        println!("{running}: {:.3} chosen, {fixed:.3?}", chosen);
        for (width, rate) in fixed {
            assert!(
                chosen >= 0.97 * rate,
                "{running} at once: {chosen:.3}, in blocks of {width} {rate:.3}"
            );
        }
    }
}
