//! Penalties, biases and least lengths on the whole engine: as defined, whatever is drafted.

use crate::common::{fixed, ids, pair, plain, prompt, request};
use device::{Cpu, Threads};
use engine::draft::Scripted;
use engine::{
    Choosing, Engine, EngineOptions, Features, FinishReason, Limits, Output, Parts, Request,
    Sampling, Shaping, Speculation, Stops, Target, Vocabulary,
};
use kernels::choose::{LogProbs, choose, log_probs};
use model::pass::Pass;
use std::sync::Arc;

/// Thinks the same after every token.
struct Fixed([f32; 4]);

impl Target for Fixed {
    fn forward(&mut self, _: &Pass, _: &[usize]) {}

    fn features(&self) -> Features<'_> {
        Features::none()
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        let Choosing { draws, shapes, .. } = *rows;
        let logits = self.0.repeat(draws.len());
        choose(&Cpu::new(1), &logits, 4, 4, draws, shapes, out);
    }

    fn log_probs(&self, _: usize, token: u32, top: usize) -> LogProbs {
        log_probs(&self.0, 4, token, top)
    }

    fn score(&mut self, _: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        tokens.iter().map(|&token| self.log_probs(0, token, top)).collect()
    }
}

/// Four tokens without text.
struct Four;

impl Vocabulary for Four {
    fn size(&self) -> usize {
        4
    }

    fn piece(&self, _: u32) -> &[u8] {
        b""
    }
}

/// What a target of `logits` makes of `request` when token 1 is drafted `drafts` times a pass.
fn run(logits: [f32; 4], drafts: usize, request: Request) -> Output {
    let parts = Parts {
        target: Box::new(Fixed(logits)),
        drafter: Box::new(Scripted::new(drafts + 1, |_, _| 1)),
        vocabulary: Arc::new(Four),
        context: 64,
        pages: 8,
        mask_id: None,
    };
    let options = EngineOptions { width: drafts + 1, chunk: 2, ..fixed() };
    let mut engine = Engine::assemble(&Threads::new(), parts, options);
    engine.run(vec![request]).expect("runs").remove(0)
}

/// A drafter that is right more often must not weaken a penalty: every row of a block counts the
/// drafts before it. The prompt counts for the repetition penalty alone.
#[test]
fn penalties_follow_every_token_of_a_block() {
    let logits = [-10.0, 5.0, 4.0, -10.0];
    let none = Shaping::default();
    // A prompt without the two, where it is to say nothing.
    for (shaping, prompt, expected) in [
        (Shaping { frequency_penalty: 0.6, ..none.clone() }, [0; 3], vec![1, 1, 2, 1, 2, 1, 2, 1]),
        (Shaping { presence_penalty: 1.5, ..none.clone() }, [1; 3], vec![1, 2, 1, 1]),
        (Shaping { repetition_penalty: 1.5, ..none }, [1; 3], vec![2, 1, 1, 1]),
    ] {
        for drafts in 0..=7 {
            let request = Request { shaping: shaping.clone(), ..request(&prompt, expected.len()) };
            let output = run(logits, drafts, request);
            assert_eq!(output.ids(), expected, "{shaping:?}, {drafts} drafts");
        }
    }
}

/// The stop id is the likeliest by far, and drafted all the time.
#[test]
fn a_stop_id_cannot_be_chosen_before_the_least_length() {
    for least in [0, 1, 5, 9] {
        for drafts in [0, 1, 3, 7] {
            let request = Request {
                stops: Stops { ids: vec![1], strings: vec![] },
                limits: Limits { max_tokens: Some(9), min_tokens: least, timeout: None },
                // No bias outweighs it.
                shaping: Shaping { logit_bias: vec![(1, 100.0)], ..Shaping::default() },
                ..request(&[0], 9)
            };
            let output = run([0.0, 20.0, 1.0, 0.0], drafts, request);
            assert_eq!(output.ids(), vec![2; least], "{drafts} drafts");
            let reason = if least == 9 { FinishReason::Length } else { FinishReason::Stop };
            assert_eq!(output.reason, reason, "{least} at least");
        }
    }
}

/// What is reported is what the target thinks, not what was made of it.
#[test]
fn log_probabilities_are_of_the_target() {
    let logits = [1.0, 3.0, 2.0, 0.0];
    let request = Request {
        shaping: Shaping {
            presence_penalty: 2.0,
            logit_bias: vec![(3, 100.0)],
            ..Shaping::default()
        },
        logprobs: Some(2),
        ..request(&[0], 6)
    };
    let output = run(logits, 3, request);
    assert_eq!(output.ids(), [3; 6]);
    let expected = log_probs(&logits, 4, 3, 2);
    assert!(output.tokens.iter().all(|token| token.logprobs.as_ref() == Some(&expected)));
}

/// Real drafters propose with the same shape, and change nothing.
#[test]
fn drafters_change_no_token_of_a_shaped_request() {
    let shaping = |i: usize| Shaping {
        presence_penalty: [0.0, 1.0, -0.5][i % 3],
        frequency_penalty: [0.8, 0.0, -0.2][i / 3 % 3],
        repetition_penalty: [1.0, 1.4][i % 2],
        logit_bias: (0..i as u32).map(|token| (token * 3, 2.0 - token as f32)).collect(),
    };
    let shaped = |i: usize| Request {
        sampling: Sampling {
            temperature: [0.0, 1.0][i / 3 % 2],
            seed: i as u64,
            ..Sampling::default()
        },
        shaping: shaping(i),
        ..request(&prompt(i as u64 % 4, 1 + 11 * (i % 4)), 40)
    };
    let requests: Vec<Request> = (0..8).map(shaped).collect();
    let truth = ids(&plain("qwen3", &requests));
    let plainly = |request: &Request| Request { shaping: Shaping::default(), ..request.clone() };
    let unshaped = plain("qwen3", &requests.iter().map(plainly).collect::<Vec<_>>());
    let changed = truth.iter().zip(ids(&unshaped)).filter(|(a, b)| **a != *b).count();
    assert!(changed >= 6, "the shapes of {changed} requests show");
    for draft in ["dflash", "dflash-window"] {
        for (width, chunk, max_running) in [(2, 512, 1), (4, 7, 6), (8, 1, 2), (8, 64, 8)] {
            let options =
                EngineOptions { width, chunk, max_running, kv_tokens: Some(1024), ..fixed() };
            let mut engine = Engine::new(pair("qwen3", Some(draft)), options);
            // Cold, and with what the cache then holds.
            for _ in 0..2 {
                let outputs = engine.run(requests.clone()).expect("drafted requests run");
                assert_eq!(ids(&outputs), truth, "{draft}, width {width}, chunk {chunk}");
            }
            let off = |r: &Request| Request { speculation: Speculation::Off, ..r.clone() };
            let outputs = engine.run(requests.iter().map(off).collect()).expect("runs");
            assert_eq!(ids(&outputs), truth, "{draft}, warm and plain");
        }
    }
}
