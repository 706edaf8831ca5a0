//! The engine on a CUDA card: same seed, same bytes, whatever is drafted, batched, cut into chunks,
//! cached or retracted, and whoever chooses. Without a card each test fails and says what is missing.
//! They read `fixtures/` from the working directory, or from where they were built.

mod default_pair;
mod judged;
#[path = "../kit/default_pair.rs"]
mod questions;
#[path = "../kit/tiny.rs"]
mod requests;
mod scores;
mod tiny;

pub(crate) use requests::{fixed, prompt, request};

use device::Cpu;
use engine::cuda::{Card, JobTiming};
use engine::{Engine, Output, Pair, PairOptions, Request, Speculation};
use std::path::{Path, PathBuf};

pub(crate) fn fixture(name: &str) -> PathBuf {
    let here = Path::new("fixtures/models");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    if here.is_dir() { here.join(name) } else { built.join(name) }
}

/// A pair on the first card.
pub(crate) fn on_card(target: &Path, draft: Option<&Path>) -> Pair {
    let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
    let card = Card::open(0, cache, JobTiming::Off)
        .unwrap_or_else(|error| panic!("this needs a card: {error}"));
    Pair::load_on(card, &Cpu::new(2), target, draft, &PairOptions::default())
        .expect("the pair loads")
}

/// A tiny pair on the first card.
pub(crate) fn pair(target: &str, draft: Option<&str>) -> Pair {
    on_card(&fixture(target), draft.map(fixture).as_deref())
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
