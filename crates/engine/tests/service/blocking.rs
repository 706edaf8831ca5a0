//! The host waits in landing and nowhere else. The device is stopped whenever the host does
//! anything but land: its jobs start only once the host lands their own step, so a plan, a launch
//! or a recording that waited for the device would wait for ever.

use crate::script::{Gate, Script, VOCAB, expected, options, request, token, with_drafter};
use device::{Device, LaneId, Reason, Threads, Watched, Watcher};
use engine::draft::Scripted;
use engine::{Engine, EngineOptions, Fence, Request, Service};
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Holds every job back until the host lands the job's step.
#[derive(Default)]
struct Stopped {
    seen: Mutex<Seen>,
    landed: Condvar,
}

#[derive(Default)]
struct Seen {
    /// Steps whose last job was launched, and steps that the host set out to land.
    launched: u64,
    landing: u64,
    /// Landings that had the next step in the queue.
    led: u64,
    /// Where the host waited, and for what.
    sites: BTreeSet<(&'static str, &'static str, u32)>,
}

impl Watcher for Stopped {
    /// The step that the job belongs to, from 1. The copy of the results is its last job.
    fn launching(&self, lane: LaneId, _: &'static str) -> u64 {
        let mut seen = self.seen.lock().unwrap();
        let step = seen.launched + 1;
        seen.launched += u64::from(lane == LaneId::Copies);
        step
    }

    fn starting(&self, _: LaneId, step: u64) {
        let seen = self.seen.lock().unwrap();
        let limit = Duration::from_secs(60);
        let held = |seen: &mut Seen| seen.landing < step;
        let wait = self.landed.wait_timeout_while(seen, limit, held).unwrap().1;
        assert!(!wait.timed_out(), "the host does not land step {step}: it waits elsewhere");
    }

    fn landing(&self, reason: Reason, site: &'static Location<'static>) {
        let mut seen = self.seen.lock().unwrap();
        seen.landing += 1;
        seen.led += u64::from(seen.launched > seen.landing);
        seen.sites.insert((reason.name(), site.file(), site.line()));
        self.landed.notify_all();
    }
}

/// An engine on a device that stands still while the host does anything but land.
fn stopped(target: Script, fence: Fence) -> (Arc<Stopped>, Engine<Watched<Threads>>) {
    let watcher = Arc::new(Stopped::default());
    let device = Watched::new(Threads::new(), watcher.clone());
    let drafter = Scripted::new(4, |request, position| {
        // Right for half of the positions, where a request's id is its seed.
        (token(position, request) + u32::from(position.is_multiple_of(2))) % VOCAB
    });
    let options = EngineOptions { chunk: 16, fence, ..options(4, 1000) };
    (watcher, Engine::assemble(&device, with_drafter(target, drafter), options))
}

/// The steady state of a busy engine: every landing but a few has the next step queued behind it
/// while its own has not even begun.
fn assert_steady(watcher: &Stopped, engine: &Engine<Watched<Threads>>) {
    let (seen, counters) = (watcher.seen.lock().unwrap(), engine.counters());
    let usage = engine.device().usage();
    let sites: Vec<_> = seen.sites.iter().collect();
    assert_eq!(sites.len(), 1, "the host waits in one place: {sites:?}");
    let (reason, file, _) = sites[0];
    assert!(*reason == "land" && file.ends_with("step.rs"), "{sites:?}");
    assert_eq!((usage.fence.calls, usage.fence.time), (0, Duration::ZERO));
    assert_eq!((usage.results.calls, seen.landing), (counters.steps, counters.steps));
    assert_eq!(counters.led, seen.led, "the engine counts what it led");
    let (led, steps) = (counters.led as f64, counters.steps as f64);
    println!("{led} of {steps} steps had their successor queued before they began");
    assert!(led >= 0.99 * steps, "{led} of {steps} steps had their successor queued");
}

#[test]
fn planning_and_launching_go_on_while_the_device_stands_still() {
    let (watcher, mut engine) = stopped(Script::free(), Fence::Fine);
    let requests: Vec<Request> = (0..60).map(|i| request(i, 20 + i as usize % 30)).collect();
    let outputs = engine.run(requests.clone()).unwrap();
    while !engine.is_idle() {
        assert_eq!(engine.turn().unwrap(), [], "all have ended");
    }
    for (output, request) in outputs.iter().zip(&requests) {
        assert_eq!(output.ids(), expected(request));
    }
    let stats = |count: fn(&engine::Stats) -> usize| -> usize {
        outputs.iter().map(|output| count(&output.stats)).sum()
    };
    assert!(stats(|s| s.accepted_drafts()) > 0 && stats(|s| s.rejected_drafts()) > 0);
    assert_steady(&watcher, &engine);
}

/// The same on the thread of a service, whose mailbox is another thing to wait for.
#[test]
fn a_service_under_load_keeps_a_step_ahead() {
    let gate = Arc::new(Gate::default());
    let held = gate.clone();
    // Nothing runs before all have come.
    let target = Script::new(move |pass| {
        if pass == 0 {
            held.pass();
        }
    });
    let (watcher, engine) = stopped(target, Fence::Fine);
    let service = Service::start(engine);
    let requests: Vec<Request> = (0..60).map(|i| request(i, 20 + i as usize % 30)).collect();
    let submit = |request: &Request| service.handle().stream(request.clone()).unwrap();
    let streams: Vec<_> = requests.iter().map(submit).collect();
    gate.open();
    for (stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(stream.output().unwrap().ids(), expected(request));
    }
    service.handle().drain();
    let engine = service.join().unwrap();
    assert_steady(&watcher, &engine);
}

/// The instrument sees a second place when there is one: the ablation that waits before it plans.
#[test]
fn a_wait_before_planning_is_noticed() {
    let (watcher, mut engine) = stopped(Script::free(), Fence::SelfFence);
    let outputs = engine.run(vec![request(0, 20)]).unwrap();
    assert_eq!(outputs[0].ids(), expected(&request(0, 20)));
    while !engine.is_idle() {
        engine.turn().unwrap();
    }
    let seen = watcher.seen.lock().unwrap();
    let reasons: Vec<&str> = seen.sites.iter().map(|(reason, ..)| *reason).collect();
    assert_eq!(reasons, ["fence", "land"]);
}
