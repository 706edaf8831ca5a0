//! The scheduler against a scripted device that lags one step behind: random arrivals, lengths,
//! stops, cancels, page and chunk sizes, and drafters of any quality. Each request must get the
//! tokens of its script, cut where the rules say; all pages and rows must come back.

use proptest::prelude::*;
use schedule::{
    Bounds, FinishReason, Limits, Request, RowOutcome, Sampling, Scheduler, SchedulerOptions,
    Speculation, StepPlan, Stops, Then, Work,
};
use std::collections::HashMap;

const VOCAB: u32 = 50;

/// The token a request's target chooses at a position, whatever is drafted.
fn script(id: u64, position: usize) -> u32 {
    let mixed = (id * 1_000_003 + position as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as u32 % VOCAB
}

#[derive(Clone, Debug)]
struct Case {
    prompt: usize,
    max_tokens: usize,
    width: usize,
    stop: Option<u32>,
    arrives: usize,
    cancelled: Option<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    (
        1usize..40,
        1usize..30,
        1usize..9,
        prop::option::weighted(0.3, 0..VOCAB),
        0usize..20,
        prop::option::weighted(0.2, 0usize..30),
    )
        .prop_map(|(prompt, max_tokens, width, stop, arrives, cancelled)| Case {
            prompt,
            max_tokens,
            width,
            stop,
            arrives,
            cancelled,
        })
}

/// The device's row table and its checks of what it is told to touch.
#[derive(Default)]
struct Device {
    lens: HashMap<usize, usize>,
    draws: u64,
}

impl Device {
    /// Runs a step; panics when a plan reaches past its pages or its row is another's.
    fn run(&mut self, step: &StepPlan, page_size: usize) -> Vec<RowOutcome> {
        let mut pages: Vec<u32> = step.rows.iter().flat_map(|r| r.pages.clone()).collect();
        let all = pages.len();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), all, "two rows of a step share a page");
        step.rows.iter().map(|row| self.row(row, page_size)).collect()
    }

    fn row(&mut self, row: &schedule::PlannedRow, page_size: usize) -> RowOutcome {
        let slots = row.pages.len() * page_size;
        let len = self.lens.entry(row.row.index).or_default();
        match &row.work {
            Work::Chunk { tokens, start, then } => {
                if *start == 0 {
                    *len = 0;
                }
                assert_eq!(*len, *start, "a chunk begins where the last one ended");
                *len += tokens.len();
                assert!(*len <= slots);
                let tokens = match then {
                    Then::Choose => vec![script(row.id, *len)],
                    Then::Continue => vec![],
                };
                RowOutcome { tokens, accepted: 0 }
            }
            Work::Block { width } => {
                let width = (*width).min(row.limit - 1 - *len);
                if width == 0 {
                    return RowOutcome::default();
                }
                assert!(*len + width <= slots, "a block reaches past the reserved pages");
                self.draws = self.draws.wrapping_mul(6364136223846793005).wrapping_add(1);
                let accepted = (self.draws >> 33) as usize % width;
                let tokens = (0..=accepted).map(|j| script(row.id, *len + j + 1)).collect();
                *len += accepted + 1;
                RowOutcome { tokens, accepted }
            }
        }
    }
}

fn options(page_size: usize, chunk: usize, kv_pages: usize) -> SchedulerOptions {
    SchedulerOptions {
        bounds: Bounds {
            vocab: VOCAB as usize,
            context: 64,
            kv_tokens: kv_pages * page_size,
            max_width: 8,
        },
        page_size,
        chunk,
        max_running: 3,
        width: 8,
    }
}

fn request(case: &Case) -> Request {
    Request {
        prompt: vec![1; case.prompt],
        sampling: Sampling::default(),
        stops: Stops { ids: case.stop.into_iter().collect(), strings: vec![] },
        limits: Limits { max_tokens: Some(case.max_tokens) },
        speculation: Speculation::Width(case.width),
        logprobs: None,
    }
}

/// What a request must end with when nobody cancels it.
fn expected(id: u64, case: &Case) -> (Vec<u32>, FinishReason) {
    let cap = case.max_tokens.min(64 - case.prompt);
    let mut tokens = Vec::new();
    for position in case.prompt.. {
        let token = script(id, position);
        if Some(token) == case.stop {
            return (tokens, FinishReason::Stop);
        }
        tokens.push(token);
        if tokens.len() == cap {
            return (tokens, FinishReason::Length);
        }
    }
    unreachable!("every sequence has a cap")
}

fn sail(cases: &[Case], page_size: usize, chunk: usize) {
    let pages = 200usize.div_ceil(page_size);
    let mut scheduler = Scheduler::new(options(page_size, chunk, pages));
    let mut device = Device::default();
    let mut flying: Option<(StepPlan, Vec<RowOutcome>)> = None;
    let mut tokens: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut ended: HashMap<u64, FinishReason> = HashMap::new();
    for turn in 0.. {
        assert!(turn < 5000, "the voyage does not end");
        for (id, case) in cases.iter().enumerate().filter(|(_, c)| c.arrives == turn) {
            scheduler.submit(id as u64, request(case)).expect("the case is in bounds");
        }
        for (id, _) in cases.iter().enumerate().filter(|(_, c)| c.cancelled == Some(turn)) {
            let youngest = flying.as_mut().map(|(plan, _)| plan);
            if let Some(outcome) = scheduler.cancel(id as u64, youngest) {
                let finish = outcome.committed.finish.expect("a cancel ends");
                assert_eq!(ended.insert(outcome.id, finish), None, "two ends of one request");
            }
        }
        let next = scheduler.plan().map(|plan| {
            let outcomes = device.run(&plan, page_size);
            (plan, outcomes)
        });
        let Some((plan, outcomes)) = std::mem::replace(&mut flying, next) else {
            if turn > 40 && scheduler.is_idle() {
                break;
            }
            continue;
        };
        let ids: Vec<_> = plan.rows.iter().map(|row| row.id).collect();
        let youngest = flying.as_mut().map(|(plan, _)| plan);
        for outcome in scheduler.land(plan, &outcomes, youngest, |_| b"") {
            let planned = outcome.planned.expect("landed rows were planned");
            assert_eq!(ids[planned], outcome.id);
            let kept = &outcomes[planned].tokens[..outcome.committed.kept];
            tokens.entry(outcome.id).or_default().extend(kept);
            if let Some(finish) = outcome.committed.finish {
                assert_eq!(ended.insert(outcome.id, finish), None, "two ends of one request");
            }
        }
    }
    for (id, case) in cases.iter().enumerate() {
        let got = tokens.remove(&(id as u64)).unwrap_or_default();
        let (want, reason) = expected(id as u64, case);
        match ended.get(&(id as u64)) {
            Some(FinishReason::Cancelled) => assert!(want.starts_with(&got)),
            finish => assert_eq!((got, finish), (want, Some(&reason))),
        }
    }
    for (free, total) in scheduler.free_and_total() {
        assert_eq!(free, total, "something was not given back");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_request_gets_its_script(
        cases in prop::collection::vec(case(), 1..8),
        page_size in prop::sample::select(vec![1usize, 16, 64]),
        chunk in 1usize..50,
    ) {
        sail(&cases, page_size, chunk);
    }
}

/// Short requests of every shape, every third cancelled in mid-stream: nothing leaks.
#[test]
fn slots_reserved_ahead_come_back() {
    for page_size in [1, 16, 64] {
        let cases: Vec<Case> = (0..100)
            .map(|i| Case {
                prompt: 5,
                max_tokens: [1, 2, 9][i % 3],
                width: 8,
                stop: None,
                arrives: i / 4,
                cancelled: (i % 3 == 0).then_some(i / 4 + 3),
            })
            .collect();
        sail(&cases, page_size, 16);
    }
}
