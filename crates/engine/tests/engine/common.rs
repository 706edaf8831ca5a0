//! Tiny models and short ways to run requests on them.

use device::Cpu;
use engine::draft::Drafter;
use engine::{
    Engine, EngineOptions, Limits, Output, Pair, PairOptions, Request, Sampling, Shaping,
    Speculation, Stops, WidthPolicy,
};
use std::path::{Path, PathBuf};

/// A committed tiny model.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

/// A tiny target, perhaps with a tiny drafter.
pub(crate) fn pair(target: &str, draft: Option<&str>) -> Pair {
    let draft = draft.map(fixture);
    Pair::load(&Cpu::new(2), &fixture(target), draft.as_deref(), &PairOptions::default())
        .expect("the committed models load")
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

/// Options whose widths are as asked for: what is drafted does not depend on a clock.
pub(crate) fn fixed() -> EngineOptions {
    EngineOptions { widths: WidthPolicy::Fixed, ..EngineOptions::default() }
}

/// A prompt of `len` ids that depends on `seed`.
pub(crate) fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|i| (((seed * 7919 + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 250) as u32)
        .collect()
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
