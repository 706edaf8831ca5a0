//! The scheduler against a scripted device that lags one step behind: random arrivals, priorities,
//! lengths, stops, cancels, speculation that changes on the way, shared prefixes, pools so small
//! that pages are evicted and requests retracted, drafters of any quality. Each request must get
//! the tokens of its serial, uncached, undrafted run; all pages and rows must come back.

use crate::device::{Pace, Quality, VOCAB, Voyage, serial};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use schedule::{
    Bounds, CostCurve, Discipline, FinishReason, Limits, PromptLogProbs, Request, Sampling,
    SchedulerOptions, Shaping, Speculation, StepCost, Stops, Tally, WidthPolicy,
};

const CONTEXT: usize = 64;
const WIDTH: usize = 8;

#[derive(Clone, Debug)]
struct Case {
    request: Request,
    arrives: usize,
    cancelled: Option<usize>,
    toggles: Vec<(usize, Speculation)>,
}

#[derive(Clone, Debug)]
struct Sea {
    page_size: usize,
    pages: usize,
    step_tokens: usize,
    max_running: usize,
    widths: WidthPolicy,
    quality: Quality,
    pace: Pace,
}

fn speculation() -> impl Strategy<Value = Speculation> {
    prop_oneof![
        3 => Just(Speculation::Auto),
        1 => Just(Speculation::Off),
        2 => (1..=WIDTH).prop_map(Speculation::Width),
    ]
}

/// Prompts of one family share their first tokens; some are equal.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    (0u32..3, 1usize..40, 0usize..3, 0u32..2).prop_map(|(family, len, own, tail)| {
        let shared = (0..len as u32).map(move |i| (family * 7 + i) % VOCAB);
        shared.chain((0..own as u32).map(|i| tail + i)).collect()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let ends = (0usize..40, prop::option::weighted(0.3, 0..VOCAB));
    // From where on in the prompt, in parts of 64.
    let reports = prop::option::weighted(0.3, 0usize..64);
    let times = (0usize..20, prop::option::weighted(0.2, 0usize..40));
    let toggles = prop::collection::vec((0usize..40, speculation()), 0..3);
    (prompt(), ends, times, speculation(), toggles, (0u64..2, -1i32..2), reports).prop_map(
        |(
            prompt,
            (max_tokens, stop),
            (arrives, cancelled),
            speculation,
            toggles,
            (seed, priority),
            reports,
        )| {
            let len = prompt.len();
            let asked = |part| PromptLogProbs { from: part * len / 64, top: 0 };
            let request = Request {
                prompt,
                sampling: Sampling { seed, ..Sampling::default() },
                shaping: Shaping::default(),
                stops: Stops { ids: stop.into_iter().collect(), strings: vec![] },
                limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
                speculation,
                priority,
                logprobs: None,
                prompt_logprobs: reports.map(asked),
                constraint: None,
            };
            Case { request, arrives, cancelled, toggles }
        },
    )
}

fn sea(page_size: usize) -> impl Strategy<Value = Sea> {
    let least = (CONTEXT - 1).div_ceil(page_size);
    let cost = StepCost {
        verify: CostCurve::measured([(1, 4.0), (8, 5.0), (64, 20.0)]),
        draft: CostCurve::measured([(1, 1.0), (4, 1.5)]),
        ..StepCost::default()
    };
    let widths = vec![
        WidthPolicy::Fixed,
        WidthPolicy::Adaptive(StepCost::default()),
        WidthPolicy::Adaptive(cost),
    ];
    (
        (least..=3 * least, 2usize..60, 1usize..6),
        prop::sample::select(widths),
        prop::sample::select(vec![Quality::Perfect, Quality::Mixed, Quality::Wrong]),
        prop::sample::select(vec![Pace::Early, Pace::Late, Pace::Mixed]),
    )
        .prop_map(move |((pages, step_tokens, max_running), widths, quality, pace)| Sea {
            page_size,
            pages,
            step_tokens,
            max_running,
            widths,
            quality,
            pace,
        })
}

fn options(sea: &Sea) -> SchedulerOptions {
    SchedulerOptions {
        bounds: Bounds {
            vocab: VOCAB as usize,
            context: CONTEXT,
            kv_tokens: sea.pages * sea.page_size,
            max_width: WIDTH,
        },
        page_size: sea.page_size,
        step_tokens: sea.step_tokens,
        max_running: sea.max_running,
        max_waiting: 100,
        width: WIDTH,
        widths: sea.widths.clone(),
        discipline: Discipline::Sound,
    }
}

fn sail(sea: &Sea, cases: &[Case]) -> Tally {
    let mut voyage = Voyage::new(options(sea), sea.quality, sea.pace);
    for turn in 0..60 {
        for (id, case) in cases.iter().enumerate() {
            let id = id as u64;
            if case.arrives == turn {
                voyage.submit(id, case.request.clone());
            }
            if case.cancelled == Some(turn) {
                voyage.cancel(id);
            }
            for (_, speculation) in case.toggles.iter().filter(|(at, _)| *at == turn) {
                voyage.scheduler.set_speculation(id, *speculation).expect("a width in range");
            }
        }
        let tokens = voyage.flying.as_ref().map_or(0, |flight| flight.plan.tokens());
        assert!(tokens <= sea.step_tokens, "{tokens} tokens in a step of {}", sea.step_tokens);
        voyage.turn();
        if turn % 16 == 15 {
            voyage.scheduler.flush();
        }
    }
    voyage.finish();
    for (id, case) in cases.iter().enumerate() {
        let got = &voyage.got[&(id as u64)];
        let (want, reason) = serial(&case.request, CONTEXT);
        match got.finish {
            Some(FinishReason::Cancelled) => assert!(want.starts_with(&got.tokens)),
            finish => assert_eq!((&got.tokens, finish), (&want, Some(reason))),
        }
        let Request { prompt, prompt_logprobs, .. } = &case.request;
        assert!(got.cached < prompt.len());
        let from = prompt_logprobs.map_or(prompt.len(), |asked| asked.from);
        let whole = got.finish != Some(FinishReason::Cancelled) || !got.tokens.is_empty();
        match whole {
            true => assert_eq!(got.reported, prompt[from..]),
            false => assert!(prompt[from..].starts_with(&got.reported)),
        }
        assert!(prompt_logprobs.is_none() || got.cached <= from.saturating_sub(1));
    }
    voyage.scheduler.flush();
    let pages = voyage.scheduler.pages();
    assert_eq!(pages.free, pages.total, "pages are lost");
    voyage.scheduler.tally()
}

/// The seas are rough enough: all that may happen to a request happens often.
#[test]
fn voyages_meet_everything() {
    let mut runner = TestRunner::deterministic();
    let mut draw = |page_size| {
        let cases = prop::collection::vec(case(), 1..10);
        let tree = (sea(page_size), cases).new_tree(&mut runner).expect("nothing is filtered");
        tree.current()
    };
    for page_size in [1, 16] {
        let (mut retractions, mut recomputations, mut hits) = (0, 0, 0);
        for _ in 0..300 {
            let (sea, cases) = draw(page_size);
            let tally = sail(&sea, &cases);
            retractions += u32::from(tally.retractions > 0);
            recomputations += u32::from(tally.recomputations > 0);
            hits += u32::from(tally.cached_tokens > 0);
        }
        let met = [retractions, recomputations, hits];
        assert!(met.iter().all(|&voyages| voyages > 20), "{met:?} of 300, pages of {page_size}");
    }
}

/// Pools so small that whoever runs alone gives its pages back to start again, and steps of so few tokens that
/// whose turn it is may find no page, and nobody behind to take one from.
#[test]
fn somebody_goes_on_in_the_smallest_pools_and_steps() {
    let of = |prompt: Vec<u32>, max_tokens, priority, arrives| {
        let limits = Limits { max_tokens: Some(max_tokens), ..Limits::default() };
        let request = Request { limits, priority, ..Request::new(prompt) };
        Case { request, arrives, cancelled: None, toggles: vec![] }
    };
    let mut narrow = of(vec![7, 8, 0, 1], 9, 0, 3);
    narrow.request.speculation = Speculation::Width(5);
    let mut plain = of((0..28).collect(), 24, 1, 9);
    plain.toggles = vec![(9, Speculation::Off)];
    let cases = [
        of((7..21).chain([0]).collect(), 9, 1, 9),
        of((0..22).collect(), 5, 0, 8),
        narrow,
        Case { cancelled: Some(20), ..of((7..42).collect(), 0, -1, 0) },
        plain,
    ];
    for (pages, step_tokens) in (63..=80).flat_map(|pages| [(pages, 2), (pages, 3)]) {
        let sea = Sea {
            page_size: 1,
            pages,
            step_tokens,
            max_running: 3,
            widths: WidthPolicy::Fixed,
            quality: Quality::Perfect,
            pace: Pace::Early,
        };
        let _ = sail(&sea, &cases);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn one_token_pages(sea in sea(1), cases in prop::collection::vec(case(), 1..10)) {
        let _ = sail(&sea, &cases);
    }

    #[test]
    fn default_pages(sea in sea(16), cases in prop::collection::vec(case(), 1..10)) {
        let _ = sail(&sea, &cases);
    }

    #[test]
    fn large_pages(sea in sea(64), cases in prop::collection::vec(case(), 1..10)) {
        let _ = sail(&sea, &cases);
    }
}
