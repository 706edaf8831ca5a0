//! Same seed, same bytes: no drafter, width, batch, chunk or page size may change a token.

use crate::common::{drafted, fixed, fixture, ids, pair, pair_as, plain, prompt, request};
use device::{Cpu, Device, Nodes};
use engine::draft::{Drafter, Scripted};
use engine::{Engine, EngineOptions, Fence, Pair, PairOptions, Request, Sampling, Speculation};
use kernels::kv_store::KvFormat;

const TARGETS: [&str; 4] = ["llama3", "qwen2", "qwen3", "mistral"];

/// Greedy and sampled requests of several lengths.
pub(crate) fn requests() -> Vec<Request> {
    let temperatures = [0.0, 0.7, 1.0];
    (0..6)
        .map(|i| Request {
            sampling: Sampling {
                temperature: temperatures[i % 3],
                top_p: if i == 4 { 0.9 } else { 1.0 },
                top_k: if i == 5 { 40 } else { 0 },
                seed: 100 + i as u64,
                ..Sampling::default()
            },
            ..request(&prompt(i as u64, 1 + 13 * i), 40)
        })
        .collect()
}

/// Perfect (it knows the plain output), random, and always wrong.
fn drafters(
    block: usize,
    requests: &[Request],
    truth: &[Vec<u32>],
) -> Vec<(&'static str, Box<dyn Drafter>)> {
    let prompts: Vec<usize> = requests.iter().map(|r| r.prompt.len()).collect();
    let (truth, prompts2, truth2) = (truth.to_vec(), prompts.clone(), truth.to_vec());
    let right = move |id: u64, position: usize| {
        let id = id as usize;
        truth[id].get(position - prompts[id]).copied().unwrap_or(0)
    };
    let wrong = move |id: u64, position: usize| {
        let id = id as usize;
        (truth2[id].get(position - prompts2[id]).copied().unwrap_or(0) + 1) % 250
    };
    let mut state = 7u64;
    let random = move |_, _| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32 % 250
    };
    vec![
        ("perfect", Box::new(Scripted::new(block, right))),
        ("wrong", Box::new(Scripted::new(block, wrong))),
        ("random", Box::new(Scripted::new(block, random))),
    ]
}

#[test]
fn no_drafter_changes_a_token() {
    for target in TARGETS {
        let requests = requests();
        let truth = ids(&plain(target, &requests));
        for width in [2, 4, 8, 16] {
            for (name, drafter) in drafters(width, &requests, &truth) {
                let options = EngineOptions { width, ..fixed() };
                let outputs = drafted(target, drafter, options, &requests);
                assert_eq!(ids(&outputs), truth, "{target}, {name} drafter, width {width}");
                let (steps, committed) = outputs
                    .iter()
                    .fold((0, 0), |(s, c), o| (s + o.stats.steps, c + o.stats.committed));
                match name {
                    "perfect" => assert!(committed as f64 / steps as f64 > 0.8 * width as f64),
                    "wrong" => assert_eq!(committed, steps, "each pass commits the bonus alone"),
                    _ => assert!(committed >= steps),
                }
            }
        }
    }
}

#[test]
fn no_chunk_page_or_batch_size_changes_a_token() {
    for target in TARGETS {
        let requests = requests();
        let truth = ids(&plain(target, &requests));
        for (chunk, page_size, max_running) in
            [(1, 16, 1), (7, 1, 6), (64, 64, 3), (512, 16, 6), (7, 64, 2), (1, 1, 6)]
        {
            let drafter = drafters(8, &requests, &truth).swap_remove(2).1;
            let options =
                EngineOptions { chunk, page_size, max_running, kv_tokens: Some(2048), ..fixed() };
            let outputs = drafted(target, drafter, options, &requests);
            let setting = format!("{target}, chunk {chunk}, page {page_size}, {max_running} rows");
            assert_eq!(ids(&outputs), truth, "{setting}");
        }
    }
}

#[test]
fn a_real_drafter_changes_no_token() {
    for draft in ["dflash", "dflash-window"] {
        let requests = requests();
        let truth = ids(&plain("qwen3", &requests));
        for (width, chunk, max_running) in [(2, 512, 1), (4, 7, 6), (8, 1, 2), (8, 64, 6)] {
            let options =
                EngineOptions { width, chunk, max_running, kv_tokens: Some(2048), ..fixed() };
            let mut engine = Engine::new(pair("qwen3", Some(draft)), options);
            let outputs = engine.run(requests.clone()).expect("drafted requests run");
            assert_eq!(ids(&outputs), truth, "{draft}, width {width}, chunk {chunk}");
        }
    }
}

#[test]
fn no_way_to_store_keys_and_values_lets_a_draft_change_a_token() {
    let requests = requests();
    let mut told = Vec::new();
    for kv in KvFormat::ALL {
        let mut alone = Engine::new(pair_as("qwen3", None, kv), fixed());
        let truth = ids(&alone.run(requests.clone()).expect("plain requests run"));
        for (chunk, page_size, max_running) in [(512, 16, 1), (7, 1, 6), (64, 64, 3)] {
            let options =
                EngineOptions { chunk, page_size, max_running, kv_tokens: Some(2048), ..fixed() };
            let mut engine = Engine::new(pair_as("qwen3", Some("dflash"), kv), options);
            // The second time most of each prompt is in the cache.
            for _ in 0..2 {
                let outputs = engine.run(requests.clone()).expect("drafted requests run");
                assert_eq!(ids(&outputs), truth, "{kv:?}, chunk {chunk}, page {page_size}");
            }
        }
        told.push(truth);
    }
    assert!(told[0] != told[2], "a quarter of the bytes shows somewhere in so many tokens");
}

#[test]
fn a_request_is_the_same_alone_and_among_others() {
    let options =
        || EngineOptions { max_running: 4, kv_tokens: Some(2048), ..EngineOptions::default() };
    let sampled = |seed| Request {
        sampling: Sampling { temperature: 1.0, seed, ..Sampling::default() },
        ..request(&prompt(seed, 9), 32)
    };
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), options());
    let alone = engine.run(vec![sampled(7)]).expect("runs").remove(0).ids();
    let neighbours = vec![sampled(1), sampled(7), sampled(2), sampled(3)];
    let among = engine.run(neighbours).expect("runs").remove(1).ids();
    assert_eq!(alone, among, "neighbours changed a token");
    for seed in 20..40 {
        engine.run(vec![sampled(seed)]).expect("runs");
    }
    let later = engine.run(vec![sampled(7)]).expect("runs").remove(0).ids();
    assert_eq!(alone, later, "earlier requests changed a token");
    let narrow = Request { speculation: Speculation::Width(2), ..sampled(7) };
    assert_eq!(alone, engine.run(vec![narrow]).expect("runs").remove(0).ids());
    let other = engine.run(vec![sampled(8)]).expect("runs").remove(0).ids();
    assert_ne!(alone, other, "the seed matters");
}

/// More requests than may be open at once are run all the same, each to its own place.
#[test]
fn a_batch_may_be_larger_than_the_queue() {
    let requests = [requests(), requests()].concat();
    let truth = ids(&plain("qwen3", &requests));
    for (max_running, max_waiting) in [(1, 0), (2, 1), (3, 4)] {
        let options = EngineOptions {
            max_running,
            max_waiting,
            kv_tokens: Some(2048),
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
        assert_eq!(engine.room(), max_running + max_waiting);
        let outputs = engine.run(requests.clone()).expect("runs");
        assert_eq!(ids(&outputs), truth, "{max_running} running, {max_waiting} waiting");
    }
}

/// A long request, a shorter one, and both again on the same pages: nothing is left over.
#[test]
fn nothing_of_an_earlier_request_shows_in_a_later_one() {
    let options = EngineOptions { kv_tokens: Some(256), ..EngineOptions::default() };
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
    for length in (1..=100).step_by(5) {
        let (long, short) = (request(&prompt(1, 120), 30), request(&prompt(2, length), 30));
        let runs: Vec<Vec<u32>> = [&long, &short, &long, &short]
            .into_iter()
            .map(|r| engine.run(vec![r.clone()]).expect("runs").remove(0).ids())
            .collect();
        assert_eq!((&runs[0], &runs[1]), (&runs[2], &runs[3]), "prompt of {length}");
    }
}

/// However a step waits for the one before it, the tokens are the same; only the ablation makes the
/// host wait anywhere but in landing.
#[test]
fn fences_change_no_token_and_the_host_waits_in_landing_only() {
    let requests = requests();
    let truth = ids(&plain("qwen3", &requests));
    for fence in Fence::ALL {
        let options =
            EngineOptions { fence, max_running: 3, kv_tokens: Some(2048), ..Default::default() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
        let outputs = engine.run(requests.clone()).expect("drafted requests run");
        assert_eq!(ids(&outputs), truth, "{fence}");
        let usage = engine.device().usage();
        assert_eq!(usage.results.calls, engine.counters().steps, "one landing a step");
        assert_eq!(usage.fence.calls > 0, fence == Fence::SelfFence, "{fence}");
    }
}

#[test]
fn memory_nodes_change_no_token() {
    let requests = requests();
    let truth = ids(&plain("qwen3", &requests));
    let nodes = |cpus: &[usize]| Nodes::of(cpus.iter().map(|&cpu| vec![cpu]));
    // Nodes that this machine has, and one that it has not.
    for (nodes, threads) in [(nodes(&[0, 1]), 2), (nodes(&[0, 1, 5000]), 3), (nodes(&[0, 1]), 5)] {
        let cpu = Cpu::on(&nodes, threads);
        assert_eq!(cpu.nodes(), nodes.count());
        for draft in [None, Some(fixture("dflash"))] {
            let pair =
                Pair::load(&cpu, &fixture("qwen3"), draft.as_deref(), &PairOptions::default())
                    .expect("the committed models load");
            let options = EngineOptions { chunk: 64, max_running: 3, ..fixed() };
            let outputs = Engine::new(pair, options).run(requests.clone()).expect("they run");
            assert_eq!(ids(&outputs), truth, "{nodes:?}, drafted: {}", draft.is_some());
        }
    }
}
