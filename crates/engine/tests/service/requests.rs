//! Submitting, listening, cancelling, limits, the end of a service.

use crate::script::{Gate, Script, engine, expected, options, request, with_drafter};
use engine::draft::Scripted;
use engine::{
    Engine, Event, FinishReason, Limits, Reject, Request, Service, Speculation, Stream, SubmitError,
};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

/// Nothing of an engine that came back is held.
fn assert_empty(engine: &Engine) {
    assert!(engine.is_idle());
    for (free, total) in engine.free_and_total() {
        assert_eq!(free, total);
    }
}

/// A sink and what it is told.
fn listener() -> (impl FnMut(Event) -> ControlFlow<()> + Send + 'static, Receiver<Event>) {
    let (send, events) = channel();
    let sink = move |event| {
        send.send(event).expect("the test listens to the end");
        ControlFlow::Continue(())
    };
    (sink, events)
}

#[test]
fn many_threads_submit_and_each_gets_its_own_output() {
    let service = Service::start(engine(Script::free(), options(3, 100)));
    thread::scope(|scope| {
        for thread in 0..8 {
            let handle = service.handle().clone();
            scope.spawn(move || {
                for i in 0..20 {
                    let request = request(thread * 100 + i, 1 + i as usize);
                    let output = handle.stream(request.clone()).unwrap().output().unwrap();
                    assert_eq!(output.ids(), expected(&request));
                    assert_eq!(output.reason, FinishReason::Length);
                }
            });
        }
    });
    let snapshot = service.handle().snapshot();
    assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
    assert!(snapshot.counters.steps > 0 && snapshot.usage.fence.calls == 0);
    service.handle().drain();
    assert_empty(&service.join().unwrap());
}

/// A sink gets every update in order, the last of them finished, and its text as it comes.
#[test]
fn a_sink_hears_everything_once() {
    let service = Service::start(engine(Script::free(), options(1, 1)));
    let request = request(3, 12);
    let (sink, events) = listener();
    let ticket = service.handle().submit(request.clone(), sink).unwrap();
    let updates: Vec<_> = events.iter().map(|event| event.unwrap()).collect();
    assert!(updates.len() > 10, "tokens come as they are made");
    assert!(updates.iter().all(|update| update.id == ticket.id()));
    let ends: Vec<bool> = updates.iter().map(|update| update.finished.is_some()).collect();
    assert_eq!(ends.iter().filter(|end| **end).count(), 1);
    assert_eq!(ends.last(), Some(&true));
    let ids: Vec<u32> =
        updates.iter().flat_map(|update| &update.tokens).map(|token| token.id).collect();
    assert_eq!(ids, expected(&request));
}

/// What can be refused is refused by the name of its field, and its sink is never called.
#[test]
fn a_bad_request_is_refused_where_it_is_submitted() {
    let service = Service::start(engine(Script::free(), options(1, 1)));
    let no_sink = |_| -> ControlFlow<()> { panic!("a refused request has no events") };
    for (field, bad) in [
        ("prompt", Request { prompt: vec![], ..request(1, 1) }),
        ("prompt", Request { prompt: vec![99], ..request(1, 1) }),
        (
            "min_tokens",
            Request {
                limits: Limits { max_tokens: Some(1), min_tokens: 2, ..Limits::default() },
                ..request(1, 1)
            },
        ),
        ("width", Request { speculation: Speculation::Width(3), ..request(1, 1) }),
    ] {
        match service.handle().submit(bad, no_sink) {
            Err(SubmitError::Rejected(Reject::Invalid(error))) => assert_eq!(error.field, field),
            other => panic!("{field}: {:?}", other.map(|ticket| ticket.id())),
        }
    }
    service.handle().drain();
    service.join().unwrap();
}

#[test]
fn as_many_are_open_as_may_be_and_an_end_makes_room() {
    let gate = Arc::new(Gate::default());
    let service = Service::start(engine(Script::behind(&gate), options(1, 2)));
    let handle = service.handle();
    let open: Vec<Stream> = (0..3).map(|i| handle.stream(request(i, 3)).unwrap()).collect();
    let full = handle.stream(request(9, 3)).err().expect("a fourth is one too many");
    assert_eq!(full, SubmitError::Rejected(Reject::QueueFull { limit: 3 }));
    assert!(full.to_string().contains("try again later"), "{full}");
    let snapshot = handle.snapshot();
    assert_eq!(snapshot.waiting + snapshot.running, 3);
    gate.open();
    for (i, stream) in open.into_iter().enumerate() {
        assert_eq!(stream.output().unwrap().ids(), expected(&request(i as u64, 3)));
        // The end was counted before it was told.
        let next = handle.stream(request(20, 3)).expect("an end makes room");
        assert_eq!(next.output().unwrap().ids(), expected(&request(20, 3)));
    }
}

/// Whoever goes away, by ticket, by sink or by stream, running or waiting, leaves nothing behind.
#[test]
fn a_request_that_nobody_wants_is_cancelled() {
    let gate = Arc::new(Gate::default());
    let service = Service::start(engine(Script::behind(&gate), options(1, 10)));
    let handle = service.handle();
    let endless = || request(1, 200);
    let calls = Arc::new(Mutex::new(0));
    let counted = calls.clone();
    let deaf = handle.submit(endless(), move |_| {
        *counted.lock().unwrap() += 1;
        ControlFlow::Break(())
    });
    let (sink, events) = listener();
    let waiting = handle.submit(endless(), sink).unwrap();
    let stream = handle.stream(endless()).unwrap();
    let (kept_sink, kept_events) = listener();
    let kept = handle.submit(request(7, 5), kept_sink).unwrap();
    drop(waiting);
    drop(stream);
    gate.open();
    // A dropped ticket's sink still hears the end.
    let last = events.iter().last().expect("an event").unwrap();
    assert_eq!(last.finished.unwrap().reason, FinishReason::Cancelled);
    let tokens = kept_events.iter().map(|event| event.unwrap().tokens.len());
    assert_eq!(tokens.sum::<usize>(), 5, "the others go on");
    service.handle().drain();
    assert_empty(&service.join().unwrap());
    assert_eq!(*calls.lock().unwrap(), 1, "a sink that is gone is not called again");
    drop((deaf, kept));
}

#[test]
fn a_ticket_cancels_and_the_sink_hears_what_was_committed() {
    let gate = Arc::new(Gate::default());
    let service = Service::start(engine(Script::behind(&gate), options(1, 1)));
    let mut stream = service.handle().stream(request(4, 200)).unwrap();
    gate.give(5);
    let first = stream.next().expect("an event").unwrap();
    stream.ticket().cancel();
    gate.open();
    let ids = |update: &engine::Update| -> Vec<u32> {
        update.tokens.iter().map(|token| token.id).collect()
    };
    let mut made = ids(&first);
    let mut reasons = Vec::new();
    for event in stream {
        let update = event.unwrap();
        made.extend(ids(&update));
        reasons.extend(update.finished.map(|end| end.reason));
    }
    assert_eq!(reasons, [FinishReason::Cancelled]);
    assert!(!made.is_empty() && expected(&request(4, 200)).starts_with(&made));
}

#[test]
fn draining_finishes_what_is_open_and_refuses_the_rest() {
    let gate = Arc::new(Gate::default());
    let service = Service::start(engine(Script::behind(&gate), options(1, 9)));
    let handle = service.handle().clone();
    let open: Vec<Stream> = (0..4).map(|i| handle.stream(request(i, 6)).unwrap()).collect();
    handle.drain();
    assert_eq!(handle.stream(request(9, 1)).err(), Some(SubmitError::Closed));
    gate.open();
    for (i, stream) in open.into_iter().enumerate() {
        assert_eq!(stream.output().unwrap().ids(), expected(&request(i as u64, 6)));
    }
    assert_empty(&service.join().unwrap());
    assert_eq!(handle.stream(request(9, 1)).err(), Some(SubmitError::Closed));
}

#[test]
fn shutting_down_cancels_what_is_open() {
    for how in ["shutdown", "drop"] {
        let gate = Arc::new(Gate::default());
        let service = Service::start(engine(Script::behind(&gate), options(2, 9)));
        let handle = service.handle().clone();
        let open: Vec<Stream> = (0..5).map(|i| handle.stream(request(i, 200)).unwrap()).collect();
        gate.give(3);
        handle.shutdown();
        gate.open();
        match how {
            "drop" => drop(service),
            _ => assert_empty(&service.join().unwrap()),
        }
        for stream in open {
            assert_eq!(stream.output().unwrap().reason, FinishReason::Cancelled, "{how}");
        }
        assert_eq!(handle.stream(request(9, 1)).err(), Some(SubmitError::Closed));
    }
}

/// Tickets switch drafting while their requests run: off, on, wide, narrow.
#[test]
fn drafting_is_switched_while_a_request_runs() {
    let right = |_, position: usize| crate::script::token(position, 2);
    let parts = with_drafter(Script::free(), Scripted::new(8, right));
    let engine = Engine::assemble(&device::Threads::new(), parts, options(2, 2));
    let service = Service::start(engine);
    let request = request(2, 150);
    let mut stream = service.handle().stream(request.clone()).unwrap();
    let course =
        [Speculation::Off, Speculation::Width(8), Speculation::Width(1), Speculation::Auto];
    let mut made = Vec::new();
    for turn in 0.. {
        let Some(event) = stream.next() else { break };
        made.extend(event.unwrap().tokens.iter().map(|token| token.id));
        stream.ticket().set_speculation(course[turn % 4]).unwrap();
    }
    assert_eq!(made, expected(&request));
    let bad = stream.ticket().set_speculation(Speculation::Width(9)).unwrap_err();
    assert_eq!(bad.field, "width");
}
