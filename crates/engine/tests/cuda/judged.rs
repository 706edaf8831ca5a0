//! How sure the drafter of a card is of its drafts, and what becomes of it.

use crate::{bytes, fixed, pair, prompt, request, run, undrafted};
use device::Threads;
use engine::draft::{Draft, DraftRow, Drafter, Features, Promise};
use engine::{
    CostCurve, Engine, EngineOptions, Limits, Parts, Request, Sampling, Shaping, StepCost, Stops,
    WidthPolicy,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// What was proposed to a request of so many tokens.
type Log = HashMap<(u64, usize), Proposed>;

struct Proposed {
    draft: Draft,
    /// How many of the drafts were worth verifying.
    worth: usize,
    /// Whether they were verified before anybody knew them.
    promised: bool,
}

/// Writes down what a drafter proposes.
struct Witness {
    inner: Box<dyn Drafter>,
    log: Arc<Mutex<Log>>,
}

impl Drafter for Witness {
    fn block(&self) -> usize {
        self.inner.block()
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.inner.propose(rows, out);
        let mut log = self.log.lock().expect("no test failed");
        for (row, draft) in rows.iter().zip(out) {
            let worth = row.judge.worth(&draft.confidences);
            let proposed = Proposed { draft: draft.clone(), worth, promised: false };
            log.insert((row.request, row.len), proposed);
        }
    }

    fn start(&mut self, rows: &[DraftRow<'_>]) {
        self.inner.start(rows);
    }

    /// For places that are known: see [`Drafter::follows`].
    fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
        let places: Vec<_> = rows.iter().map(|row| (row.request, row.len)).collect();
        let (inner, log) = (self.inner.promise(rows)?, self.log.clone());
        let stand_ins = inner.stand_ins.clone();
        Some(Promise::new(stand_ins, move || {
            let drafts = inner.redeem();
            let mut log = log.lock().expect("no test failed");
            for (&place, draft) in places.iter().zip(&drafts) {
                let worth = draft.tokens.len();
                log.insert(place, Proposed { draft: draft.clone(), worth, promised: true });
            }
            drafts
        }))
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        self.inner.absorb(features, positions, slots);
    }

    fn settle(&mut self) {
        self.inner.settle();
    }
}

/// The requests' bytes, and what was proposed to them.
fn witnessed(options: EngineOptions, requests: &[Request]) -> (Vec<(Vec<u32>, String)>, Log) {
    let mut parts = Parts::of(pair("qwen3", Some("dflash")), &options);
    let log = Arc::default();
    parts.drafter = Box::new(Witness { inner: parts.drafter, log: Arc::clone(&log) });
    let mut engine = Engine::assemble(&Threads::new(), parts, options);
    let outputs = bytes(&run(&mut engine, requests));
    drop(engine);
    let log = std::mem::take(&mut *log.lock().expect("no test failed"));
    (outputs, log)
}

/// Greedy and drawn, one with filters.
fn requests() -> Vec<Request> {
    let one = |seed: u64, sampling: Sampling| Request {
        sampling: Sampling { seed, ..sampling },
        ..request(&prompt(seed, 5 + 9 * seed as usize), 40)
    };
    let warm = |temperature| Sampling { temperature, ..Sampling::default() };
    vec![
        one(0, warm(0.0)),
        one(1, warm(0.7)),
        one(2, Sampling { top_p: 0.9, ..warm(1.0) }),
        one(3, warm(0.0)),
    ]
}

fn options() -> EngineOptions {
    EngineOptions { max_running: 4, kv_tokens: Some(2048), width: 8, ..fixed() }
}

/// Drafts and confidences that both runs have, which are as many.
fn in_both<'l>(a: &'l Log, b: &'l Log) -> impl Iterator<Item = ((u32, f32), (u32, f32))> {
    let drafts =
        |draft: &'l Draft| draft.tokens.iter().copied().zip(draft.confidences.iter().copied());
    let both = a.iter().filter_map(|(place, own)| Some((&own.draft, &b.get(place)?.draft)));
    both.flat_map(move |(a, b)| drafts(a).zip(drafts(b)))
}

/// A drafter is as sure of a draft alone as in company, bit for bit, whether somebody waited for it or not.
#[test]
fn company_changes_no_confidence() {
    let requests = requests();
    let alone = EngineOptions { max_running: 1, chunk: 7, ..options() };
    let ((truth, alone), (outputs, together)) =
        (witnessed(alone, &requests), witnessed(options(), &requests));
    assert_eq!(outputs, truth);
    let promised = |log: &Log| log.values().filter(|proposed| proposed.promised).count();
    assert!(promised(&alone) > 20, "{} of {} were promised", promised(&alone), alone.len());
    assert!(together.len() - promised(&together) > 10, "of many rows none is promised");
    let pairs: Vec<_> = in_both(&alone, &together).collect();
    assert!(pairs.len() > 100, "{} drafts in both runs", pairs.len());
    for ((token, sure), (other, as_sure)) in &pairs {
        assert_eq!((token, sure.to_bits()), (other, as_sure.to_bits()));
        assert!((0.0..=1.0).contains(sure), "{sure}");
    }
    let apart = pairs.iter().any(|((_, sure), _)| (sure - pairs[0].0.1).abs() > 0.01);
    assert!(apart, "the drafter is not as sure of all");
}

/// Runs with two kinds of requests have the same bytes, and drafts that were as sure.
fn as_sure(one: &[Request], other: &[Request]) {
    let ((truth, a), (outputs, b)) = (witnessed(options(), one), witnessed(options(), other));
    assert_eq!(outputs, truth);
    assert!(in_both(&a, &b).count() > 100);
    for ((token, sure), (other, as_sure)) in in_both(&a, &b) {
        assert_eq!(token, other);
        assert!((sure / as_sure - 1.0).abs() < 1e-5, "{sure} and {as_sure}");
    }
}

/// A bias of nothing has its rows chosen in another way, and so have more additions than a card takes.
#[test]
fn every_way_to_choose_is_as_sure() {
    let plain = requests();
    let shaping = Shaping { logit_bias: vec![(7, 0.0)], ..Shaping::default() };
    let shaped: Vec<Request> = plain
        .iter()
        .map(|request| Request { shaping: shaping.clone(), ..request.clone() })
        .collect();
    as_sure(&plain, &shaped);
    let banned = |times: usize| -> Vec<Request> {
        let one = |request: &Request| Request {
            stops: Stops { ids: vec![7; times], strings: Vec::new() },
            limits: Limits { min_tokens: 40, ..request.limits },
            ..request.clone()
        };
        plain.iter().map(one).collect()
    };
    as_sure(&banned(1), &banned(3000));
}

/// Where a draft costs as much as a token, blocks end where the drafter is no longer sure; and bytes stay.
#[test]
fn blocks_are_as_wide_as_the_drafter_is_sure() {
    let requests = requests();
    let mut plain = Engine::new(pair("qwen3", None), options());
    let truth = bytes(&run(&mut plain, &undrafted(&requests)));
    let cost = StepCost {
        verify: CostCurve::measured([(1, 1e-3), (64, 64e-3)]),
        draft: CostCurve::measured([(1, 1e-6)]),
        ..StepCost::default()
    };
    let options = EngineOptions { widths: WidthPolicy::Adaptive(cost), ..options() };
    let (outputs, log) = witnessed(options, &requests);
    assert_eq!(outputs, truth);
    let narrowed = log.values().filter(|own| own.worth < own.draft.tokens.len()).count();
    assert!(narrowed > 0, "of {} blocks none was narrowed", log.len());
}
