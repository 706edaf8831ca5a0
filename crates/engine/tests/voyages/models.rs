//! The fleet with tiny real models: their kernels, KV pools and drafters instead of a script.

use crate::dice::{Dice, Log};
use crate::serial::cut;
use crate::voyage::{Passenger, sail, speculation};
use device::{Cpu, Sim};
use engine::{
    Engine, EngineOptions, Fence, Limits, Pair, PairOptions, PromptLogProbs, PromptToken, Request,
    Sampling, Shaping, Speculation, StepCost, Stops, Vocabulary, WidthPolicy,
};
use kernels::choose::LogProbs;
use std::path::{Path, PathBuf};

/// Output tokens of a tale.
const LENGTH: usize = 32;
/// Likely tokens whose log-probabilities are reported, when any.
const TOP: usize = 2;

/// What the fleet must meet.
pub(crate) const MET: &[&str] = &[
    "drafts accepted",
    "drafts refused",
    "stop ids inside a block",
    "stop strings inside a block",
    "ends by length",
    "cancels while decoding",
    "log-probabilities",
    "prompt tokens reported",
    "shaped logits",
    "changes of speculation",
    "requests started anew to draft",
    "tokens from the prefix cache",
    "retractions",
    "idle moments",
    "llama3 alone",
    "qwen3 with dflash",
    "qwen3 with dflash-window",
];

/// A target, its drafter if it has one, and a name for both.
type Ship = (&'static str, Option<&'static str>, &'static str);

const SHIPS: [Ship; 3] = [
    ("llama3", None, "llama3 alone"),
    ("qwen3", Some("dflash"), "qwen3 with dflash"),
    ("qwen3", Some("dflash-window"), "qwen3 with dflash-window"),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn pair(target: &str, draft: Option<&str>) -> Pair {
    let draft = draft.map(fixture);
    Pair::load(&Cpu::new(1), &fixture(target), draft.as_deref(), &PairOptions::default())
        .expect("the committed models load")
}

/// A prompt and what its serial, uncached, undrafted run says.
struct Tale {
    request: Request,
    /// Of the whole prompt.
    read: Vec<PromptToken>,
    said: Vec<(u32, LogProbs)>,
}

/// What each target tells.
pub(crate) struct Tales {
    llama3: Vec<Tale>,
    qwen3: Vec<Tale>,
}

impl Tales {
    pub(crate) fn new() -> Tales {
        Tales { llama3: tales("llama3"), qwen3: tales("qwen3") }
    }

    fn of(&self, target: &str) -> &[Tale] {
        if target == "llama3" { &self.llama3 } else { &self.qwen3 }
    }
}

/// Prompts that share beginnings, and those whose continuation the tiny drafter knows.
fn prompts() -> Vec<Vec<u32>> {
    let golden = std::fs::read(fixture("dflash").join("golden.json")).expect("the golden file");
    let golden: serde_json::Value = serde_json::from_slice(&golden).expect("JSON");
    let known = golden["generations"].as_array().expect("generations").iter();
    let known = known.map(|one| serde_json::from_value(one["prompt"].clone()).expect("ids"));
    let mut dice = Dice(3);
    let shared: Vec<Vec<u32>> =
        (0..2).map(|_| (0..50).map(|_| dice.roll(250) as u32).collect()).collect();
    let cut = |(i, len): (usize, usize)| shared[i % 2][..len].to_vec();
    known.chain([50, 37, 20, 33, 1, 16].into_iter().enumerate().map(cut)).collect()
}

fn tales(target: &str) -> Vec<Tale> {
    // No whole page of a tale: nothing is cached.
    let options =
        EngineOptions { page_size: 128, kv_tokens: Some(128), ..EngineOptions::default() };
    let mut engine = Engine::new(pair(target, None), options);
    let mut tell = |prompt: Vec<u32>, temperature, seed, shaping| {
        let request = Request {
            prompt,
            sampling: Sampling { temperature, seed, ..Sampling::default() },
            shaping,
            stops: Stops::default(),
            limits: Limits { max_tokens: Some(LENGTH), ..Limits::default() },
            speculation: Speculation::Off,
            priority: 0,
            logprobs: Some(TOP),
            prompt_logprobs: Some(PromptLogProbs { from: 0, top: TOP }),
            constraint: None,
        };
        let output = engine.run(vec![request.clone()]).expect("the tale is told").remove(0);
        let said = output
            .tokens
            .into_iter()
            .map(|token| (token.id, token.logprobs.expect("log-probabilities were asked for")));
        Tale { request, read: output.prompt, said: said.collect() }
    };
    let mut tales = Vec::new();
    for prompt in prompts() {
        for (temperature, seed) in [(0.0, 0), (0.7, 1), (1.0, 2)] {
            tales.push(tell(prompt.clone(), temperature, seed, Shaping::default()));
        }
    }
    for (i, prompt) in prompts().into_iter().enumerate() {
        for (temperature, seed) in [(0.0, 0), (1.0, 2)] {
            tales.push(tell(prompt.clone(), temperature, seed, shaping(i)));
        }
    }
    assert_eq!(engine.tally().cached_tokens, 0);
    tales
}

/// One of a few shapes.
fn shaping(i: usize) -> Shaping {
    let plain = Shaping::default();
    match i % 4 {
        0 => Shaping { frequency_penalty: 0.7, ..plain },
        1 => Shaping { repetition_penalty: 1.3, presence_penalty: -0.4, ..plain },
        2 => Shaping { logit_bias: (0..40).map(|id| (id * 5, 1.5)).collect(), ..plain },
        _ => Shaping {
            presence_penalty: 1.1,
            frequency_penalty: 0.3,
            repetition_penalty: 1.1,
            logit_bias: vec![(7, -100.0), (32, 2.5)],
        },
    }
}

/// Sails one voyage: what it met, or what went wrong first.
pub(crate) fn voyage(seed: u64, tales: &Tales) -> Result<Log, String> {
    let (mut dice, mut log, sim) = (Dice(seed), Log::default(), Sim::new(seed));
    let (target, draft, name) = dice.pick(&SHIPS);
    log.note(name, 1);
    let pair = pair(target, draft);
    let vocabulary = pair.tokenizer.clone();
    let engine = Engine::on(&sim, pair, options(&mut dice));
    let block = engine.info().draft.as_ref().map_or(1, |draft| draft.block);
    let passengers = (0..2 + dice.roll(4)).map(|_| {
        // Half of them where the drafter is at its best.
        let of = tales.of(target);
        let tale = &of[if dice.one_in(2) { 3 * dice.roll(2) } else { dice.roll(of.len()) }];
        let request = request(&mut dice, tale, block, &*vocabulary);
        log.note("shaped logits", u64::from(request.shaping != Shaping::default()));
        let said = tale.said.iter().cloned();
        let from = request.prompt_logprobs.map_or(tale.read.len(), |asked| asked.from);
        let read = tale.read[from..].to_vec();
        let expected = cut(said, &request, read, usize::MAX, |id| vocabulary.piece(id), |_| None);
        Passenger::new(&mut dice, request, expected, block)
    });
    let passengers = passengers.collect();
    log.add(&sail(&sim, engine, passengers, &*vocabulary)?);
    Ok(log)
}

fn options(dice: &mut Dice) -> EngineOptions {
    let widths = [WidthPolicy::Fixed, WidthPolicy::Adaptive(StepCost::default())];
    EngineOptions {
        page_size: dice.pick(&[1, 16, 64]),
        kv_tokens: Some(96 + dice.roll(100)),
        chunk: dice.pick(&[2, 7, 20, 100]),
        max_running: 1 + dice.roll(4),
        width: 2 + dice.roll(7),
        widths: dice.pick(&widths),
        fence: dice.pick(&[Fence::Fine, Fence::Fine, Fence::Coarse, Fence::SelfFence]),
        ..EngineOptions::default()
    }
}

/// A request for a tale that may end before the tale does.
fn request(dice: &mut Dice, tale: &Tale, block: usize, vocabulary: &dyn Vocabulary) -> Request {
    let mut stops = Stops::default();
    let at = dice.roll(LENGTH - 1);
    let piece = |at: usize| vocabulary.piece(tale.said[at].0);
    match dice.roll(3) {
        0 => stops.ids.push(tale.said[at].0),
        1 => {
            let over = [piece(at), piece(at + 1)].concat();
            let text = String::from_utf8_lossy(&over).replace(char::REPLACEMENT_CHARACTER, "");
            stops.strings.extend((!text.is_empty()).then_some(text));
        }
        _ => {}
    }
    let length = tale.request.prompt.len();
    let asked = |dice: &mut Dice| PromptLogProbs { from: dice.roll(length), top: TOP };
    Request {
        stops,
        limits: Limits { max_tokens: Some(LENGTH - dice.roll(LENGTH / 2)), ..Limits::default() },
        speculation: speculation(dice, block),
        priority: dice.roll(2) as i32,
        logprobs: dice.one_in(3).then_some(TOP),
        prompt_logprobs: dice.one_in(3).then(|| asked(dice)),
        constraint: None,
        ..tale.request.clone()
    }
}
