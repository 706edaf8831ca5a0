//! Constrained answers of the default pair, which is fetched as the program fetches it: every one is
//! what was asked for, by the word of another implementation, and drafting changes no byte of it.

mod forms;
mod schemas;

use device::Cpu;
use engine::{
    Constrained, Engine, EngineOptions, Limits, Output, Pair, PairOptions, Request, Sampling,
    Speculation, Stops, WidthPolicy,
};
use model::chat::{ChatOptions, Message};

/// The default pair.
pub(crate) fn pair() -> Pair {
    let get = |name| match fetch::resolve(name, fetch::Progress::for_stderr()) {
        Ok(path) => path,
        Err(error) => panic!("this test needs the default pair, which could not be had: {error}"),
    };
    let (target, draft) = (get(fetch::DEFAULT_TARGET), get(fetch::DEFAULT_DRAFTER));
    Pair::load(&Cpu::host(), &target, Some(&draft), &PairOptions::default())
        .expect("the pair loads")
}

/// An engine for many short requests, which drafts whether or not that pays.
pub(crate) fn engine(pair: Pair) -> Engine {
    let widths = WidthPolicy::Fixed;
    Engine::new(
        pair,
        EngineOptions { max_running: 32, width: 4, widths, ..EngineOptions::default() },
    )
}

/// A question whose answer must be of `constraint`. Its seed says which one it is.
pub(crate) fn request(
    pair: &Pair,
    question: &str,
    constraint: Option<Constrained>,
    seed: u64,
) -> Request {
    let template = pair.template.as_ref().expect("the default target has a template");
    let messages = [Message::new("user", question)];
    Request {
        sampling: Sampling { seed, ..Sampling::default() },
        stops: Stops { ids: pair.tokenizer.end_ids().to_vec(), strings: vec![] },
        limits: Limits { max_tokens: Some(40), ..Limits::default() },
        constraint,
        ..Request::new(
            template
                .encode(&pair.tokenizer, &messages, &ChatOptions::default())
                .expect("the template takes a question"),
        )
    }
}

/// Outputs with drafts, after they were found to be those without.
pub(crate) fn same_with_drafts(engine: &mut Engine, requests: Vec<Request>) -> Vec<Output> {
    let plain = |request: &Request| Request { speculation: Speculation::Off, ..request.clone() };
    let truth = engine.run(requests.iter().map(plain).collect()).expect("runs");
    let drafted = engine.run(requests).expect("runs");
    for (i, (plain, drafted)) in truth.iter().zip(&drafted).enumerate() {
        assert_eq!(drafted.ids(), plain.ids(), "request {i}: {:?}", plain.text);
        assert_eq!((&drafted.text, drafted.reason), (&plain.text, plain.reason), "request {i}");
    }
    drafted
}
