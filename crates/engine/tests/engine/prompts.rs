//! Log-probabilities of prompts: what the target would have reported had it written them, however they
//! are cut, whatever is cached, drafted and run beside them.

use crate::common::{fixed, pair, plain, prompt, request};
use engine::{
    Engine, EngineOptions, FinishReason, Limits, Output, PromptLogProbs, PromptToken, Request,
    Speculation,
};
use kernels::choose::LogProbs;

/// Likely tokens reported beside each.
const TOP: usize = 3;

/// `request` with the tokens of its prompt from `from` on.
fn reporting(from: usize, request: Request) -> Request {
    Request { prompt_logprobs: Some(PromptLogProbs { from, top: TOP }), ..request }
}

/// A text of the target's own behind `prompt(seed, len)`, with what it reported of each token.
fn written(seed: u64, len: usize, output: usize) -> (Request, Vec<LogProbs>) {
    let asked = Request { logprobs: Some(TOP), ..request(&prompt(seed, len), output) };
    let output = plain("qwen3", &[asked]).remove(0);
    let text = [prompt(seed, len), output.ids()].concat();
    let found = output.tokens.into_iter().map(|token| token.logprobs.expect("they were asked for"));
    (request(&text, 6), found.collect())
}

fn tokens(output: &Output) -> Vec<LogProbs> {
    let of = |token: &PromptToken| token.logprobs.clone().expect("a token precedes it");
    output.prompt.iter().map(of).collect()
}

/// The log-probability of a prompt's token is, bit for bit, the one that generation reports when it
/// chooses that token.
#[test]
fn a_prompt_is_as_likely_as_the_same_text_generated() {
    let (text, generated) = written(1, 20, 40);
    for chunk in [2, 7, 64, 512] {
        let options = EngineOptions { chunk, ..fixed() };
        let mut engine = Engine::new(pair("qwen3", None), options);
        // Cold, and where all of it is cached.
        for _ in 0..2 {
            let output = engine.run(vec![reporting(20, text.clone())]).expect("runs").remove(0);
            assert_eq!(tokens(&output), generated, "chunks of {chunk}");
            assert_eq!(output.tokens.len(), 6);
        }
    }
}

/// One result for every way to compute it, with the output that comes without.
#[test]
fn nothing_about_a_run_shows_in_what_it_reports() {
    let requests: Vec<Request> = (0..6)
        .map(|i| {
            let own = request(&prompt(i % 3, 1 + 17 * i as usize), 12);
            if i == 5 { own } else { reporting(0, own) }
        })
        .collect();
    let truth = plain("qwen3", &requests);
    for (i, output) in truth.iter().enumerate() {
        let ids: Vec<u32> = output.prompt.iter().map(|token| token.id).collect();
        let expected = if i == 5 { &[] } else { &requests[i].prompt[..] };
        assert_eq!(ids, expected);
        let unlikely = output.prompt.iter().position(|token| token.logprobs.is_none());
        assert_eq!(unlikely, (i != 5).then_some(0), "the first token alone has none");
    }
    for draft in [None, Some("dflash"), Some("dflash-window")] {
        for (chunk, page_size, max_running) in [(2, 1, 1), (7, 16, 6), (64, 4, 3)] {
            let kv_tokens = Some(1024);
            let options = EngineOptions { chunk, page_size, max_running, kv_tokens, ..fixed() };
            let mut engine = Engine::new(pair("qwen3", draft), options);
            for round in 0..2 {
                let outputs = engine.run(requests.clone()).expect("runs");
                for (output, expected) in outputs.iter().zip(&truth) {
                    assert_eq!(output.prompt, expected.prompt, "{draft:?}, chunks of {chunk}");
                    assert_eq!(output.ids(), expected.ids());
                    let reported = !output.prompt.is_empty();
                    assert!(!reported || output.stats.cached_tokens == 0, "round {round}");
                }
            }
        }
    }
}

/// What comes before the first token that is asked for may be cached, but for the row before it.
#[test]
fn only_rows_that_are_asked_for_are_computed_again() {
    let text = request(&prompt(4, 50), 3);
    let options = EngineOptions { page_size: 4, ..fixed() };
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
    let whole = engine.run(vec![reporting(0, text.clone())]).expect("runs").remove(0);
    for (from, cached) in [(0, 0), (1, 0), (4, 0), (5, 4), (21, 20), (24, 20), (49, 48)] {
        let output = engine.run(vec![reporting(from, text.clone())]).expect("runs").remove(0);
        assert_eq!(output.prompt, whole.prompt[from..], "from {from}");
        assert_eq!(output.stats.cached_tokens, cached, "from {from}");
    }
}

/// A prompt alone: nothing is chosen, and what was computed is there for the next.
#[test]
fn a_prompt_alone_ends_by_its_length() {
    for (len, cached) in [(1, 0), (33, 32)] {
        let alone = Request {
            limits: Limits { max_tokens: Some(0), ..Limits::default() },
            ..request(&prompt(5, len), 0)
        };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), fixed());
        let output = engine.run(vec![reporting(0, alone.clone())]).expect("runs").remove(0);
        assert_eq!((output.prompt.len(), output.tokens.len()), (len, 0));
        assert_eq!((output.reason, output.text.as_str()), (FinishReason::Length, ""));
        assert_eq!(output.stats.output_tokens, 0);
        let next = engine.run(vec![request(&prompt(5, len), 5)]).expect("runs").remove(0);
        assert_eq!(next.stats.cached_tokens, cached);
        let expected = plain("qwen3", &[request(&prompt(5, len), 5)]).remove(0);
        assert_eq!(next.ids(), expected.ids());
        assert_eq!(engine.run(vec![alone]).expect("runs").remove(0).prompt, []);
    }
}

/// Sent back to the queue while its prompt is read, it reports what is left when it comes again.
#[test]
fn a_retracted_prompt_is_reported_once() {
    let elder =
        Request { priority: 1, speculation: Speculation::Off, ..request(&prompt(6, 4), 60) };
    let younger = reporting(0, request(&prompt(7, 70), 5));
    let requests = vec![elder, younger];
    let truth = plain("qwen3", &requests);
    for page_size in [1, 4] {
        let (kv_tokens, max_running) = (Some(100), 2);
        let options = EngineOptions { chunk: 2, page_size, kv_tokens, max_running, ..fixed() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash")), options);
        let outputs = engine.run(requests.clone()).expect("runs");
        assert!(engine.tally().retractions > 0);
        for (output, expected) in outputs.iter().zip(&truth) {
            assert_eq!((&output.prompt, output.ids()), (&expected.prompt, expected.ids()));
        }
    }
}
