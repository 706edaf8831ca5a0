//! Tiny models and short ways to run requests on them.

pub(crate) use crate::kit::{fixed, prompt, request};

use device::Cpu;
use engine::draft::Drafter;
use engine::{Engine, EngineOptions, Output, Pair, PairOptions, Request, Speculation};
use kernels::kv_store::KvFormat;
use std::path::{Path, PathBuf};

/// A committed tiny model.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// A tiny target, perhaps with a tiny drafter.
pub(crate) fn pair(target: &str, draft: Option<&str>) -> Pair {
    pair_as(target, draft, KvFormat::default())
}

/// The same, with keys and values in `kv`.
pub(crate) fn pair_as(target: &str, draft: Option<&str>, kv: KvFormat) -> Pair {
    let (draft, options) = (draft.map(fixture), PairOptions { kv, ..PairOptions::default() });
    Pair::load(&Cpu::new(2), &fixture(target), draft.as_deref(), &options)
        .expect("the committed models load")
}

/// Runs requests on a fresh engine without a drafter.
pub(crate) fn plain(target: &str, requests: &[Request]) -> Vec<Output> {
    let mut engine = Engine::new(pair(target, None), EngineOptions::default());
    let off = requests.iter().cloned().map(|r| Request { speculation: Speculation::Off, ..r });
    engine.run(off.collect()).expect("plain requests run")
}

/// Runs requests on a fresh engine with `drafter`.
pub(crate) fn drafted(
    target: &str,
    drafter: Box<dyn Drafter>,
    options: EngineOptions,
    requests: &[Request],
) -> Vec<Output> {
    let mut engine = Engine::with_drafter(pair(target, None), drafter, options);
    let outputs = engine.run(requests.to_vec()).expect("drafted requests run");
    while !engine.is_idle() {
        engine.turn().expect("the last step lands");
    }
    for (free, total) in engine.free_and_total() {
        assert_eq!(free, total, "an idle engine holds nothing");
    }
    outputs
}

/// The ids of every output.
pub(crate) fn ids(outputs: &[Output]) -> Vec<Vec<u32>> {
    outputs.iter().map(Output::ids).collect()
}
