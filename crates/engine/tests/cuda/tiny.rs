//! Tiny pairs of every kind.

use crate::{accepted, bytes, fixed, pair, prompt, request, run, undrafted};
use engine::draft::{Drafter, Scripted};
use engine::{
    Constrained, Constraint, End, Engine, EngineOptions, Limits, Matcher, Request, Sampling,
    Shaping,
};
use std::sync::Arc;

/// Greedy and sampled, filtered and shaped requests, some of which begin alike.
fn requests() -> Vec<Request> {
    let sampled = |seed: u64, sampling: Sampling| Request {
        sampling: Sampling { seed, ..sampling },
        ..request(&prompt(seed % 4, 5 + 13 * seed as usize), 40)
    };
    let warm = |temperature| Sampling { temperature, ..Sampling::default() };
    vec![
        sampled(0, warm(0.0)),
        sampled(1, warm(0.7)),
        sampled(2, warm(1.0)),
        sampled(3, Sampling { top_k: 20, ..warm(1.0) }),
        sampled(4, Sampling { top_p: 0.8, ..warm(0.9) }),
        sampled(5, Sampling { min_p: 0.05, ..warm(1.2) }),
        Request {
            shaping: Shaping {
                presence_penalty: 0.5,
                frequency_penalty: 0.4,
                repetition_penalty: 1.2,
                logit_bias: vec![(7, 2.0), (9, -5.0)],
            },
            limits: Limits { max_tokens: Some(40), min_tokens: 12, ..Limits::default() },
            ..sampled(6, warm(0.8))
        },
        sampled(7, warm(0.0)),
    ]
}

fn options() -> EngineOptions {
    EngineOptions { max_running: 6, kv_tokens: Some(2048), ..fixed() }
}

#[test]
fn no_drafter_changes_a_byte() {
    for (target, draft) in [("qwen3", "dflash"), ("qwen3", "dflash-window")] {
        let requests = requests();
        let mut engine = Engine::new(pair(target, Some(draft)), options());
        let truth = bytes(&run(&mut engine, &undrafted(&requests)));
        assert!(truth.iter().all(|(ids, _)| ids.len() == 40));
        for (width, chunk, max_running) in
            [(2, 512, 1), (3, 7, 6), (3, 13, 6), (4, 64, 6), (8, 16, 2), (8, 512, 6), (8, 2, 6)]
        {
            let options = EngineOptions { width, chunk, max_running, ..options() };
            let mut engine = Engine::new(pair(target, Some(draft)), options);
            // Cold, and where prefixes are cached.
            for round in 0..2 {
                let outputs = run(&mut engine, &requests);
                let what = format!("{draft}, width {width}, chunk {chunk}, {max_running} at once");
                assert_eq!(bytes(&outputs), truth, "{what}, round {round}");
                // Steps of few tokens have hardly room for a draft beside the other requests.
                let room = chunk > max_running + 1;
                assert!(!room || accepted(&outputs) > 0, "{what}: no draft was accepted");
            }
            assert!(engine.tally().cached_tokens > 0, "the second round found the first one's");
        }
    }
}

/// Texts whose tokens have the rest of their place by three.
struct Turns;

/// How many tokens came.
struct Turn(u32);

impl Constraint for Turns {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Turn(0))
    }
}

impl Matcher for Turn {
    fn allow(&mut self, allowed: &mut [u32]) -> End {
        let own = (self.0 % 3..allowed.len() as u32 * 32).step_by(3);
        own.for_each(|token| allowed[token as usize / 32] |= 1 << (token % 32));
        End::MayNot
    }

    fn advance(&mut self, token: u32) -> bool {
        let allowed = token % 3 == self.0 % 3;
        self.0 += u32::from(allowed);
        allowed
    }

    fn rewind(&mut self, count: usize) {
        self.0 -= count as u32;
    }
}

/// Masks, penalties and filters of one request, whatever is drafted, and in blocks of a crowd.
#[test]
fn constrained_texts_do_not_depend_on_their_drafts() {
    let constrained =
        |request: Request| Request { constraint: Some(Constrained(Arc::new(Turns))), ..request };
    let requests: Vec<Request> =
        requests().into_iter().chain(requests()).map(constrained).collect();
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), options());
    let outputs = run(&mut engine, &undrafted(&requests));
    for output in &outputs {
        let mut turns = output.ids().into_iter().enumerate();
        assert!(turns.all(|(at, id)| id as usize % 3 == at % 3), "{:?}", output.ids());
    }
    let truth = bytes(&outputs);
    let right: Vec<Vec<u32>> = outputs.iter().map(engine::Output::ids).collect();
    let starts: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
    for max_running in [1, 16] {
        let options = EngineOptions { width: 8, max_running, kv_tokens: Some(4096), ..options() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options.clone());
        assert_eq!(bytes(&run(&mut engine, &requests)), truth, "{max_running} at once");
        let (right, starts) = (right.clone(), starts.clone());
        let next = move |id: u64, at: usize| {
            right[id as usize].get(at - starts[id as usize]).copied().unwrap_or(3)
        };
        let drafter = Box::new(Scripted::new(8, next));
        let mut engine = Engine::with_drafter(pair("qwen3", None), drafter, options);
        let outputs = run(&mut engine, &requests);
        assert_eq!(bytes(&outputs), truth, "{max_running} at once, right drafts");
        assert!(accepted(&outputs) > 0, "right drafts are accepted");
    }
}

/// Every family, with a drafter that is right and one that is not.
#[test]
fn no_family_depends_on_its_drafts() {
    for target in ["llama3", "llama3.gguf", "llama3-q4_0.gguf", "mistral", "qwen2", "qwen2.gguf"] {
        let (requests, mut engine) = (requests(), Engine::new(pair(target, None), options()));
        let outputs = run(&mut engine, &requests);
        let truth = bytes(&outputs);
        let ids: Vec<Vec<u32>> = outputs.iter().map(engine::Output::ids).collect();
        let starts: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let right = move |id: u64, at: usize| {
            ids[id as usize].get(at - starts[id as usize]).copied().unwrap_or(3)
        };
        let random = |id: u64, at: usize| ((id * 31 + at as u64) * 7919 % 250) as u32;
        let drafters: [Box<dyn Drafter>; 2] =
            [Box::new(Scripted::new(8, right)), Box::new(Scripted::new(8, random))];
        for drafter in drafters {
            let options = EngineOptions { chunk: 24, ..options() };
            let mut engine = Engine::with_drafter(pair(target, None), drafter, options);
            assert_eq!(bytes(&run(&mut engine, &requests)), truth, "{target}");
        }
    }
}

/// A pool that is too small for all: requests are retracted, and start again.
#[test]
fn retracted_requests_have_the_same_bytes() {
    let requests: Vec<Request> = (0..12)
        .map(|i| Request {
            sampling: Sampling {
                temperature: [0.0, 0.9][i % 2],
                seed: i as u64,
                ..Sampling::default()
            },
            ..request(&prompt(i as u64 % 5, 9 + 5 * (i % 3)), 60)
        })
        .collect();
    let mut plain = Engine::new(pair("qwen3", None), options());
    let truth = bytes(&run(&mut plain, &requests));
    for page_size in [4, 16] {
        let small = EngineOptions {
            page_size,
            kv_tokens: Some(208),
            max_running: 8,
            chunk: 24,
            width: 8,
            ..fixed()
        };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), small);
        for _ in 0..2 {
            assert_eq!(bytes(&run(&mut engine, &requests)), truth, "pages of {page_size}");
        }
        assert!(engine.tally().retractions > 0, "requests were retracted");
    }
}

/// More blocks than a product takes rows: 10 requests of 8 rows.
#[test]
fn a_crowd_has_the_same_bytes() {
    let requests: Vec<Request> = (0..24)
        .map(|i| Request {
            sampling: Sampling { temperature: 1.0, seed: i, ..Sampling::default() },
            ..request(&prompt(i, 3 + 11 * (i as usize % 9)), 30)
        })
        .collect();
    let mut plain = Engine::new(pair("qwen3", None), options());
    let truth = bytes(&run(&mut plain, &undrafted(&requests)));
    for width in [4, 8] {
        let crowd = EngineOptions { max_running: 20, kv_tokens: Some(4096), width, ..fixed() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), crowd);
        assert_eq!(bytes(&run(&mut engine, &requests)), truth, "width {width}");
    }
}
