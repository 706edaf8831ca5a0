//! Same seed, same bytes with the real pair. `slipstream bench lossless` does this at length.

use crate::kit::{QUESTIONS, requests};
use crate::{cpu, files};
use device::{Sim, SimOptions, SimOrder};
use engine::draft::Scripted;
use engine::{
    Engine, EngineOptions, Limits, Output, Pair, PairOptions, Request, Shaping, Speculation,
};
use std::time::Duration;

/// Output tokens of a question at most.
const TOKENS: usize = 48;

fn pair() -> Pair {
    let (target, draft) = files();
    Pair::load(&cpu(), &target, Some(&draft), &PairOptions::default()).expect("the pair loads")
}

fn options() -> EngineOptions {
    EngineOptions { max_running: QUESTIONS.len(), kv_tokens: Some(2048), ..Default::default() }
}

fn bytes(outputs: &[Output]) -> Vec<(Vec<u32>, String)> {
    outputs.iter().map(|output| (output.ids(), output.text.clone())).collect()
}

/// Runs `plain` with blocks of `width`: the bytes must be those of `truth`, and some drafts accepted.
fn wide_is_plain(
    engine: &mut Engine,
    plain: &[Request],
    truth: &[(Vec<u32>, String)],
    width: usize,
    what: &str,
) {
    let speculation = Speculation::Width(width);
    let wide = plain.iter().cloned().map(|r| Request { speculation, ..r }).collect();
    let outputs = engine.run(wide).expect("runs");
    assert_eq!(bytes(&outputs), truth, "{what}, width {width}");
    let accepted: usize = outputs.iter().map(|o| o.stats.committed - o.stats.steps).sum();
    assert!(accepted > 0, "no draft was ever accepted");
}

#[test]
fn drafts_batches_and_chunks_change_no_byte() {
    for temperature in [0.0, 0.7, 1.0] {
        let loaded = pair();
        let plain = requests(&loaded, temperature, Speculation::Off, TOKENS);
        let mut engine = Engine::new(loaded, options());
        let truth = bytes(&engine.run(plain.clone()).expect("runs"));
        assert!(truth.iter().all(|(ids, text)| !ids.is_empty() && !text.is_empty()));
        let what = format!("T {temperature}");
        for width in [2, 4, 8, 16] {
            wide_is_plain(&mut engine, &plain, &truth, width, &what);
        }
        for (chunk, max_running) in [(1, 6), (7, 1), (64, 3)] {
            let options = EngineOptions { chunk, max_running, ..options() };
            let auto = requests(&pair(), temperature, Speculation::Auto, TOKENS);
            let outputs = Engine::new(pair(), options).run(auto).expect("runs");
            assert_eq!(bytes(&outputs), truth, "T {temperature}, chunks of {chunk}");
        }
        let ids: Vec<Vec<u32>> = truth.iter().map(|(ids, _)| ids.clone()).collect();
        let starts: Vec<usize> = plain.iter().map(|r| r.prompt.len()).collect();
        let perfect = move |id: u64, at: usize| {
            ids[id as usize].get(at - starts[id as usize]).copied().unwrap_or(2)
        };
        let wrong = {
            let perfect = perfect.clone();
            move |id, at| perfect(id, at) ^ 1
        };
        let random = |id: u64, at: usize| ((id * 31 + at as u64) * 7919 % 49152) as u32;
        let drafters: [(&str, Box<dyn engine::draft::Drafter>); 3] = [
            ("perfect", Box::new(Scripted::new(8, perfect))),
            ("wrong", Box::new(Scripted::new(8, wrong))),
            ("random", Box::new(Scripted::new(8, random))),
        ];
        for (name, drafter) in drafters {
            let auto = requests(&pair(), temperature, Speculation::Auto, TOKENS);
            let outputs = Engine::with_drafter(pair(), drafter, options()).run(auto).expect("runs");
            assert_eq!(bytes(&outputs), truth, "T {temperature}, {name} drafter");
        }
    }
}

/// Penalties, biases and least lengths, where the drafter proposes with the same and where it knows
/// nothing of them.
#[test]
fn shaped_logits_are_the_same_with_and_without_drafts() {
    for temperature in [0.0, 0.8] {
        let loaded = pair();
        let (ends, unshaped) = (
            loaded.tokenizer.end_ids().to_vec(),
            requests(&loaded, temperature, Speculation::Off, TOKENS),
        );
        let shape = |(i, request): (usize, Request)| Request {
            shaping: Shaping {
                presence_penalty: [0.0, 0.9, -0.3][i % 3],
                frequency_penalty: [0.6, 0.0, 1.5, 0.1][i % 4],
                repetition_penalty: [1.0, 1.15][i % 2],
                // To the end, unless a least length forbids it.
                logit_bias: ends.iter().map(|&id| (id, 4.0)).collect(),
            },
            limits: Limits { min_tokens: i * 9, ..request.limits },
            ..request
        };
        let plain: Vec<Request> = unshaped.iter().cloned().enumerate().map(shape).collect();
        let mut engine = Engine::new(loaded, options());
        let truth = bytes(&engine.run(plain.clone()).expect("runs"));
        assert_ne!(truth, bytes(&engine.run(unshaped).expect("runs")), "the shapes show");
        for ((ids, _), request) in truth.iter().zip(&plain) {
            assert!(ids.len() >= request.limits.min_tokens);
        }
        let what = format!("T {temperature}");
        for width in [4, 16] {
            wide_is_plain(&mut engine, &plain, &truth, width, &what);
        }
        let random = |id: u64, at: usize| ((id * 31 + at as u64) * 7919 % 49152) as u32;
        let auto = plain.iter().cloned().map(|r| Request { speculation: Speculation::Auto, ..r });
        let options = EngineOptions { chunk: 7, max_running: 2, ..options() };
        let mut engine = Engine::with_drafter(pair(), Box::new(Scripted::new(8, random)), options);
        assert_eq!(bytes(&engine.run(auto.collect()).expect("runs")), truth, "a random drafter");
    }
}

/// What passes take on the simulated device, in the proportions of two CPU cores.
fn durations(what: &'static str, size: usize) -> Duration {
    let (fixed, each) = match what {
        "verify" => (2_500, 250),
        "draft" => (300, 900),
        _ => (0, 0),
    };
    Duration::from_micros(fixed + each * size as u64)
}

/// The default pair, of whose drafter it is only known that it drafts all of its block.
fn pair_of_one_block() -> Pair {
    let (target, draft) = files();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::copy(draft.join("model.safetensors"), at("model.safetensors")).expect("copies");
    let text = std::fs::read(draft.join("config.json")).expect("reads");
    let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    config["dflash_config"].as_object_mut().expect("an object").remove("block_sizes");
    std::fs::write(at("config.json"), config.to_string()).expect("writes");
    Pair::load(&cpu(), &target, Some(folder.path()), &PairOptions::default()).expect("it loads")
}

/// Blocks that end before the first draft that is not worth verifying, drafted no wider than what is
/// expected, or in passes of the head over eight places each, give the plain bytes; some are wide, and
/// unlikely drafts are left out. Time is virtual, so that what is drafted is the same in every run.
#[test]
fn blocks_as_wide_as_their_drafts_are_worth_change_no_byte() {
    as_wide_as_worth(pair(), 5);
    as_wide_as_worth(pair_of_one_block(), 8);
}

/// Demands that more than `wide` drafts were accepted of some greedy block.
fn as_wide_as_worth(loaded: Pair, wide: usize) {
    let sim = Sim::with(SimOptions { order: SimOrder::Timed, durations, ..SimOptions::default() });
    let mut engine = Engine::on(&sim, loaded, EngineOptions { max_running: 1, ..options() });
    for temperature in [0.0, 0.7] {
        let plain = requests(&pair(), temperature, Speculation::Off, 2 * TOKENS);
        let truth = bytes(&engine.run(plain).expect("runs"));
        let drafted = requests(&pair(), temperature, Speculation::Auto, 2 * TOKENS);
        let outputs = engine.run(drafted).expect("runs");
        assert_eq!(bytes(&outputs), truth, "T {temperature}");
        let sum = |of: fn(&Output) -> usize| outputs.iter().map(of).sum::<usize>();
        let (steps, committed) = (sum(|o| o.stats.steps), sum(|o| o.stats.committed));
        // How often sampled answers draft hangs on a few early passes; greedy ones do all the time.
        let least = if temperature > 0.0 { steps } else { 3 * steps / 2 };
        assert!(committed > least, "T {temperature}: {committed} in {steps} passes");
        let drafted = sum(|o| o.stats.drafted);
        assert!(drafted < 7 * steps, "T {temperature}: {drafted} drafts in {steps} passes");
        let most = outputs.iter().map(|o| o.stats.accepted.len() - 1).max();
        let least = if temperature > 0.0 { 2 } else { wide };
        assert!(most > Some(least), "T {temperature}: {most:?} at most");
    }
}
