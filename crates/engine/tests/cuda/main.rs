//! The engine on a CUDA card: same seed, same bytes, whatever is drafted, batched, cut into chunks,
//! cached or retracted, and whoever chooses. Without a card each test fails and says what is missing.
//! They read `fixtures/` from the working directory, or from where they were built.

mod default_pair;
mod scores;
mod tiny;

use device::Cpu;
use engine::cuda::Card;
use engine::{
    Engine, EngineOptions, Limits, Output, Pair, PairOptions, Request, Sampling, Shaping,
    Speculation, Stops, WidthPolicy,
};
use std::path::{Path, PathBuf};

pub(crate) fn fixture(name: &str) -> PathBuf {
    let here = Path::new("fixtures/models");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    if here.is_dir() { here.join(name) } else { built.join(name) }
}

/// A pair on the first card.
pub(crate) fn on_card(target: &Path, draft: Option<&Path>) -> Pair {
    let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
    let card = Card::open(0, cache).unwrap_or_else(|error| panic!("this needs a card: {error}"));
    Pair::load_on(card, &Cpu::new(2), target, draft, &PairOptions::default())
        .expect("the pair loads")
}

/// A tiny pair on the first card.
pub(crate) fn pair(target: &str, draft: Option<&str>) -> Pair {
    on_card(&fixture(target), draft.map(fixture).as_deref())
}

/// A request of `max_tokens` tokens that nothing else ends.
pub(crate) fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling::default(),
        shaping: Shaping::default(),
        stops: Stops::default(),
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        speculation: Speculation::Auto,
        priority: 0,
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
    }
}

/// A prompt of `len` ids that depends on `seed`.
pub(crate) fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|i| (((seed * 7919 + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 250) as u32)
        .collect()
}

/// Options whose widths are as asked for.
pub(crate) fn fixed() -> EngineOptions {
    EngineOptions { widths: WidthPolicy::Fixed, ..EngineOptions::default() }
}

/// The same requests without drafts.
pub(crate) fn undrafted(requests: &[Request]) -> Vec<Request> {
    let off = |request| Request { speculation: Speculation::Off, ..request };
    requests.iter().cloned().map(off).collect()
}

/// Runs `requests`, and checks that an idle engine holds nothing.
pub(crate) fn run(engine: &mut Engine, requests: &[Request]) -> Vec<Output> {
    let outputs = engine.run(requests.to_vec()).expect("the requests run");
    while !engine.is_idle() {
        engine.turn().expect("the last step lands");
    }
    for (free, total) in engine.free_and_total() {
        assert_eq!(free, total, "an idle engine holds nothing");
    }
    outputs
}

/// Ids and text of every output.
pub(crate) fn bytes(outputs: &[Output]) -> Vec<(Vec<u32>, String)> {
    outputs.iter().map(|output| (output.ids(), output.text.clone())).collect()
}

/// Drafts that were accepted.
pub(crate) fn accepted(outputs: &[Output]) -> usize {
    outputs.iter().map(|output| output.stats.accepted_drafts()).sum()
}
