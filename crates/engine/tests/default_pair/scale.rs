//! Sixty-four requests with the real pair: whatever else runs, however the drafter fares, whatever
//! the cache holds and however often they are sent back for want of memory, each gives the bytes it
//! gives alone.

use crate::{cpu, files};
use engine::{
    Engine, EngineOptions, Limits, Output, Pair, PairOptions, Request, Sampling, Speculation,
    Stops, WidthPolicy,
};
use model::chat::{ChatOptions, Message};

const COUNT: usize = 64;

const TASKS: [&str; 4] = [
    "Answer in one short sentence, as you would to a friend who has never heard of it.",
    "Write code for it, without explanations, in the language that suits it best.",
    "You are a careful teacher. First name the topic, then explain it to a child of ten years with \
     an example from the kitchen, and end with a question that the child can answer.",
    "List.",
];

const TOPICS: [&str; 4] = [
    "The n-th Fibonacci number",
    "Why the sky is blue",
    "Three uses for a paper clip, and two things that it must never be used for",
    "Capital, population and currency of Japan",
];

fn pair() -> Pair {
    let (target, draft) = files();
    Pair::load(&cpu(), &target, Some(&draft), &PairOptions::default()).expect("the pair loads")
}

/// Room for all at once, and for all their prompts and answers in the cache.
fn roomy() -> EngineOptions {
    EngineOptions { max_running: COUNT, kv_tokens: Some(16_384), ..EngineOptions::default() }
}

fn sampling(i: usize) -> Sampling {
    let greedy = Sampling { seed: i as u64, ..Sampling::default() };
    match i % 8 {
        0 | 4 => greedy,
        1 => Sampling { temperature: 0.7, ..greedy },
        2 => Sampling { temperature: 1.0, ..greedy },
        3 => Sampling { temperature: 0.7, top_p: 0.9, ..greedy },
        5 => Sampling { temperature: 1.0, top_k: 20, ..greedy },
        6 => Sampling { temperature: 1.0, min_p: 0.05, ..greedy },
        _ => Sampling { temperature: 0.7, top_k: 50, top_p: 0.95, min_p: 0.02, ..greedy },
    }
}

/// Requests whose prompts begin alike in fours, and partly end alike; every prompt is asked with
/// four ways to draw.
fn requests(pair: &Pair, speculation: impl Fn(usize) -> Speculation) -> Vec<Request> {
    let template = pair.template.as_ref().expect("the default target has a template");
    let prompt = |i: usize| {
        let messages =
            [Message::new("system", TASKS[i / 16]), Message::new("user", TOPICS[i / 4 % 4])];
        let options = ChatOptions::default();
        template.encode(&pair.tokenizer, &messages, &options).expect("the template takes them")
    };
    let request = |i: usize| Request {
        sampling: sampling(i * 5 % 8),
        stops: Stops { ids: pair.tokenizer.end_ids().to_vec(), strings: vec![] },
        limits: Limits { max_tokens: Some(3 + i * 7 % 18), ..Limits::default() },
        speculation: speculation(i),
        ..Request::new(prompt(i))
    };
    (0..COUNT).map(request).collect()
}

fn bytes(output: &Output) -> (Vec<u32>, &str) {
    (output.ids(), &output.text)
}

fn same(what: &str, outputs: &[Output], truth: &[Output]) {
    for (i, (output, truth)) in outputs.iter().zip(truth).enumerate() {
        assert_eq!(bytes(output), bytes(truth), "{what}: request {i}");
        assert_eq!(output.reason, truth.reason, "{what}: request {i}");
    }
}

/// Drafting as it comes, at every width, paused, and off.
fn mixed(i: usize) -> Speculation {
    match i % 6 {
        0 | 3 => Speculation::Auto,
        1 => Speculation::Off,
        _ => Speculation::Width(1 + i * 3 % 16),
    }
}

/// Each plain and alone, without a cache or a drafter.
fn truth(requests: &[Request]) -> Vec<Output> {
    let (target, _) = files();
    let pair = Pair::load(&cpu(), &target, None, &PairOptions::default()).expect("the pair loads");
    let longest = requests.iter().map(|r| r.prompt.len() + 32).max();
    let mut engine = Engine::new(pair, EngineOptions { kv_tokens: longest, ..Default::default() });
    let mut outputs = Vec::new();
    for request in requests {
        let plain = Request { speculation: Speculation::Off, ..request.clone() };
        outputs.extend(engine.run(vec![plain]).expect("runs"));
    }
    outputs
}

/// `0 .. COUNT` in another order.
fn shuffled() -> Vec<usize> {
    let mut order: Vec<usize> = (0..COUNT).collect();
    order.sort_by_key(|&i| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    order
}

#[test]
fn sixty_four_requests_give_the_bytes_they_give_alone() {
    let loaded = pair();
    let auto = requests(&loaded, |_| Speculation::Auto);
    let truth = truth(&auto);
    assert!(truth.iter().all(|output| !output.tokens.is_empty()));

    let mut engine = Engine::new(loaded, roomy());
    same("all at once", &engine.run(auto.clone()).expect("runs"), &truth);
    let cold = engine.tally().cached_tokens;
    let plain = auto.iter().cloned().map(|r| Request { speculation: Speculation::Off, ..r });
    same("all at once, plain, warm", &engine.run(plain.collect()).expect("runs"), &truth);
    let mixed = requests(&pair(), mixed);
    let order = shuffled();
    let outputs = engine.run(order.iter().map(|&i| mixed[i].clone()).collect()).expect("runs");
    let drafted: usize = outputs.iter().map(|output| output.stats.drafted).sum();
    assert!(drafted > 0, "somebody drafts");
    let expected: Vec<Output> = order.iter().map(|&i| truth[i].clone()).collect();
    same("in another order, drafting mixed, warm", &outputs, &expected);
    assert!(engine.tally().cached_tokens > cold + 2000, "the cache is warm");
    drop(engine);

    // A pool that holds a few of them only, and chunks that cut prompts anywhere.
    for (chunk, page_size, kv_tokens) in [(96, 16, 432), (33, 1, 400), (512, 4, 400)] {
        let options = EngineOptions {
            chunk,
            page_size,
            kv_tokens: Some(kv_tokens),
            max_running: 12,
            // How soon memory runs out must not hang on how long steps take.
            width: 6,
            widths: WidthPolicy::Fixed,
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(pair(), options);
        let setting = format!("chunks of {chunk}, pages of {page_size}, {kv_tokens} KV tokens");
        same(&setting, &engine.run(mixed.clone()).expect("runs"), &truth);
        assert!(engine.tally().retractions > 0, "{setting}: memory never ran out");
    }
}

/// A prefix hit restores the drafter's context: on a warm cache every verify pass accepts what it
/// accepted on a cold one, so τ is the same.
#[test]
fn a_warm_cache_accepts_as_many_drafts_as_a_cold_one() {
    let loaded = pair();
    let wide = requests(&loaded, |_| Speculation::Width(6));
    let wide: Vec<Request> = wide.into_iter().step_by(3).collect();
    let mut engine = Engine::new(loaded, roomy());
    // Alone and in turn, then all at once: hits on pages of their own, and on one another's.
    let cold: Vec<Output> = {
        let one = |request: &Request| {
            let mut fresh = Engine::new(pair(), EngineOptions { kv_tokens: Some(256), ..roomy() });
            let output = fresh.run(vec![request.clone()]).expect("runs").remove(0);
            assert_eq!(fresh.tally().cached_tokens, 0);
            output
        };
        wide.iter().take(4).map(one).collect()
    };
    let first = engine.run(wide.clone()).expect("runs");
    // What ended last is cached when the step that still mentions it lands.
    while !engine.is_idle() {
        engine.turn().expect("turns");
    }
    let before = engine.tally().cached_tokens;
    let again = engine.run(wide.clone()).expect("runs");
    let hits = engine.tally().cached_tokens - before;
    let whole = |r: &Request| (r.prompt.len() - 1) / 16 * 16;
    assert_eq!(hits, wide.iter().map(whole).sum::<usize>() as u64, "every whole page is found");
    for outputs in [&first, &again] {
        for (i, (output, cold)) in outputs.iter().zip(&cold).enumerate() {
            assert_eq!(output.stats.accepted, cold.stats.accepted, "request {i}");
        }
    }
    let accepted = |outputs: &[Output]| -> Vec<Vec<usize>> {
        outputs.iter().map(|output| output.stats.accepted.clone()).collect()
    };
    assert_eq!(accepted(&first), accepted(&again));
    let count = |f: fn(&Output) -> usize| again.iter().map(f).sum::<usize>();
    assert!(count(|o| o.stats.committed) > count(|o| o.stats.steps), "drafts are accepted");
}
