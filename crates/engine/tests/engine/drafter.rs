//! What a drafter is told, and when it is left alone.

use crate::common::{drafted, fixed, fixture, ids, pair, plain, prompt, request};
use device::Cpu;
use engine::draft::{Draft, DraftRow, Drafter};
use engine::{
    Engine, EngineOptions, Features, FinishReason, Limits, Pair, PairOptions, Request, Speculation,
    Stops,
};
use std::sync::{Arc, Mutex};

/// Everything a drafter was told.
#[derive(Default)]
struct Log {
    /// `(position, slot, features)` of every absorbed token, call after call.
    absorbed: Vec<Vec<(u32, u32, Vec<f32>)>>,
    /// `(len, width)` of every row that wanted proposals.
    asked: Vec<(usize, usize)>,
}

/// A drafter that writes down what it is told and is right for a scripted number of drafts.
struct Recorder {
    log: Arc<Mutex<Log>>,
    truth: Vec<u32>,
    prompt: usize,
    right: Vec<usize>,
    taps: Vec<usize>,
}

impl Drafter for Recorder {
    fn block(&self) -> usize {
        8
    }

    fn taps(&self) -> &[usize] {
        &self.taps
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        for (row, out) in rows.iter().zip(out) {
            let right = if self.right.is_empty() { 0 } else { self.right.remove(0) };
            for j in 1..row.width {
                let token = self.truth.get(row.len + j - self.prompt).copied().unwrap_or(0);
                out.push(if j <= right { token } else { (token + 1) % 250 }, 1.0);
            }
            self.log.lock().unwrap().asked.push((row.len, row.width));
        }
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        let features = features.host();
        let width = features.len() / positions.len();
        let rows = positions.iter().zip(slots).zip(features.chunks_exact(width));
        let call = rows.map(|((&p, &s), f)| (p, s, f.to_vec())).collect();
        self.log.lock().unwrap().absorbed.push(call);
    }
}

fn recorded(prompt_len: usize, tokens: usize, right: &[usize], options: EngineOptions) -> Log {
    let request = request(&prompt(3, prompt_len), tokens);
    let truth = ids(&plain("qwen3", std::slice::from_ref(&request))).remove(0);
    let log = Arc::new(Mutex::new(Log::default()));
    let recorder = Recorder {
        log: log.clone(),
        truth: truth.clone(),
        prompt: prompt_len,
        right: right.to_vec(),
        taps: vec![0, 1, 2],
    };
    let outputs = drafted("qwen3", Box::new(recorder), options, &[request]);
    assert_eq!(ids(&outputs), [truth]);
    Arc::try_unwrap(log).ok().expect("the engine is gone").into_inner().unwrap()
}

/// After a rejection the drafter's context holds exactly the committed tokens.
#[test]
fn the_drafters_context_is_the_committed_tokens() {
    let options = EngineOptions { width: 8, ..fixed() };
    let log = recorded(10, 40, &[0, 3, 7, 1], options);
    let mut length = 0;
    let lengths: Vec<usize> = log
        .absorbed
        .iter()
        .map(|call| {
            for (position, ..) in call {
                assert_eq!(*position as usize, length, "each position once, in order");
                length += 1;
            }
            length
        })
        .collect();
    assert_eq!(lengths[..5], [10, 11, 15, 23, 25]);
}

/// However the prompt is cut, the drafter gets the same features at the same positions.
#[test]
fn chunks_do_not_change_what_the_drafter_absorbs() {
    let flat = |chunk| {
        let options = EngineOptions { chunk, ..fixed() };
        recorded(100, 20, &[2, 0, 5], options).absorbed.concat()
    };
    let whole = flat(512);
    assert_eq!(whole.len(), 119, "every token but the last has context");
    for chunk in [1, 7, 64, 65] {
        assert_eq!(flat(chunk), whole, "chunk {chunk}");
    }
}

/// Near the length cap the last blocks are narrower; the device never works past the cap.
#[test]
fn the_last_block_of_a_request_is_narrower() {
    let log = recorded(10, 12, &[7, 7], fixed());
    for (len, width) in log.asked {
        assert!(len + width < 10 + 12, "a block at {len} of width {width} passes the cap");
    }
}

#[test]
fn the_context_ends_a_sequence_and_leaves_its_neighbours_alone() {
    for page_size in [1, 16] {
        let options = EngineOptions {
            page_size,
            max_running: 3,
            kv_tokens: Some(3 * 512),
            width: 8,
            ..fixed()
        };
        let requests: Vec<Request> = (0..3)
            .map(|i| Request {
                limits: Limits {
                    max_tokens: if i == 0 { None } else { Some(60) },
                    ..Limits::default()
                },
                ..request(&prompt(i as u64, [450, 20, 30][i]), 1)
            })
            .collect();
        let truth = plain("qwen3", &requests);
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
        for _ in 0..3 {
            let outputs = engine.run(requests.clone()).expect("runs");
            assert_eq!(ids(&outputs), ids(&truth));
            assert!(outputs.iter().all(|output| output.reason == FinishReason::Length));
            assert_eq!(outputs[0].tokens.len(), 512 - 450, "the context ends the long one");
        }
    }
}

/// A stop inside an accepted block ends the output where plain decoding ends it.
#[test]
fn a_stop_inside_a_block_ends_the_output_there() {
    let base = request(&prompt(5, 12), 40);
    let free = ids(&plain("qwen3", std::slice::from_ref(&base))).remove(0);
    let first = |i: &usize| !free[..*i].contains(&free[*i]);
    for at in (1..40).filter(first).take(12) {
        let stops = Stops { ids: vec![free[at]], strings: vec![] };
        let request = Request { stops, ..base.clone() };
        let recorder = Recorder {
            log: Arc::default(),
            truth: free.clone(),
            prompt: 12,
            right: vec![7; 40],
            taps: vec![1],
        };
        let output = drafted("qwen3", Box::new(recorder), fixed(), &[request]).remove(0);
        assert_eq!(output.ids(), free[..at], "stop at output token {at}");
        assert_eq!(output.reason, FinishReason::Stop);
        assert_eq!(output.stats.output_tokens, at);
    }
}

/// Requests with and without drafting share steps; the one that opted out is never drafted for.
#[test]
fn drafting_is_a_matter_of_each_request() {
    let options = EngineOptions { max_running: 2, kv_tokens: Some(1024), ..fixed() };
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
    let on = request(&prompt(1, 20), 40);
    let off = Request { speculation: Speculation::Off, ..request(&prompt(2, 20), 40) };
    let outputs = engine.run(vec![on, off]).expect("runs");
    assert!(outputs[0].stats.drafted > 0);
    assert_eq!((outputs[1].stats.drafted, outputs[1].stats.steps), (0, 39));
}

/// A drafter made for fewer positions than the target: only the request that outgrows it stops
/// drafting.
#[test]
fn a_request_past_the_drafters_positions_goes_on_without_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("dflash").join(file), folder.path().join(file)).expect("copies");
    }
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("reads");
    let short =
        text.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 128");
    assert_ne!(text, short, "the configuration has the field");
    std::fs::write(&config, short).expect("writes");
    let load = |draft: &std::path::Path| {
        Pair::load(&Cpu::new(2), &fixture("qwen3"), Some(draft), &PairOptions::default())
            .expect("the pair loads")
    };
    let requests = vec![request(&prompt(1, 100), 100), request(&prompt(2, 20), 60)];
    let truth = ids(&plain("qwen3", &requests));
    let options = || EngineOptions { max_running: 2, kv_tokens: Some(512), ..fixed() };
    let unbounded =
        Engine::new(load(&fixture("dflash")), options()).run(requests.clone()).expect("runs");
    let bounded = Engine::new(load(folder.path()), options()).run(requests).expect("runs");
    assert_eq!(ids(&bounded), truth);
    let (long, neighbour) = (&bounded[0].stats, &bounded[1].stats);
    assert!(long.drafted > 0 && long.drafted < unbounded[0].stats.drafted);
    assert_eq!(
        (neighbour.drafted, &neighbour.accepted),
        (unbounded[1].stats.drafted, &unbounded[1].stats.accepted),
        "the neighbour drafts as ever"
    );
}
