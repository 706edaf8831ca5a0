//! The default pair, which is fetched as the program fetches it.

use crate::{accepted, bytes, on_card, run, undrafted};
use engine::draft::Scripted;
use engine::{Engine, EngineOptions, Limits, Pair, Request, Sampling, Shaping, Speculation, Stops};
use fetch::Progress;
use model::chat::{ChatOptions, Message};

const QUESTIONS: [&str; 6] = [
    "Give me three uses for a paper clip.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List ten animals that live in the sea.",
    "Tell me a short story about a lighthouse keeper.",
    "Give the capital, population and currency of Japan as JSON.",
    "Why is the sky blue?",
];

fn pair() -> Pair {
    let get = |name| match fetch::resolve(name, Progress::for_stderr()) {
        Ok(path) => path,
        Err(error) => panic!("this test needs the default pair, which could not be had: {error}"),
    };
    on_card(&get(fetch::DEFAULT_TARGET), Some(&get(fetch::DEFAULT_DRAFTER)))
}

fn options() -> EngineOptions {
    EngineOptions { max_running: QUESTIONS.len(), kv_tokens: Some(2048), ..Default::default() }
}

fn requests(pair: &Pair, temperature: f32) -> Vec<Request> {
    let template = pair.template.as_ref().expect("the default target has a template");
    let request = |(seed, question): (usize, &&str)| Request {
        prompt: template
            .encode(&pair.tokenizer, &[Message::new("user", *question)], &ChatOptions::default())
            .expect("the template takes a question"),
        sampling: Sampling { temperature, seed: seed as u64, ..Sampling::default() },
        shaping: Shaping::default(),
        stops: Stops { ids: pair.tokenizer.end_ids().to_vec(), strings: vec![] },
        limits: Limits { max_tokens: Some(64), ..Limits::default() },
        speculation: Speculation::Auto,
        priority: 0,
        logprobs: None,
        prompt_logprobs: None,
        constraint: None,
    };
    QUESTIONS.iter().enumerate().map(request).collect()
}

#[test]
fn drafts_batches_and_chunks_change_no_byte() {
    for temperature in [0.0, 0.7, 1.0] {
        let loaded = pair();
        let requests = requests(&loaded, temperature);
        let mut engine = Engine::new(loaded, options());
        let truth = bytes(&run(&mut engine, &undrafted(&requests)));
        assert!(truth.iter().all(|(ids, text)| !ids.is_empty() && !text.is_empty()));
        for width in [2, 4, 8, 16] {
            let speculation = Speculation::Width(width);
            let wide: Vec<Request> =
                requests.iter().cloned().map(|r| Request { speculation, ..r }).collect();
            let outputs = run(&mut engine, &wide);
            assert_eq!(bytes(&outputs), truth, "T {temperature}, width {width}");
            assert!(accepted(&outputs) > 0, "no draft was ever accepted");
        }
        for (chunk, max_running, kv_tokens) in
            [(2, 6, 2048), (7, 1, 2048), (64, 3, 2048), (128, 6, 256)]
        {
            let kv_tokens = Some(kv_tokens);
            let options = EngineOptions { chunk, max_running, kv_tokens, ..options() };
            let mut engine = Engine::new(pair(), options);
            for round in 0..2 {
                let outputs = run(&mut engine, &requests);
                let what = format!("T {temperature}, chunks of {chunk}, {kv_tokens:?} tokens");
                assert_eq!(bytes(&outputs), truth, "{what}, round {round}");
            }
        }
        let random = |id: u64, at: usize| ((id * 31 + at as u64) * 7919 % 49152) as u32;
        let drafter = Box::new(Scripted::new(8, random));
        let mut engine = Engine::with_drafter(pair(), drafter, options());
        assert_eq!(bytes(&run(&mut engine, &requests)), truth, "T {temperature}, random drafts");
    }
}
