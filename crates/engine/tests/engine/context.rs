//! What a drafter's context holds, slot by slot, and that it does not depend on how it came there.

use crate::common::{fixed, ids, pair, plain, prompt, request};
use engine::draft::{Draft, DraftRow, Drafter};
use engine::{Engine, EngineOptions, Features, Request, Sampling};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const PAGE: usize = 16;

/// Features of the positions `0 ..` that a drafter sees when it is asked for proposals.
type Context = Vec<Vec<f32>>;

/// Keeps what it is told by slot, proposes nothing, and writes down what each of its contexts holds
/// when it is first asked about a request.
#[derive(Default)]
struct Keeper {
    slots: HashMap<u32, (u32, Vec<f32>)>,
    seen: Arc<Mutex<Vec<(u64, Context)>>>,
}

impl Drafter for Keeper {
    fn block(&self) -> usize {
        4
    }

    fn taps(&self) -> &[usize] {
        &[0, 1, 2]
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], _: &mut [Draft]) {
        let mut seen = self.seen.lock().unwrap();
        for row in rows {
            if seen.iter().any(|(id, _)| *id == row.request) {
                continue;
            }
            let one = |t: usize| {
                let slot = row.pages[t / PAGE] as usize * PAGE + t % PAGE;
                let (position, features) = &self.slots[&(slot as u32)];
                assert_eq!(*position as usize, t, "each position lies in its own slot");
                features.clone()
            };
            let context = (0..row.len).map(one).collect();
            seen.push((row.request, context));
        }
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        let features = features.host();
        let width = features.len() / positions.len();
        let rows = positions.iter().zip(slots).zip(features.chunks_exact(width));
        self.slots.extend(rows.map(|((&p, &slot), features)| (slot, (p, features.to_vec()))));
    }
}

/// The contexts of requests that run one after another on a pool of 8 pages.
fn contexts(requests: &[Request]) -> (Vec<Context>, u64) {
    let keeper = Keeper::default();
    let seen = keeper.seen.clone();
    let options = EngineOptions { page_size: PAGE, kv_tokens: Some(8 * PAGE), ..fixed() };
    let mut engine = Engine::with_drafter(pair("qwen3", None), Box::new(keeper), options);
    for request in requests {
        engine.run(vec![request.clone()]).expect("runs");
    }
    let cached = engine.tally().cached_tokens;
    drop(engine);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (seen.into_iter().map(|(_, context)| context).collect(), cached)
}

/// After a prefix hit the rest of a prompt lies behind what was found, not on it and not a cached
/// length further, and is what a cold run puts there.
#[test]
fn a_hit_leaves_the_context_of_a_cold_run() {
    let beginning = prompt(1, 32);
    let with = |end| request(&[beginning.clone(), prompt(end, 10)].concat(), 4);
    let other = request(&prompt(9, 50), 4);
    let (cold, cached) = contexts(&[with(6)]);
    assert_eq!((cold[0].len(), cached), (42, 0));
    let (warm, cached) = contexts(&[with(5), other, with(6)]);
    assert_eq!((warm.len(), cached), (3, 32));
    assert!(warm[2] == cold[0], "the contexts differ");
}

/// A drafter with a window gets the whole prompt, however it is cut: every draft and every
/// acceptance is the same. (A step's budget is for blocks too, so these fit in the least of them.)
#[test]
fn chunks_do_not_change_what_a_drafter_with_a_window_proposes() {
    let requests: Vec<Request> = (0..4)
        .map(|i| Request {
            sampling: Sampling { temperature: 1.0, seed: i, ..Sampling::default() },
            ..request(&prompt(i, 300), 60)
        })
        .collect();
    let truth = ids(&plain("qwen3", &requests));
    let mut accepted = Vec::new();
    for chunk in [300, 128, 65, 7, 2] {
        let options = EngineOptions { chunk, width: 2, kv_tokens: Some(512), ..fixed() };
        let mut engine = Engine::new(pair("qwen3", Some("dflash-window")), options);
        let mut counts = Vec::new();
        for (request, truth) in requests.iter().zip(&truth) {
            let output = engine.run(vec![request.clone()]).expect("runs").remove(0);
            assert_eq!(output.ids(), *truth, "chunks of {chunk}");
            counts.push(output.stats.accepted);
        }
        accepted.push(counts);
    }
    let some = accepted[0].iter().any(|counts| counts.len() > 1);
    assert!(some, "no draft was accepted: {:?}", accepted[0]);
    assert!(accepted.iter().all(|counts| *counts == accepted[0]), "{accepted:?}");
}
