//! Drafting switched while requests run: off, on, wider, narrower, at random moments.

use crate::common::{fixed, ids, pair, plain, request};
use crate::lossless::requests;
use engine::draft::{Drafter, Scripted};
use engine::{Collector, Engine, EngineOptions, Output, Request, RequestId, Speculation};
use std::collections::HashMap;

/// A small generator (SplitMix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn speculation(&mut self) -> Speculation {
        match self.roll(4) {
            0 => Speculation::Off,
            1 => Speculation::Auto,
            _ => Speculation::Width(1 + self.roll(8)),
        }
    }
}

/// Runs `requests` together; about every third turn one of them is switched.
fn toggled(engine: &mut Engine, requests: &[Request], dice: &mut Dice) -> Vec<Output> {
    let submit = |request: &Request| engine.submit(request.clone()).expect("in bounds");
    let order: Vec<RequestId> = requests.iter().map(submit).collect();
    let mut collectors: HashMap<RequestId, Collector> = HashMap::new();
    let mut outputs: HashMap<RequestId, Output> = HashMap::new();
    while !engine.is_idle() {
        if dice.roll(3) == 0 {
            let id = order[dice.roll(order.len())];
            engine.set_speculation(id, dice.speculation()).expect("the drafter can do it");
        }
        for update in engine.turn().expect("turns") {
            let id = update.id;
            outputs.extend(collectors.entry(id).or_default().add(update).map(|out| (id, out)));
        }
    }
    for (free, total) in engine.free_and_total() {
        assert_eq!(free, total, "an idle engine holds nothing");
    }
    order.iter().map(|id| outputs.remove(id).expect("each request ends")).collect()
}

fn options(dice: &mut Dice) -> EngineOptions {
    EngineOptions {
        page_size: [1, 4, 16][dice.roll(3)],
        chunk: [9, 20, 512][dice.roll(3)],
        max_running: 1 + dice.roll(4),
        // Room for the longest request, not for all.
        kv_tokens: Some(128 + dice.roll(3) * 100),
        width: 8,
        ..fixed()
    }
}

#[test]
fn switching_a_real_drafter_changes_no_token() {
    let requests = requests();
    let truth = ids(&plain("qwen3", &requests));
    let (mut drafted, mut recomputations) = (0, 0);
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let draft = ["dflash", "dflash-window"][dice.roll(2)];
        let mut engine = Engine::new(pair("qwen3", Some(draft)), options(&mut dice));
        let outputs = toggled(&mut engine, &requests, &mut dice);
        assert_eq!(ids(&outputs), truth, "seed {seed}");
        drafted += outputs.iter().map(|output| output.stats.drafted).sum::<usize>();
        recomputations += engine.tally().recomputations;
    }
    assert!(drafted > 0 && recomputations > 0, "{drafted} drafts, {recomputations} recomputations");
}

#[test]
fn switching_a_drafter_that_is_right_changes_no_token() {
    for target in ["llama3", "qwen2"] {
        let requests = requests();
        let truth = ids(&plain(target, &requests));
        for seed in 0..10 {
            let (known, prompts) = (truth.clone(), requests.clone());
            let right = move |id: u64, position: usize| {
                let made = position - prompts[id as usize].prompt.len();
                known[id as usize].get(made).copied().unwrap_or(0)
            };
            let drafter: Box<dyn Drafter> = Box::new(Scripted::new(8, right));
            let mut dice = Dice(seed);
            let options = options(&mut dice);
            let mut engine = Engine::with_drafter(pair(target, None), drafter, options);
            let outputs = toggled(&mut engine, &requests, &mut dice);
            assert_eq!(ids(&outputs), truth, "{target}, seed {seed}");
            let accepted = |output: &Output| output.stats.accepted_drafts();
            assert!(outputs.iter().map(accepted).sum::<usize>() > 0);
        }
    }
}

/// What the drafter cannot do is refused by name, and an id that is gone is nobody's.
#[test]
fn a_width_past_the_block_is_refused() {
    let mut engine = Engine::new(pair("qwen3", Some("dflash")), EngineOptions::default());
    let id = engine.submit(request(&[1, 2], 3)).expect("in bounds");
    for width in [0, 9] {
        let refused = engine.set_speculation(id, Speculation::Width(width)).unwrap_err();
        assert_eq!(refused.field, "width");
    }
    let gone = RequestId(id.0 + 1);
    assert_eq!(engine.set_speculation(gone, Speculation::Off), Ok(()));
}
