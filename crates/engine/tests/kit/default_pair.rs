//! The default pair's files, which are fetched as the program fetches them, and questions for it.

use engine::{Limits, Pair, Request, Sampling, Speculation, Stops};
use fetch::Progress;
use model::chat::{ChatOptions, Message};
use std::path::PathBuf;

pub(crate) const QUESTIONS: [&str; 6] = [
    "Give me three uses for a paper clip.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List ten animals that live in the sea.",
    "Tell me a short story about a lighthouse keeper.",
    "Give a JSON array of the numbers 1 to 30.",
    "Why is the sky blue?",
];

/// The files of the default target and drafter.
pub(crate) fn files() -> (PathBuf, PathBuf) {
    let get = |name| match fetch::resolve(name, Progress::for_stderr()) {
        Ok(path) => path,
        Err(error) => panic!("this test needs the default pair, which could not be had: {error}"),
    };
    (get(fetch::DEFAULT_TARGET), get(fetch::DEFAULT_DRAFTER))
}

/// The questions as requests of up to `max_tokens` tokens.
pub(crate) fn requests(
    pair: &Pair,
    temperature: f32,
    speculation: Speculation,
    max_tokens: usize,
) -> Vec<Request> {
    let template = pair.template.as_ref().expect("the default target has a template");
    let prompt = |question| {
        template
            .encode(&pair.tokenizer, &[Message::new("user", question)], &ChatOptions::default())
            .expect("the template takes a question")
    };
    let request = |(seed, question): (usize, &&'static str)| Request {
        sampling: Sampling { temperature, seed: seed as u64, ..Sampling::default() },
        stops: Stops { ids: pair.tokenizer.end_ids().to_vec(), strings: vec![] },
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        speculation,
        ..Request::new(prompt(*question))
    };
    QUESTIONS.iter().enumerate().map(request).collect()
}
