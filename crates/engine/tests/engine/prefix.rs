//! Prefix hits: the tokens stay, and so does what the drafter accepts.

use crate::common::{fixed, fixture, ids, pair, plain, prompt, request};
use engine::{Engine, EngineOptions, Output, Request};

fn engine(page_size: usize) -> Engine {
    let options = EngineOptions { page_size, kv_tokens: Some(1024), ..fixed() };
    Engine::new(pair("qwen3", Some("dflash")), options)
}

/// A prompt whose continuation the tiny drafter knows.
fn known_prompt() -> Vec<u32> {
    let text = std::fs::read(fixture("dflash").join("golden.json")).expect("the golden file");
    let golden: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    serde_json::from_value(golden["generations"][0]["prompt"].clone()).expect("ids")
}

fn one(engine: &mut Engine, request: &Request) -> Output {
    engine.run(vec![request.clone()]).expect("runs").remove(0)
}

/// A hit restores the drafter's context: warm runs accept draft for draft what the cold one did.
#[test]
fn a_warm_prompt_is_drafted_as_well_as_a_cold_one() {
    for page_size in [1, 4, 16] {
        let (known, other) = (request(&known_prompt(), 40), request(&prompt(2, 90), 20));
        let pages = known.prompt.len() / page_size;
        let mut engine = engine(page_size);
        let cold = one(&mut engine, &known);
        assert!(cold.stats.committed > cold.stats.steps, "some drafts are accepted");
        for _ in 0..2 {
            one(&mut engine, &other);
            let before = engine.tally().cached_tokens;
            let warm = one(&mut engine, &known);
            // One token of a prompt is always computed: its row chooses the first new one.
            let most = (known.prompt.len() - 1) / page_size * page_size;
            assert!(pages > 0 && engine.tally().cached_tokens == before + most as u64);
            assert_eq!((cold.stats.cached_tokens, warm.stats.cached_tokens), (0, most));
            assert_eq!(warm.ids(), cold.ids());
            assert_eq!(warm.stats.accepted, cold.stats.accepted, "pages of {page_size}");
        }
    }
}

/// A prompt that shares its beginning with an earlier one, after an unrelated request: the same
/// tokens and the same accepted drafts as on a fresh engine.
#[test]
fn a_shared_beginning_leaves_no_trace_of_its_first_owner() {
    let beginning = prompt(1, 32);
    let ending = |seed| [beginning.clone(), prompt(seed, 10)].concat();
    let (first, second) = (request(&ending(5), 30), request(&ending(6), 30));
    let cold = one(&mut engine(16), &second);
    let mut engine = engine(16);
    one(&mut engine, &first);
    one(&mut engine, &request(&prompt(9, 70), 30));
    let before = engine.tally().cached_tokens;
    let warm = one(&mut engine, &second);
    assert_eq!(engine.tally().cached_tokens, before + 32);
    assert_eq!((warm.ids(), &warm.stats.accepted), (cold.ids(), &cold.stats.accepted));
    assert_eq!(vec![warm.ids()], ids(&plain("qwen3", &[second])));
}

/// The next turn of a conversation finds the last one's answer as well as its prompt.
#[test]
fn a_second_turn_reuses_the_first_ones_answer() {
    let first = request(&prompt(3, 40), 40);
    let mut engine = engine(1);
    let answer = one(&mut engine, &first).ids();
    let turn = [first.prompt.clone(), answer.clone(), prompt(4, 5)].concat();
    let second = request(&turn, 20);
    let before = engine.tally().cached_tokens;
    let output = one(&mut engine, &second);
    let cached = engine.tally().cached_tokens - before;
    // The last token of the answer was chosen and never computed.
    assert_eq!(cached, (first.prompt.len() + answer.len() - 1) as u64);
    assert_eq!(vec![output.ids()], ids(&plain("qwen3", &[second])));
}
