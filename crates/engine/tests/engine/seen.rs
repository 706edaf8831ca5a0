//! What the engine shows of its work: the drafts that a pass refused, and when the newest steps were
//! where.

use crate::common::{fixed, pair, plain, prompt, request};
use device::LaneId;
use engine::draft::Scripted;
use engine::{Collector, Engine, EngineOptions, Output, RECENT_STEPS, Request, Update};

const WIDTH: usize = 5;

/// An engine whose drafter is right about `request`, but for every fourth position; and what the
/// drafter says.
fn engine(request: &Request) -> (Engine, impl Fn(usize) -> u32 + Clone + use<>) {
    let truth = plain("qwen3", std::slice::from_ref(request)).remove(0).ids();
    let prompt = request.prompt.len();
    let says = move |position: usize| {
        let right = position.checked_sub(prompt).and_then(|at| truth.get(at)).copied();
        right.unwrap_or(0) + u32::from(position.is_multiple_of(4))
    };
    let own = says.clone();
    let drafter = Box::new(Scripted::new(WIDTH, move |_, position| own(position)));
    let options = EngineOptions { width: WIDTH, ..fixed() };
    (Engine::with_drafter(pair("qwen3", None), drafter, options), says)
}

/// Runs one request and looks at its updates.
fn watch(engine: &mut Engine, request: &Request, mut look: impl FnMut(&Update)) -> Output {
    engine.submit(request.clone()).expect("in bounds");
    let (mut collector, mut output) = (Collector::default(), None);
    while !engine.is_idle() {
        for update in engine.turn().expect("turns") {
            look(&update);
            output = collector.add(update).or(output);
        }
    }
    output.expect("the request ended")
}

#[test]
fn refused_drafts_are_told_and_stand_where_they_were_proposed() {
    let request = request(&prompt(3, 11), 60);
    let (mut engine, says) = engine(&request);
    let (mut position, mut refused) = (request.prompt.len(), 0);
    let output = watch(&mut engine, &request, |update| {
        position += update.tokens.len();
        for (i, &draft) in update.refused.iter().enumerate() {
            assert_eq!(draft, says(position - 1 + i), "at {position}");
        }
        if let Some(&first) = update.refused.first() {
            let last = update.tokens.last().expect("a pass gives a token");
            assert!(first != last.id && !last.drafted, "the target chose another");
        }
        refused += update.refused.len();
    });
    assert_eq!(output.ids(), plain("qwen3", std::slice::from_ref(&request))[0].ids());
    assert!(refused > 0 && output.stats.accepted_drafts() > 0);
    // Every draft is one or the other when nothing but the cap ends a request.
    assert_eq!(refused, output.stats.rejected_drafts());
}

#[test]
fn a_request_that_a_stop_ends_inside_its_drafts_refused_none_behind_it() {
    let mut request = request(&prompt(3, 11), 60);
    let ids = plain("qwen3", std::slice::from_ref(&request)).remove(0).ids();
    for stop in [ids[5], ids[6], ids[9], ids[14]] {
        request.stops.ids = vec![stop];
        let (mut engine, says) = engine(&request);
        let mut position = request.prompt.len();
        let output = watch(&mut engine, &request, |update| {
            position += update.tokens.len();
            // Where the target chose the stop, it stands one behind the last token kept.
            let stopped = update.finished.is_some();
            let begin = if stopped { position } else { position - 1 };
            for (i, &draft) in update.refused.iter().enumerate() {
                assert_eq!(draft, says(begin + i), "stop {stop}, at {position}");
            }
        });
        let at = ids.iter().position(|&id| id == stop).expect("one of them");
        assert_eq!(output.ids(), ids[..at], "stop {stop}");
    }
}

#[test]
fn recent_steps_go_from_lane_to_lane_and_add_up() {
    let request = request(&prompt(5, 40), 30);
    let (mut engine, _) = engine(&request);
    let output = watch(&mut engine, &request, |_| {});
    let steps = engine.recent();
    assert_eq!(steps.len() as u64, engine.counters().steps);
    let sum = |of: fn(&engine::StepRecord) -> usize| steps.iter().map(of).sum::<usize>();
    assert_eq!(sum(|step| step.kept), output.stats.output_tokens);
    assert!(sum(|step| step.drafted) >= output.stats.drafted);
    assert!(sum(|step| step.accepted) >= output.stats.accepted_drafts());
    assert_eq!(sum(|step| step.chunks + step.blocks) as u64, engine.counters().rows);
    assert_eq!(sum(|step| step.tokens) as u64, engine.counters().tokens);
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(step.number, number as u64);
        let lane = |lane: LaneId| step.lanes[lane.index()];
        let [plan, forward, copies] = [LaneId::Plan, LaneId::Forward, LaneId::Copies]
            .map(|id| lane(id).expect("every step has work for it"));
        let mut order = vec![step.planned.start];
        if let Some(schedule) = lane(LaneId::Schedule) {
            order.extend([schedule.start, schedule.end]);
        }
        for span in [plan, forward, copies] {
            order.extend([span.start, span.end]);
        }
        order.extend([step.landing.end, step.committed.start, step.committed.end]);
        assert!(order.is_sorted(), "{step:?}");
        assert!(step.planned.start <= step.planned.end && step.landing.start <= step.landing.end);
        let parts = step.times.draft + step.times.verify + step.times.absorb;
        assert!(parts <= forward.end - forward.start, "{step:?}");
    }
    for pair in steps.windows(2) {
        assert!(pair[1].planned.end <= pair[0].landing.start, "launched before the other landed");
    }
}

#[test]
fn only_the_newest_steps_are_kept() {
    let request = request(&prompt(5, 40), 3 * RECENT_STEPS);
    let mut engine = Engine::new(pair("qwen3", None), fixed());
    watch(&mut engine, &request, |_| {});
    let steps = engine.recent();
    assert_eq!(steps.len(), RECENT_STEPS);
    let last = steps.last().expect("some").number;
    assert_eq!(last + 1, engine.counters().steps);
    assert!(steps.iter().rev().zip((0..=last).rev()).all(|(step, number)| step.number == number));
}
