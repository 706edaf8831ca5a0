//! Acceptance that is given and not earned: outputs stay, τ follows, the drafter's time is spent.

use crate::common::{fixed, ids, pair, plain, prompt, request};
use device::Threads;
use engine::draft::{Chances, Simulated, Spread};
use engine::{Engine, EngineOptions, Output, Parts, Request, Sampling};

fn requests() -> Vec<Request> {
    let request = |i: u64| Request {
        sampling: Sampling { temperature: i as f32 / 4.0, seed: i, ..Sampling::default() },
        ..request(&prompt(i, 5 + i as usize), 60)
    };
    (0..4).map(request).collect()
}

/// Runs the requests with simulated chances over the tiny drafter, or over none.
fn simulated(draft: Option<&str>, chances: Chances) -> Vec<Output> {
    let (requests, options) = (requests(), EngineOptions { width: 8, ..fixed() });
    let (truth, prompts) = (ids(&plain("qwen3", &requests)), requests.clone());
    let mut parts = Parts::of(pair("qwen3", draft), &options);
    let block = parts.drafter.block().max(8);
    let fate = move |id: u64, position: usize, place: usize| {
        let id = id as usize;
        let token = *truth[id].get(position - prompts[id].prompt.len())?;
        Some((token, chances.at(place)))
    };
    parts.drafter = Box::new(Simulated::new(parts.drafter, block, Spread::NONE, fate));
    let mut engine = Engine::assemble(&Threads::new(), parts, options);
    engine.run(requests).expect("the requests run")
}

fn tau(outputs: &[Output]) -> f64 {
    let sum = |of: fn(&Output) -> usize| outputs.iter().map(of).sum::<usize>() as f64;
    sum(|o| o.stats.committed) / sum(|o| o.stats.steps)
}

#[test]
fn outputs_are_the_plain_ones_and_tau_follows_the_chances() {
    let plain = ids(&plain("qwen3", &requests()));
    for draft in [None, Some("dflash")] {
        let taus = [1.0, 3.0, 8.0].map(|tau_asked| {
            let outputs = simulated(draft, Chances::of_tau(tau_asked, 8));
            assert_eq!(ids(&outputs), plain);
            tau(&outputs)
        });
        assert_eq!(taus[0], 1.0);
        assert!(taus[1] > 2.0 && taus[1] < 4.0, "{taus:?}");
        // 59 tokens after the first, 8 at a time: the last block is cut.
        assert_eq!(taus[2], 59.0 / 8.0);
    }
}

/// What is drawn depends on the request alone: one drafter, another, a second run.
#[test]
fn the_draws_are_the_same_in_every_run() {
    let passes = |draft| {
        let outputs = simulated(draft, Chances::by_place(vec![0.9, 0.5]));
        outputs.into_iter().map(|output| output.stats.accepted).collect::<Vec<_>>()
    };
    let first = passes(None);
    assert_eq!(passes(None), first);
    assert_eq!(passes(Some("dflash")), first);
}
