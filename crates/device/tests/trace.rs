//! A recording of overlapped steps: the checker's verdict and the file that Perfetto opens.

use device::{
    Forward, HostDevice, Lanes, Pending, ReadDone, Readback, Reason, Recorder, Schedule, Shared,
    Sim, SimOptions, Threads, Track, check,
};
use serde_json::Value;

/// Four steps: the schedule lane writes, the forward and plan lanes read.
fn run<D: HostDevice>(device: &D) {
    let lanes = Lanes::new(device);
    let mut table: Shared<u32, Schedule, D> = Shared::new(device, "table", 4);
    let mut out: Readback<u32, Forward, D> = Readback::new(device, "out", 2, 1);
    let mut before = None;
    let recorder = device.recorder().expect("a recording device");
    for step in 0..4u32 {
        let start = recorder.now();
        let mut writing = table.write(&lanes.schedule);
        lanes.schedule.launch("fill", writing.view(), move |table| table.fill(step));
        drop(writing);
        let (forward, plan) = (table.read(&lanes.forward), table.read(&lanes.plan));
        let mut filling = out.fill(&lanes.forward, 1);
        lanes.plan.launch("gather", plan.view(), |_| ());
        let arguments = (forward.view(), filling.view());
        lanes.forward.launch("sum \"all\"", arguments, |(table, out)| out[0] = table.iter().sum());
        let pending = filling.pending();
        recorder.span(Track::Host, "turn", start);
        if let Some(before) = before.replace(pending) {
            Pending::land(before).unwrap();
        }
        recorder.span(Track::Request(7), "decode", start);
    }
    before.expect("a step in flight").land().unwrap();
    device.land(&lanes.plan.record(), Reason::Results).unwrap();
}

fn recorder<D: HostDevice>(device: &D) -> &Recorder {
    device.recorder().expect("a recording device")
}

/// The checker and the simulation itself say the same: nothing of the right fence, and of a
/// broken one the buffer and both jobs, though the run itself may have come to no harm.
#[test]
fn the_checker_agrees_with_the_simulation() {
    for seed in 0..200 {
        for read_done in [ReadDone::PerLane, ReadDone::OneSlot, ReadDone::Missing] {
            let sim =
                Sim::with(SimOptions { seed, read_done, record: 10_000, ..SimOptions::default() });
            run(&sim);
            sim.drain();
            let races = check(&recorder(&sim).trace());
            assert_eq!(races, sim.races(), "seed {seed}, {read_done:?}");
            assert_eq!(races.is_empty(), read_done == ReadDone::PerLane, "seed {seed}");
            assert!(races.iter().all(|race| race.buffer == "table"));
        }
    }
}

#[test]
fn threads_without_a_race_and_a_trace_for_perfetto() {
    let device = Threads::recording(10_000);
    run(&device);
    let trace = recorder(&device).trace();
    assert_eq!(check(&trace), []);
    let mut json = Vec::new();
    trace.write_json(&mut json).unwrap();
    let json: Value = serde_json::from_slice(&json).expect("the trace is JSON");
    assert_eq!(json["otherData"]["dropped"], 0);
    let events = json["traceEvents"].as_array().expect("events");
    let named: Vec<&str> = events
        .iter()
        .filter(|e| e["ph"] == "M")
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    assert_eq!(
        named,
        ["host", "lane schedule", "lane plan", "lane forward", "lane copies", "request 7"]
    );
    let slices = |row: u64, kind: &str, name: &str| {
        let same = |e: &&Value| e["tid"] == row && e["cat"] == kind && e["name"] == name;
        events.iter().filter(|e| e["ph"] == "X").filter(same).count()
    };
    assert_eq!(slices(1, "job", "fill"), 4);
    assert_eq!(slices(2, "job", "gather"), 4);
    assert_eq!(slices(3, "job", "sum \"all\""), 4);
    assert_eq!(slices(0, "host wait", "land"), 5);
    assert_eq!(slices(0, "launch", "fill"), 4);
    assert_eq!((slices(0, "span", "turn"), slices(12, "span", "decode")), (4, 4));
    // Every arrow has both ends, and each job has the arrow of its launch.
    let arrows = |phase: &str, kind: &str| {
        let same = |e: &&Value| e["ph"] == phase && e["cat"] == kind;
        events.iter().filter(same).map(|e| e["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(arrows("s", "launch"), arrows("f", "launch"));
    assert_eq!(arrows("s", "launch").len(), 12);
    assert_eq!(arrows("s", "event"), arrows("f", "event"));
    // Each arrow points forward in time.
    let time = |phase: &str, id: &Value| {
        let end = events.iter().find(|e| e["ph"] == phase && e["id"] == *id).unwrap();
        end["ts"].as_f64().unwrap()
    };
    for begin in events.iter().filter(|e| e["ph"] == "s") {
        assert!(time("s", &begin["id"]) <= time("f", &begin["id"]));
    }
    // Five landings, and the waits of each step: two readers for the write and, from the second
    // step on, the writer for both readers.
    assert_eq!(arrows("s", "event").len(), 5 + 4 * 2 + 3 * 2);
}

/// Jobs of one lane do not overlap in time.
#[test]
fn slices_of_a_lane_follow_each_other() {
    let device = Threads::recording(10_000);
    run(&device);
    let mut json = Vec::new();
    recorder(&device).trace().write_json(&mut json).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    for row in 1..=4 {
        let mut end = 0.0;
        let slices = json["traceEvents"].as_array().unwrap().iter();
        for slice in slices.filter(|e| e["ph"] == "X" && e["tid"] == row) {
            let (at, long) = (slice["ts"].as_f64().unwrap(), slice["dur"].as_f64().unwrap());
            assert!(at >= end, "a slice at {at} starts before {end}");
            end = at + long;
        }
    }
}
