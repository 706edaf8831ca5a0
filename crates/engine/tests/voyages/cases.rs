//! Known failures of other engines on an overlapped loop, each on the whole engine.

use device::{Sim, SimOptions};
use engine::draft::{Draft, DraftRow, Drafter, NoDrafter};
use engine::{
    Choosing, Engine, EngineOptions, Features, FinishReason, Limits, Parts, Request, Speculation,
    Stops, Target, Vocabulary, WidthPolicy,
};
use kernels::choose::LogProbs;
use model::pass::Pass;
use std::collections::HashMap;
use std::sync::Arc;

/// Says the number after the last one.
#[derive(Default)]
struct Counting {
    read: Vec<u32>,
}

impl Target for Counting {
    fn forward(&mut self, pass: &Pass, _: &[usize]) {
        self.read.clone_from(&pass.tokens);
    }

    fn features(&self) -> Features<'_> {
        Features::none()
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        rows.rows.iter().zip(out).for_each(|(&row, out)| *out = self.read[row] + 1);
    }

    fn log_probs(&self, _: usize, token: u32, _: usize) -> LogProbs {
        LogProbs { chosen: -(token as f32), top: vec![] }
    }

    fn score(&mut self, _: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        tokens.iter().map(|&token| self.log_probs(0, token, top)).collect()
    }
}

/// Counts on as far as it is asked to.
struct Ahead;

impl Drafter for Ahead {
    fn block(&self) -> usize {
        8
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        for (row, out) in rows.iter().zip(out) {
            out.extend((1..row.width as u32).map(|ahead| row.anchor + ahead));
        }
    }

    fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
}

/// Numbers, the first ones with pieces of a text.
struct Numbers;

const PIECES: [&[u8]; 9] = [b"", b"", b"al", b"pha", b" be", b"ta ga", b"mma", b" de", b"lta"];

impl Vocabulary for Numbers {
    fn size(&self) -> usize {
        10_000
    }

    fn piece(&self, id: u32) -> &[u8] {
        PIECES.get(id as usize).copied().unwrap_or(b"")
    }
}

fn engine(sim: &Sim, drafter: Box<dyn Drafter>, max_running: usize) -> Engine<Sim> {
    let parts = Parts {
        target: Box::new(Counting::default()),
        drafter,
        vocabulary: Arc::new(Numbers),
        context: 256,
        pages: 256,
        mask_id: None,
    };
    let options = EngineOptions {
        page_size: 16,
        chunk: 64,
        max_running,
        width: 8,
        widths: WidthPolicy::Fixed,
        ..Default::default()
    };
    Engine::assemble(sim, parts, options)
}

/// Counts from `start` on, after `before` numbers before it.
fn count_from(start: u32, before: u32, max_tokens: usize) -> Request {
    Request {
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        ..Request::new((start - before..=start).collect())
    }
}

/// Takes turns until the engine is idle, and adds what came to `got`.
fn finish(engine: &mut Engine<Sim>, got: &mut HashMap<u64, Vec<u32>>) -> u32 {
    let mut ends = 0;
    for _ in 0..2_000 {
        for update in engine.turn().expect("the step runs") {
            got.entry(update.id.0).or_default().extend(update.tokens.iter().map(|token| token.id));
            ends += u32::from(update.finished.is_some());
        }
        if engine.is_idle() {
            assert!(engine.free_and_total().iter().all(|(free, total)| free == total));
            return ends;
        }
    }
    panic!("the engine does not come to rest");
}

/// What stands in for a token that the host does not know yet never becomes another request's:
/// each stream goes on from its own start, however many share the steps.
#[test]
fn every_stream_goes_on_from_its_own_start() {
    for seed in 0..100 {
        for running in [1, 8] {
            let sim = Sim::new(seed);
            let drafter: Box<dyn Drafter> =
                if seed % 2 == 0 { Box::new(NoDrafter) } else { Box::new(Ahead) };
            let (mut engine, mut got) = (engine(&sim, drafter, running), HashMap::new());
            for stream in 0..8 {
                // They come one by one, with prompts of all lengths.
                let request = count_from(1_000 * (stream + 1), stream * 11 % 60, 64);
                engine.submit(request).expect("the request is in bounds");
                for update in engine.turn().expect("the step runs") {
                    let tokens: &mut Vec<u32> = got.entry(update.id.0).or_default();
                    tokens.extend(update.tokens.iter().map(|token| token.id));
                }
            }
            finish(&mut engine, &mut got);
            for stream in 0..8u32 {
                let start = 1_000 * (stream + 1) + 1;
                let expected: Vec<u32> = (start..start + 64).collect();
                assert_eq!(got[&stream.into()], expected, "seed {seed}, {running} at once");
            }
            assert_eq!(sim.races(), []);
        }
    }
}

/// Whatever is left of an accepted block after the cap is in no count: tokens, log-probabilities
/// and usage agree for every cap.
#[test]
fn every_cap_counts_what_was_delivered() {
    for max_tokens in 1..=17 {
        let mut engine = engine(&Sim::new(max_tokens as u64), Box::new(Ahead), 1);
        let request = Request { logprobs: Some(0), ..count_from(100, 9, max_tokens) };
        let output = engine.run(vec![request]).expect("runs").remove(0);
        let expected: Vec<u32> = (101..).take(max_tokens).collect();
        assert_eq!((output.ids(), output.reason), (expected, FinishReason::Length));
        assert!(output.tokens.iter().all(|token| {
            token.logprobs.as_ref().is_some_and(|found| found.chosen == -(token.id as f32))
        }));
        let stats = output.stats;
        assert_eq!((stats.output_tokens, stats.prompt_tokens), (max_tokens, 10));
        assert_eq!(stats.committed, max_tokens - 1, "the first token is the prompt's");
    }
}

/// A stop string that ends inside an accepted block ends ids and log-probabilities with the token
/// that completes it, as it does without drafts.
#[test]
fn a_stop_string_inside_a_block_ends_ids_and_log_probabilities_too() {
    for speculation in [Speculation::Auto, Speculation::Off] {
        let mut engine = engine(&Sim::new(7), Box::new(Ahead), 1);
        let request = Request {
            prompt: vec![0],
            stops: Stops { ids: vec![], strings: vec!["ta g".into()] },
            speculation,
            logprobs: Some(0),
            ..count_from(1, 0, 40)
        };
        let output = engine.run(vec![request]).expect("runs").remove(0);
        assert_eq!((output.text.as_str(), output.reason), ("alpha be", FinishReason::Stop));
        assert_eq!(output.ids(), [1, 2, 3, 4, 5]);
        assert!(output.tokens.iter().all(|token| token.logprobs.is_some()));
        let in_one = output.tokens[1..].iter().all(|token| token.drafted);
        assert_eq!(in_one, speculation == Speculation::Auto, "all of them came in one block");
    }
}

/// An engine that has nothing to do does nothing, also when all its requests were cancelled at
/// once, and takes up one request alone and others beside it again.
#[test]
fn an_engine_that_lost_all_its_requests_at_once_goes_on() {
    for seed in 0..100 {
        let sim = Sim::with(SimOptions { seed, ..SimOptions::default() });
        let (mut engine, mut got) = (engine(&sim, Box::new(Ahead), 8), HashMap::new());
        for stream in 0..8 {
            engine.submit(count_from(1_000 * (stream + 1), 20, 64)).expect("it is in bounds");
        }
        let turns = seed % 6;
        let ids: Vec<_> = (0..8).map(engine::RequestId).collect();
        for _ in 0..turns {
            assert!(engine.turn().expect("the step runs").iter().all(|u| u.finished.is_none()));
        }
        ids.iter().for_each(|&id| engine.cancel(id));
        assert_eq!(finish(&mut engine, &mut got), 8, "each ends once");
        let idle = (0..50).flat_map(|_| engine.turn().expect("nothing fails")).count();
        assert_eq!((idle, engine.is_idle()), (0, true));
        engine.submit(count_from(300, 4, 30)).expect("it is in bounds");
        engine.turn().expect("the step runs");
        engine.submit(count_from(500, 0, 5)).expect("it is in bounds");
        assert_eq!(finish(&mut engine, &mut got), 2);
        assert_eq!(got[&8], (301..331).collect::<Vec<u32>>());
        assert_eq!(got[&9], [501, 502, 503, 504, 505]);
    }
}
