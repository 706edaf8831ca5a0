//! Deadlines, on a clock that the test moves.

use crate::script::{Gate, Script, expected, options, parts, request};
use device::{Clock, ManualClock, Threads};
use engine::{Engine, FinishReason, Limits, Output, Request, RequestId, Service, Stats, Stops};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn within(timeout: Duration, request: Request) -> Request {
    let limits = Limits { timeout: Some(timeout), ..request.limits };
    Request { limits, ..request }
}

fn clocked(clock: &ManualClock, max_running: usize) -> Engine {
    let device = Threads::timed_by(Clock::from(clock));
    Engine::assemble(&device, parts(Script::free()), options(max_running, 9))
}

/// Takes turns until all have ended.
fn finish(engine: &mut Engine, ids: &[RequestId]) -> Vec<Output> {
    let mut collectors: HashMap<RequestId, engine::Collector> = HashMap::new();
    let mut outputs: HashMap<RequestId, Output> = HashMap::new();
    while !engine.is_idle() {
        for update in engine.turn().unwrap() {
            let id = update.id;
            if let Some(output) = collectors.entry(id).or_default().add(update) {
                assert!(outputs.insert(id, output).is_none(), "{id:?} ended twice");
            }
        }
    }
    for (free, total) in engine.free_and_total() {
        assert_eq!(free, total);
    }
    ids.iter().map(|id| outputs.remove(id).expect("each request ends")).collect()
}

#[test]
fn a_running_request_ends_with_what_was_committed() {
    for turns in 1..12 {
        let clock = ManualClock::default();
        let mut engine = clocked(&clock, 2);
        let hurried = within(SECOND, request(1, 100));
        let patient = within(Duration::MAX, request(2, 30));
        let ids = [&hurried, &patient].map(|r| engine.submit(r.clone()).unwrap());
        let mut before = Vec::new();
        for _ in 0..turns {
            clock.advance(SECOND / 12);
            let updates = engine.turn().unwrap();
            assert!(updates.iter().all(|update| update.finished.is_none()), "time is not up");
            let own = updates.into_iter().filter(|update| update.id == ids[0]);
            before.extend(own.flat_map(|update| update.tokens).map(|token| token.id));
        }
        clock.advance(SECOND);
        let outputs = finish(&mut engine, &ids);
        assert_eq!(outputs[0].reason, FinishReason::TimedOut);
        assert_eq!(outputs[0].reason.name(), "timeout");
        let made = [before.clone(), outputs[0].ids()].concat();
        assert!(expected(&hurried).starts_with(&made), "what was committed, and nothing else");
        // The first turn plans the prompt; each later one lands a step.
        assert_eq!(made.len(), turns - 1);
        assert_eq!(outputs[0].stats.output_tokens, made.len());
        assert_eq!(outputs[0].stats.total, turns as u32 * (SECOND / 12) + SECOND);
        assert_eq!(outputs[1].reason, FinishReason::Length, "the neighbour goes on");
    }
}

/// One that waits ends on time as well, and is never computed.
#[test]
fn a_waiting_request_ends_on_time() {
    let clock = ManualClock::default();
    let mut engine = clocked(&clock, 1);
    let long = request(1, 50);
    let short = within(SECOND, request(2, 50));
    let at_once = within(Duration::ZERO, request(3, 50));
    let ids = [&long, &short, &at_once].map(|r| engine.submit(r.clone()).unwrap());
    let first = engine.turn().unwrap();
    assert_eq!(first.len(), 1, "a deadline of nothing is over in the first turn");
    assert_eq!((first[0].id, first[0].tokens.len()), (ids[2], 0));
    clock.advance(SECOND);
    let outputs = finish(&mut engine, &ids[..2]);
    let Stats { queued, total, output_tokens, steps, .. } = outputs[1].stats;
    assert_eq!((queued, total, output_tokens, steps), (SECOND, SECOND, 0, 0));
    assert_eq!(outputs[1].reason, FinishReason::TimedOut);
    assert_eq!(outputs[0].ids(), expected(&long));
}

/// Text that may have become a stop string is text when time is up.
#[test]
fn held_text_is_delivered_at_the_deadline() {
    let clock = ManualClock::default();
    let mut engine = clocked(&clock, 1);
    let free = request(5, 40);
    let text: String = expected(&free).iter().map(|&id| char::from(b'a' + id as u8)).collect();
    let stops = Stops { ids: vec![], strings: vec![text[..9].to_owned() + "!"] };
    let id = engine.submit(within(SECOND, Request { stops, ..free })).unwrap();
    for _ in 0..7 {
        let updates = engine.turn().unwrap();
        assert!(updates.iter().all(|update| update.text.is_empty()), "it may be the stop string");
    }
    clock.advance(SECOND);
    let last = engine.turn().unwrap().remove(0);
    assert_eq!(last.finished.unwrap().reason, FinishReason::TimedOut);
    assert_eq!((last.id, last.text[0].text.as_str()), (id, &text[..6]));
}

/// A request that ended in time has no deadline left.
#[test]
fn a_deadline_that_is_met_is_forgotten() {
    let clock = ManualClock::default();
    let mut engine = clocked(&clock, 1);
    let quick = within(SECOND, request(1, 3));
    let outputs = engine.run(vec![quick.clone()]).unwrap();
    assert_eq!((outputs[0].reason, outputs[0].ids()), (FinishReason::Length, expected(&quick)));
    clock.advance(SECOND * 2);
    let id = engine.submit(request(2, 3)).unwrap();
    assert_eq!(finish(&mut engine, &[id])[0].reason, FinishReason::Length);
}

/// Time in the mailbox counts, and so does time in the queue, up to the first step.
#[test]
fn time_counts_from_submission() {
    let (clock, gate) = (ManualClock::default(), Arc::new(Gate::default()));
    let device = Threads::timed_by(Clock::from(&clock));
    let engine = Engine::assemble(&device, parts(Script::behind(&gate)), options(1, 9));
    let service = Service::start(engine);
    let mut first = service.handle().stream(request(1, 40)).unwrap();
    gate.give(2);
    let _ = first.next().expect("an event").unwrap();
    // The thread waits for a step now; what is submitted lies in the mailbox.
    let late = service.handle().stream(within(SECOND, request(2, 40))).unwrap();
    let behind = service.handle().stream(request(3, 4)).unwrap();
    clock.advance(SECOND);
    gate.open();
    let late = late.output().unwrap();
    assert_eq!((late.reason, late.stats.output_tokens), (FinishReason::TimedOut, 0));
    assert_eq!(late.stats.queued, SECOND);
    let behind = behind.output().unwrap();
    assert_eq!((behind.reason, behind.stats.queued), (FinishReason::Length, SECOND));
}
