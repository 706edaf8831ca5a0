//! A panic or a lost device: everybody is told once, nobody hangs.

use crate::script::{Gate, Letters, Script, VOCAB, options, parts, request, with_drafter};
use device::Threads;
use engine::draft::Scripted;
use engine::{Engine, EngineLost, Event, Parts, Service, SubmitError, Vocabulary};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;

type Log = Arc<Mutex<Vec<Event>>>;

/// A vocabulary that fails on the engine's own thread, as a scheduler would.
struct Torn;

impl Vocabulary for Torn {
    fn size(&self) -> usize {
        VOCAB as usize
    }

    fn piece(&self, _: u32) -> &[u8] {
        panic!("a torn page of the dictionary")
    }
}

/// Serves five requests, two of them at once, of which the first has `sink`; `gate` opens when all
/// are submitted. Returns what each was told and what the service ended with.
fn doomed(
    gate: &Gate,
    parts: Parts,
    mut sink: impl FnMut(&Event) + Send + 'static,
) -> (Vec<Log>, EngineLost) {
    let service = Service::start(Engine::assemble(&Threads::new(), parts, options(2, 10)));
    let handle = service.handle().clone();
    let logs: Vec<Log> = (0..5).map(|_| Log::default()).collect();
    let first = logs[0].clone();
    let mut tickets = vec![handle.submit(request(0, 60), move |event| {
        first.lock().unwrap().push(event.clone());
        sink(&event);
        ControlFlow::Continue(())
    })];
    tickets.extend(logs.iter().enumerate().skip(1).map(|(i, log)| {
        let log = log.clone();
        handle.submit(request(i as u64, 60), move |event| {
            log.lock().unwrap().push(event);
            ControlFlow::Continue(())
        })
    }));
    assert!(tickets.iter().all(Result::is_ok));
    gate.open();
    let lost = service.join().err().expect("the service fails");
    let refused = handle.stream(request(9, 1)).err().expect("later requests are refused");
    assert_eq!(refused, SubmitError::Lost(lost.clone()));
    let snapshot = handle.snapshot();
    assert_eq!((snapshot.waiting, snapshot.running), (0, 0));
    (logs, lost)
}

/// Each log ends with its only terminal event, which is `lost`.
fn assert_told(logs: &[Log], lost: &EngineLost) {
    for log in logs {
        let log = log.lock().unwrap();
        let terminal =
            |event: &Event| event.as_ref().map_or(true, |update| update.finished.is_some());
        assert_eq!(log.iter().filter(|event| terminal(event)).count(), 1);
        assert_eq!(log.last(), Some(&Err(lost.clone())));
    }
}

#[test]
fn a_target_that_panics_fails_every_request_once() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    let target = Script::new(move |pass| {
        held.pass();
        assert!(pass < 7, "the eighth pass is one too many");
    });
    let (logs, lost) = doomed(&gate, parts(target), |_| {});
    assert!(matches!(lost, EngineLost::Device(_)), "{lost:?}");
    for part in ["`step`", "forward", "the eighth pass", "no further request"] {
        assert!(lost.to_string().contains(part), "no {part:?} in {lost}");
    }
    assert!(logs[0].lock().unwrap().len() > 2, "what was committed before was delivered");
    assert_told(&logs, &lost);
}

#[test]
fn a_drafter_that_panics_fails_every_request_once() {
    let gate = Arc::new(Gate::default());
    let drafter = Scripted::new(4, |_, position| {
        assert!(position < 20, "no idea what comes after 19");
        0
    });
    let (logs, lost) = doomed(&gate, with_drafter(Script::behind(&gate), drafter), |_| {});
    assert!(lost.to_string().contains("no idea what comes after 19"), "{lost}");
    assert_told(&logs, &lost);
}

#[test]
fn a_panic_on_the_engines_thread_fails_every_request_once() {
    let gate = Arc::new(Gate::default());
    let parts = Parts { vocabulary: Arc::new(Torn), ..parts(Script::behind(&gate)) };
    let (logs, lost) = doomed(&gate, parts, |_| {});
    assert_eq!(lost, EngineLost::Panicked("a torn page of the dictionary".into()));
    assert!(lost.to_string().contains("a torn page of the dictionary"), "{lost}");
    assert_told(&logs, &lost);
}

/// A sink that panics over an update, and again over the error, costs the others their service but
/// not their terminal event.
#[test]
fn a_sink_that_panics_fails_every_request_once() {
    let gate = Arc::new(Gate::default());
    let (logs, lost) = doomed(&gate, parts(Script::behind(&gate)), |_| panic!("a broken pipe"));
    assert_eq!(lost, EngineLost::Panicked("a broken pipe".into()));
    assert_told(&logs, &lost);
}

/// A sink that panics over its last event has had it.
#[test]
fn a_sink_that_panics_over_its_end_is_told_nothing_further() {
    let gate = Arc::new(Gate::default());
    let (logs, lost) = doomed(&gate, parts(Script::behind(&gate)), |event| {
        assert!(event.as_ref().is_ok_and(|update| update.finished.is_none()), "the end");
    });
    let ends = |log: &Log| log.lock().unwrap().iter().filter(|event| event.is_err()).count();
    assert_eq!(ends(&logs[0]), 0);
    assert_eq!(lost, EngineLost::Panicked("the end".into()));
    // Its neighbour ran as long and may have ended in the same step.
    assert_told(&logs[2..], &lost);
}

/// Requests that come while the engine fails: each that was taken gets exactly one terminal event,
/// and each that was not is refused with the reason.
#[test]
fn nobody_hangs_who_submits_while_the_engine_fails() {
    for last in [0, 1, 5, 40] {
        let target = Script::new(move |pass| assert!(pass < last, "enough"));
        let engine = Engine::assemble(&Threads::new(), parts(target), options(3, 50));
        let service = Service::start(engine);
        thread::scope(|scope| {
            for thread in 0..4 {
                let handle = service.handle().clone();
                scope.spawn(move || {
                    for i in 0.. {
                        let stream = match handle.stream(request(thread * 1000 + i, 3)) {
                            Ok(stream) => stream,
                            Err(SubmitError::Lost(lost)) => {
                                assert!(lost.to_string().contains("enough"), "{lost}");
                                return;
                            }
                            Err(other) => panic!("{other}"),
                        };
                        let events: Vec<Event> = stream.collect();
                        let (end, before) = events.split_last().expect("a terminal event");
                        let goes_on = |event: &Event| {
                            event.as_ref().is_ok_and(|update| update.finished.is_none())
                        };
                        assert!(!goes_on(end) && before.iter().all(goes_on));
                    }
                });
            }
        });
        let lost = service.join().err().expect("the service failed");
        assert!(lost.to_string().contains("enough"), "{lost}");
    }
}

/// The vocabulary that works is the one of the other tests.
#[test]
fn a_service_that_was_never_used_ends_cleanly() {
    let parts = Parts { vocabulary: Arc::new(Letters), ..parts(Script::free()) };
    let engine = Engine::assemble(&Threads::new(), parts, options(1, 1));
    let service = Service::start(engine);
    service.handle().drain();
    assert!(service.join().is_ok());
}
