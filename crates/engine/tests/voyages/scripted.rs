//! The fleet with the scripted target and drafter: every size, policy and fence there is.

use crate::dice::{Dice, Log};
use crate::script::{Promises, Quality, ScriptDrafter, ScriptTarget, VOCAB, Words, read, say};
use crate::serial::cut;
use crate::toy;
use crate::voyage::{Passenger, Rig, sail, speculation};
use device::{Durations, Sim, SimOptions};
use engine::draft::{Drafter, Follows, NoDrafter};
use engine::{
    Engine, EngineOptions, Fence, Leaves, Limits, Parts, PromptLogProbs, Request, Sampling,
    Shaping, StepCost, Stops, Vocabulary, WidthPolicy,
};
use schedule::CostCurve;
use std::sync::Arc;
use std::time::Duration;

const CONTEXT: usize = 64;

/// What the gate's fleet must meet.
pub(crate) const MET: &[&str] = &[
    "drafts accepted",
    "drafts refused",
    "stop ids inside a block",
    "stop strings inside a block",
    "stops at the first token of a block",
    "ends by length",
    "cancels before a token",
    "cancels while decoding",
    "time-outs before a token",
    "time-outs while decoding",
    "log-probabilities",
    "prompt tokens reported",
    "prompts alone",
    "penalties",
    "biases",
    "least lengths with stop ids",
    "least lengths with stop strings",
    "words that shapes changed",
    "constrained texts",
    "texts that were whole",
    "texts without a way on",
    "overtakings by priority",
    "changes of speculation",
    "requests started anew to draft",
    "tokens from the prefix cache",
    "retractions",
    "idle moments",
    "pages of 1",
    "pages of 16",
    "pages of 64",
    "perfect drafters",
    "random drafters",
    "wrong drafters",
    "engines without a drafter",
    "passes with promised drafts",
    "steps that were left",
    "blocks behind others that nobody had read",
    "drafts started behind such",
    "fixed widths",
    "adaptive widths",
    "prompts longer than a step",
    "self fences",
    "coarse fences",
    "fine fences",
];

/// Sails one voyage: what it met, or what went wrong first.
pub(crate) fn voyage(seed: u64, rig: Rig) -> Result<Log, String> {
    let (mut dice, mut log) = (Dice(seed), Log::default());
    let durations: Durations = dice.pick(&[|_, _| Duration::ZERO, cheap, dear]);
    let (read_done, discipline) = (rig.read_done, rig.discipline);
    let sim = Sim::with(SimOptions { seed, durations, read_done, ..SimOptions::default() });
    let leaves = Leaves { blocks: dice.pick(&[0, 1, 2, 100]), rows: dice.pick(&[3, 100]) };
    let follows = dice.pick(&[Follows::Tokens, Follows::Blocks, Follows::Blocks]);
    let promises = Promises::of(dice.pick(&[0, 4, 16, 100]), leaves, follows);
    let (drafter, block) = drafter(&mut dice, &mut log, &promises);
    let options = EngineOptions { discipline, ..options(&mut dice, block, &mut log) };
    let chunk = options.chunk;
    let engine = engine(&sim, &mut dice, drafter, options, promises.clone());
    let passengers = (0..3 + dice.roll(6)).map(|_| {
        let request = request(&mut dice, block);
        let longer = request.prompt.len() > chunk;
        log.note("prompts longer than a step", u64::from(longer));
        shapes(&request, &mut log);
        let end = |output: &[u32]| toy::end(&request, output);
        let (prompt, said) = (read(&request), say(&request));
        let expected = cut(said, &request, prompt, CONTEXT, |id| Words.piece(id), end);
        Passenger::new(&mut dice, request, expected, block)
    });
    let passengers = passengers.collect();
    log.add(&sail(&sim, engine, passengers, &Words)?);
    let [passes, left, behind, started] = promises.met();
    log.note("passes with promised drafts", passes);
    log.note("steps that were left", left);
    log.note("blocks behind others that nobody had read", behind);
    log.note("drafts started behind such", started);
    Ok(log)
}

/// Work where a draft costs next to nothing.
fn cheap(what: &'static str, size: usize) -> Duration {
    match what {
        "verify" => Duration::from_micros(900 + 3 * size as u64),
        "draft" => Duration::from_micros(10),
        _ => Duration::from_micros(1),
    }
}

/// Work where a draft costs more than it brings.
fn dear(what: &'static str, size: usize) -> Duration {
    match what {
        "verify" => Duration::from_micros(10 + 90 * size as u64),
        "draft" => Duration::from_micros(40 * size as u64),
        _ => Duration::from_micros(1),
    }
}

/// What makes the drafter for so many slots, page size and block.
type Make = Box<dyn FnOnce(usize, usize) -> Box<dyn Drafter>>;

fn drafter(dice: &mut Dice, log: &mut Log, promises: &Promises) -> (Make, usize) {
    let block = dice.pick(&[1, 2, 4, 8]);
    let (quality, name) = dice.pick(&[
        (Quality::Perfect, "perfect drafters"),
        (Quality::Random, "random drafters"),
        (Quality::Wrong, "wrong drafters"),
    ]);
    if block == 1 {
        log.note("engines without a drafter", 1);
        return (Box::new(|_, _| Box::new(NoDrafter)), 1);
    }
    log.note(name, 1);
    let promises = promises.clone();
    let make = move |slots, page_size| -> Box<dyn Drafter> {
        Box::new(ScriptDrafter::new((slots, page_size), block, quality, promises))
    };
    (Box::new(make), block)
}

fn options(dice: &mut Dice, block: usize, log: &mut Log) -> EngineOptions {
    let (page_size, pages) =
        dice.pick(&[(1, "pages of 1"), (16, "pages of 16"), (64, "pages of 64")]);
    let (fence, fences) = dice.pick(&[
        (Fence::Fine, "fine fences"),
        (Fence::Fine, "fine fences"),
        (Fence::Coarse, "coarse fences"),
        (Fence::SelfFence, "self fences"),
    ]);
    let (widths, kind) = match dice.roll(2) {
        0 => (WidthPolicy::Fixed, "fixed widths"),
        _ => (WidthPolicy::Adaptive(cost(dice)), "adaptive widths"),
    };
    [pages, fences, kind].iter().for_each(|what| log.note(what, 1));
    EngineOptions {
        kv_tokens: None,
        page_size,
        chunk: dice.pick(&[2, 3, 7, 20, 100]),
        max_running: 1 + dice.roll(4),
        width: 1 + dice.roll(block),
        widths,
        fence,
        ..EngineOptions::default()
    }
}

/// Nothing known, or any curve.
fn cost(dice: &mut Dice) -> StepCost {
    let mut curve = || {
        let points = dice.roll(4);
        let point = |_| (1 + dice.roll(40), (1 + dice.roll(1000)) as f64 * 1e-5);
        CostCurve::measured((0..points).map(point).collect::<Vec<_>>())
    };
    StepCost { verify: curve(), draft: curve(), ..StepCost::default() }
}

fn engine(
    sim: &Sim,
    dice: &mut Dice,
    make: Make,
    options: EngineOptions,
    promises: Promises,
) -> Engine<Sim> {
    let page_size = options.page_size;
    // Room for one whole sequence at least, seldom for all: pages run out.
    let pages = CONTEXT.div_ceil(page_size) * (1 + dice.roll(2)) + dice.roll(3);
    let slots = pages * page_size;
    let parts = Parts {
        target: Box::new(ScriptTarget::new(slots, page_size, promises)),
        drafter: make(slots, page_size),
        vocabulary: Arc::new(Words),
        context: CONTEXT,
        pages,
        mask_id: None,
    };
    Engine::assemble(sim, parts, options)
}

/// Notes what is done to a request's logits, and whether it shows.
fn shapes(request: &Request, log: &mut Log) {
    let least = request.limits.min_tokens > 0;
    log.note("penalties", u64::from(request.shaping.penalizes()));
    log.note("biases", u64::from(!request.shaping.logit_bias.is_empty()));
    log.note("least lengths with stop ids", u64::from(least && !request.stops.ids.is_empty()));
    let strings = least && !request.stops.strings.is_empty();
    log.note("least lengths with stop strings", u64::from(strings));
    let plain = Request {
        shaping: Shaping::default(),
        limits: Limits { min_tokens: 0, ..request.limits },
        ..request.clone()
    };
    let changed = say(request).zip(say(&plain)).take(20).any(|(a, b)| a.0 != b.0);
    log.note("words that shapes changed", u64::from(changed));
}

/// Any shape whose sums are exact.
fn shaping(dice: &mut Dice) -> Shaping {
    if !dice.one_in(3) {
        return Shaping::default();
    }
    let bias = |dice: &mut Dice| {
        (dice.roll(VOCAB as usize) as u32, dice.pick(&[-100.0, -4.0, -0.5, 0.25, 3.0, 100.0]))
    };
    let biases = dice.pick(&[0, 0, 1, 5]);
    Shaping {
        presence_penalty: dice.pick(&[0.0, 0.0, 2.0, 0.5, -1.0]),
        frequency_penalty: dice.pick(&[0.0, 0.0, 2.0, 0.25, -0.5]),
        repetition_penalty: dice.pick(&[1.0, 1.0, 2.0, 0.5]),
        logit_bias: (0..biases).map(|_| bias(dice)).collect(),
    }
}

fn request(dice: &mut Dice, block: usize) -> Request {
    // Few beginnings, so that prefixes are shared.
    let family = dice.roll(3) as u32;
    let len = 1 + dice.roll(40);
    let prompt = (0..len as u32).map(|i| (family * 7 + i * (1 + family)) % VOCAB).collect();
    let ids = if dice.one_in(3) { vec![dice.roll(VOCAB as usize) as u32] } else { vec![] };
    let strings = ["c", "ab", "bca", "é", "aab", "cc"];
    let count = if dice.one_in(3) { 1 + dice.roll(2) } else { 0 };
    let strings = (0..count).map(|_| dice.pick(&strings).to_owned()).collect();
    let max_tokens = (!dice.one_in(8)).then(|| dice.roll(41));
    let most = max_tokens.unwrap_or(CONTEXT).min(CONTEXT - len);
    let min_tokens = if most > 0 && dice.one_in(3) { 1 + dice.roll(most) } else { 0 };
    let asked = |dice: &mut Dice| PromptLogProbs { from: dice.roll(len), top: dice.roll(3) };
    Request {
        prompt,
        sampling: Sampling { seed: dice.roll(3) as u64, ..Sampling::default() },
        shaping: shaping(dice),
        stops: Stops { ids, strings },
        limits: Limits { max_tokens, min_tokens, ..Limits::default() },
        speculation: speculation(dice, block),
        priority: dice.roll(3) as i32 - 1,
        logprobs: dice.one_in(4).then(|| dice.roll(3)),
        prompt_logprobs: dice.one_in(3).then(|| asked(dice)),
        constraint: dice.one_in(3).then(|| toy::toy(dice.roll(5) as u64)),
    }
}
