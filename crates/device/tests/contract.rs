//! What every device promises, asked of both: threads and the simulation.

use device::{
    Copies, DeviceLost, Fence, Forward, HostDevice, LaneId, Lanes, Local, Plan, Readback, Reason,
    Schedule, Shared, Sim, Staging, StepFence, Threads,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs the test on threads, and on the simulation under some seeds.
macro_rules! on_both {
    ($($(#[$doc:meta])* $name:ident)*) => {
        mod threads {
            $(#[test] fn $name() { super::$name(device::Threads::new); })*
        }
        mod sim {
            $(#[test] fn $name() { (0..50).for_each(|seed| super::$name(|| device::Sim::new(seed))); })*
        }
    };
}

on_both! {
    a_lane_runs_its_jobs_in_order
    a_wait_orders_two_lanes
    results_come_in_order_through_three_lanes
    a_panic_loses_the_device_and_nothing_hangs
    leaked_guards_are_noticed
    rings_notice_what_is_too_small
    dropped_results_free_their_slot
    devices_do_not_mix
    what_jobs_use_outlives_its_owner
    a_job_may_launch_and_must_not_land
    an_option_and_a_vector_of_views
    each_fence_blocks_where_it_says
    graphs_demand_what_they_bake_in
}

/// What the panic of `job` said.
fn panic_of(job: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(job)).expect_err("a panic was expected");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic with a text")).to_owned(),
    }
}

/// Waits until everything launched so far has run.
fn settle<D: HostDevice>(lanes: &Lanes<D>) -> Result<(), DeviceLost> {
    let events = [
        lanes.schedule.record(),
        lanes.plan.record(),
        lanes.forward.record(),
        lanes.copies.record(),
    ];
    events.iter().try_for_each(|event| lanes.device().land(event, Reason::Results))
}

fn a_lane_runs_its_jobs_in_order<D: HostDevice>(device: impl Fn() -> D) {
    let lanes = Lanes::new(&device());
    let mut seen = Local::new(&lanes.plan, "seen", Vec::new());
    let mut out = Readback::new(lanes.device(), "out", 1, 1);
    for i in 0..100 {
        lanes.plan.launch("push", seen.on(), move |seen| seen.push(i));
    }
    let mut filling = out.fill(&lanes.plan, 1);
    lanes.plan.launch("compare", (seen.on(), filling.view()), |(seen, out)| {
        out[0] = seen.iter().copied().eq(0..100);
    });
    assert_eq!(filling.pending().land(), Ok(vec![true]));
}

fn a_wait_orders_two_lanes<D: HostDevice>(device: impl Fn() -> D) {
    let lanes = Lanes::new(&device());
    let count = Arc::new(AtomicU32::new(0));
    let seen = Arc::new(AtomicU32::new(0));
    for _ in 0..10 {
        let count = count.clone();
        lanes.copies.launch("count", (), move |()| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    }
    lanes.schedule.wait(&lanes.copies.record());
    let (from, to) = (count, seen.clone());
    lanes.schedule.launch("look", (), move |()| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    });
    settle(&lanes).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 10);
}

/// The whole path of a loop of overlapped steps: rows in, table written, snapshot, forward with
/// its own state and what it publishes, results out, landed a step late.
fn results_come_in_order_through_three_lanes<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut rows: Staging<u32, Schedule, D> = Staging::new(&device, "rows", 3, 2);
    let mut table: Shared<u32, Schedule, D> = Shared::new(&device, "table", 4);
    let mut metadata: [Shared<u32, Plan, D>; 2] =
        std::array::from_fn(|_| Shared::new(&device, "metadata", 4));
    let mut lengths: Shared<u32, Forward, D> = Shared::new(&device, "lengths", 1);
    let mut steps = Local::new(&lanes.forward, "steps", 0u32);
    let mut out: Readback<u32, Copies, D> = Readback::new(&device, "out", 2, 3);
    let (mut before, mut landed) = (None, Vec::new());
    for step in 0..20u32 {
        {
            let rows = rows.stage(&lanes.schedule, &[step, 2 * step]);
            let mut table = table.write(&lanes.schedule);
            let arguments = (rows.view(), table.range(1..3));
            lanes.schedule.launch("rows", arguments, |(rows, table)| table.copy_from_slice(rows));
        }
        let metadata = &mut metadata[step as usize % 2];
        {
            let table = table.read(&lanes.plan);
            let mut metadata = metadata.write(&lanes.plan);
            let arguments = (table.view(), metadata.view());
            lanes.plan.launch("snapshot", arguments, |(table, own)| own.copy_from_slice(table));
        }
        {
            let metadata = metadata.read(&lanes.forward);
            let mut lengths = lengths.write(&lanes.forward);
            let arguments = (metadata.view(), lengths.view(), steps.on());
            lanes.forward.launch("forward", arguments, |(metadata, lengths, steps)| {
                lengths[0] += metadata[1] + metadata[2];
                *steps += 1;
            });
        }
        let lengths = lengths.read(&lanes.copies);
        let mut filling = out.fill(&lanes.copies, 1);
        let arguments = (lengths.view(), filling.view());
        lanes.copies.launch("results", arguments, |(lengths, out)| out.copy_from_slice(lengths));
        drop(lengths);
        if let Some(pending) = before.replace(filling.pending()) {
            landed.extend(device::Pending::land(pending).unwrap());
        }
    }
    landed.extend(before.expect("a step in flight").land().unwrap());
    let expected: Vec<u32> = (0..20).map(|step| 3 * step * (step + 1) / 2).collect();
    assert_eq!(landed, expected);
    let usage = device.usage();
    assert_eq!((usage.results.calls, usage.fence.calls), (20, 0));
}

fn a_panic_loses_the_device_and_nothing_hangs<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut table: Shared<u32, Schedule, D> = Shared::new(&device, "table", 4);
    let mut rows: Staging<u32, Schedule, D> = Staging::new(&device, "rows", 1, 1);
    let mut out: Readback<u32, Forward, D> = Readback::new(&device, "out", 1, 4);
    let mut writing = table.write(&lanes.schedule);
    lanes.schedule.launch("break", writing.view(), |_| panic!("expected by the test"));
    drop(writing);
    // The forward lane waits for a write that never ends.
    let reading = table.read(&lanes.forward);
    let mut filling = out.fill(&lanes.forward, 4);
    lanes.forward.launch("copy", (reading.view(), filling.view()), |(a, b)| b.copy_from_slice(a));
    let lost = DeviceLost {
        lane: LaneId::Schedule,
        job: "break",
        message: "expected by the test".to_owned(),
    };
    assert_eq!(filling.pending().land(), Err(lost.clone()));
    assert_eq!(device.lost(), Some(lost.clone()));
    // Later work is accepted and not done, and full rings do not complain.
    drop(reading);
    for _ in 0..3 {
        let staged = rows.stage(&lanes.schedule, &[1]);
        lanes.schedule.launch("late", staged.view(), |_| unreachable!("the device is lost"));
        let mut filling = out.fill(&lanes.forward, 1);
        lanes.forward.launch("late", filling.view(), |_| ());
        assert_eq!(filling.pending().land(), Err(lost.clone()));
    }
    drop(table.write(&lanes.schedule));
    assert_eq!(settle(&lanes), Err(lost));
}

fn leaked_guards_are_noticed<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut read: Shared<u32, Schedule, D> = Shared::new(&device, "read", 1);
    std::mem::forget(read.read(&lanes.forward));
    let said = panic_of(|| drop(read.write(&lanes.schedule)));
    assert!(said.contains("a read guard was leaked"), "{said}");

    let mut written: Shared<u32, Schedule, D> = Shared::new(&device, "written", 1);
    std::mem::forget(written.write(&lanes.schedule));
    for said in [
        panic_of(|| drop(written.read(&lanes.forward))),
        panic_of(|| drop(written.write(&lanes.schedule))),
    ] {
        assert!(said.contains("a write guard was leaked"), "{said}");
    }

    let mut rows: Staging<u32, Schedule, D> = Staging::new(&device, "rows", 1, 1);
    std::mem::forget(rows.stage(&lanes.schedule, &[1]));
    let said = panic_of(|| drop(rows.stage(&lanes.schedule, &[1])));
    assert!(said.contains("slot was leaked"), "{said}");

    let mut out: Readback<u32, Forward, D> = Readback::new(&device, "out", 1, 1);
    std::mem::forget(out.fill(&lanes.forward, 1));
    let said = panic_of(|| drop(out.fill(&lanes.forward, 1)));
    assert!(said.contains("slot was leaked"), "{said}");
}

fn rings_notice_what_is_too_small<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let blocks = std::any::TypeId::of::<D>() == std::any::TypeId::of::<Threads>();
    let mut rows: Staging<u32, Plan, D> = Staging::new(&device, "rows", 2, 3);
    let said = panic_of(|| drop(rows.stage(&lanes.plan, &[0; 4])));
    assert_eq!(said, "`rows`: 4 elements for a slot of 3");
    if blocks {
        // A lane that stands still: the third array finds the first slot in use.
        lanes.plan.launch("hold", (), move |()| gate.recv().unwrap());
        drop(rows.stage(&lanes.plan, &[1]));
        drop(rows.stage(&lanes.plan, &[2]));
        let said = panic_of(|| drop(rows.stage(&lanes.plan, &[3])));
        assert!(said.contains("the ring `rows` of 2 slots is too short"), "{said}");
        open.send(()).unwrap();
    }
    let mut out: Readback<u32, Plan, D> = Readback::new(&device, "out", 1, 3);
    let said = panic_of(|| drop(out.fill(&lanes.plan, 4)));
    assert_eq!(said, "`out`: 4 elements for a slot of 3");
    let pending = out.fill(&lanes.plan, 1).pending();
    let said = panic_of(|| drop(out.fill(&lanes.plan, 1)));
    assert!(said.contains("the ring `out` of 1 slots is too short"), "{said}");
    assert_eq!(pending.land(), Ok(vec![0]));
    drop(out.fill(&lanes.plan, 3));
    for (ring, said) in [
        ("in", panic_of(|| drop(Staging::<u8, Plan, D>::new(&device, "in", 0, 1)))),
        ("out", panic_of(|| drop(Readback::<u8, Plan, D>::new(&device, "out", 0, 1)))),
    ] {
        assert_eq!(said, format!("the ring `{ring}` has at least one slot"));
    }
}

/// Results that nobody wants are dropped; their slot is free once the job has run.
fn dropped_results_free_their_slot<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut out: Readback<u32, Forward, D> = Readback::new(&device, "out", 1, 1);
    for step in 0..5u32 {
        let mut filling = out.fill(&lanes.forward, 1);
        lanes.forward.launch("fill", filling.view(), move |out| out[0] = step);
        drop(filling.pending());
        settle(&lanes).unwrap();
    }
    let mut filling = out.fill(&lanes.forward, 1);
    lanes.forward.launch("fill", filling.view(), |out| out[0] = 9);
    assert_eq!(filling.pending().land(), Ok(vec![9]));
}

/// Whatever belongs to one device is refused by another of the same kind.
fn devices_do_not_mix<D: HostDevice>(device: impl Fn() -> D) {
    let (a, b) = (device(), device());
    let (ours, theirs) = (Lanes::new(&a), Lanes::new(&b));
    let mut table: Shared<u32, Schedule, D> = Shared::new(&a, "table", 4);
    let mut rows: Staging<u32, Schedule, D> = Staging::new(&a, "rows", 1, 1);
    let mut out: Readback<u32, Schedule, D> = Readback::new(&a, "out", 1, 1);
    let mut state = Local::new(&ours.forward, "state", 0u32);
    let event = ours.forward.record();
    let graph = ours.forward.capture("graph", (), |()| ());
    let said = [
        panic_of(|| drop(table.read(&theirs.forward))),
        panic_of(|| drop(table.write(&theirs.schedule))),
        panic_of(|| drop(rows.stage(&theirs.schedule, &[1]))),
        panic_of(|| drop(out.fill(&theirs.schedule, 1))),
        panic_of(|| theirs.forward.launch("job", state.on(), |_| ())),
        // A guard of ours, launched on their lane of the same role.
        panic_of(|| theirs.forward.launch("job", table.read(&ours.forward).view(), |_| ())),
        panic_of(|| theirs.schedule.launch("job", table.write(&ours.schedule).view(), |_| ())),
        panic_of(|| theirs.plan.wait(&event)),
        panic_of(|| assert!(!b.reached(&event))),
        panic_of(|| b.land(&event, Reason::Results).unwrap()),
        panic_of(|| theirs.forward.replay(&graph, ())),
    ];
    for said in said {
        assert!(said.contains("expected something of device 0x"), "{said}");
    }
    // Clones of a handle are the same device.
    drop(table.read(&Lanes::new(&a.clone()).forward));
}

fn what_jobs_use_outlives_its_owner<D: HostDevice>(device: impl Fn() -> D) {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let lanes = Lanes::new(&device());
    let dropped = Arc::new(AtomicU32::new(0));
    let mut out = Readback::new(lanes.device(), "out", 1, 1);
    let pending = {
        let mut table: Shared<u32, Forward, D> = Shared::new(lanes.device(), "table", 2);
        let mut state = Local::new(&lanes.forward, "state", Dropped(dropped.clone()));
        let mut writing = table.write(&lanes.forward);
        lanes.forward.launch("fill", (writing.view(), state.on()), |(table, _)| table.fill(3));
        drop(writing);
        let (reading, mut filling) = (table.read(&lanes.forward), out.fill(&lanes.forward, 1));
        let arguments = (reading.view(), state.on(), filling.view());
        lanes.forward.launch("sum", arguments, |(table, state, out)| {
            out[0] = table.iter().sum::<u32>() + 100 * state.0.load(Ordering::SeqCst);
        });
        filling.pending()
    };
    // Six, and the state was not dropped before the job.
    assert_eq!(pending.land(), Ok(vec![6]));
    settle(&lanes).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

fn a_job_may_launch_and_must_not_land<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let inner = Lanes::new(&device);
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    lanes.forward.launch("outer", (), move |()| {
        let inside = counted.clone();
        inner.forward.launch("inner", (), move |()| {
            // The outer job has ended: a lane runs one job at a time.
            assert_eq!(inside.load(Ordering::SeqCst), 1);
            inside.store(2, Ordering::SeqCst);
        });
        counted.store(1, Ordering::SeqCst);
    });
    // Twice: the inner job is queued once the outer one has run.
    settle(&lanes).unwrap();
    settle(&lanes).unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2);
    let inner = device.clone();
    lanes.forward.launch("wait", (), move |()| {
        let never = inner.record(LaneId::Forward);
        inner.land(&never, Reason::Results).unwrap();
    });
    let lost = settle(&lanes).expect_err("the job panicked");
    assert_eq!(lost.message, "a job must not wait for its own device");
    assert_eq!((lost.lane, lost.job), (LaneId::Forward, "wait"));
}

fn an_option_and_a_vector_of_views<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut parts: Vec<Shared<u32, Plan, D>> =
        (0..3).map(|_| Shared::new(&device, "part", 2)).collect();
    let mut guards: Vec<_> = parts.iter_mut().map(|part| part.write(&lanes.plan)).collect();
    let views: Vec<_> = guards.iter_mut().map(|guard| guard.view()).collect();
    lanes.plan.launch("fill", (views, ()), |(views, ())| {
        views.into_iter().zip(1..).for_each(|(view, value)| view.fill(value));
    });
    drop(guards);
    let guards: Vec<_> = parts.iter().map(|part| part.read(&lanes.copies)).collect();
    let mut out: Readback<u32, Copies, D> = Readback::new(&device, "out", 1, 1);
    let mut filling = out.fill(&lanes.copies, 1);
    let some = Some(guards[0].view());
    let none = some.is_none().then(|| guards[0].view());
    let views: Vec<_> = guards.iter().map(|guard| guard.view()).collect();
    let arguments = (views, some, none, filling.view());
    lanes.copies.launch("sum", arguments, |(views, some, none, out)| {
        assert!(none.is_none());
        out[0] = views.into_iter().chain(some).flatten().sum();
    });
    assert_eq!(filling.pending().land(), Ok(vec![2 * (1 + 2 + 3) + 2]));
}

/// Ten steps of one job each, the step before landed after each launch.
fn each_fence_blocks_where_it_says<D: HostDevice>(device: impl Fn() -> D) {
    for fence in Fence::ALL {
        let device = device();
        let lanes = Lanes::new(&device);
        let (mut order, mut before) = (StepFence::new(fence), None);
        let mut out = Readback::new(&device, "out", 2, 1);
        for step in 0..10u32 {
            order.before_plan(&lanes).unwrap();
            let mut filling = out.fill(&lanes.forward, 1);
            lanes.forward.launch("step", filling.view(), move |out| out[0] = step);
            let pending = filling.pending();
            order.launched(pending.event().clone());
            if let Some(before) = before.replace(pending) {
                assert_eq!(device::Pending::land(before), Ok(vec![step - 1]));
            }
        }
        let usage = device.usage();
        assert_eq!(usage.results.calls, 9);
        assert_eq!(usage.fence.calls, if fence == Fence::SelfFence { 9 } else { 0 }, "{fence}");
        assert_eq!(fence.name().parse(), Ok(fence));
    }
    let unknown = "none".parse::<Fence>().unwrap_err().to_string();
    assert_eq!(unknown, "no fence is named `none`: use self, coarse or fine");
}

fn graphs_demand_what_they_bake_in<D: HostDevice>(device: impl Fn() -> D) {
    let device = device();
    let lanes = Lanes::new(&device);
    let mut ids: Shared<u32, Plan, D> = Shared::new(&device, "ids", 4);
    let other: Shared<u32, Plan, D> = Shared::new(&device, "other", 4);
    let mut sum = Local::new(&lanes.forward, "sum", 0u32);
    let graph = {
        let ids = ids.read(&lanes.forward);
        lanes.forward.capture("add", (ids.view(), sum.on()), |(ids, sum)| {
            *sum += ids.iter().sum::<u32>();
        })
    };
    assert_eq!(graph.touches().len(), 2);
    for value in 1..=3 {
        let mut writing = ids.write(&lanes.plan);
        lanes.plan.launch("fill", writing.view(), move |ids| ids.fill(value));
        drop(writing);
        let ids = ids.read(&lanes.forward);
        lanes.forward.replay(&graph, (ids.view(), sum.on()));
    }
    let mut out = Readback::new(&device, "out", 1, 1);
    let mut filling = out.fill(&lanes.forward, 1);
    lanes.forward.launch("out", (sum.on(), filling.view()), |(sum, out)| out[0] = *sum);
    assert_eq!(filling.pending().land(), Ok(vec![4 * (1 + 2 + 3)]));

    let (ids, other) = (ids.read(&lanes.forward), other.read(&lanes.forward));
    for view in [other.view(), ids.range(0..3)] {
        let said = panic_of(|| lanes.forward.replay(&graph, (view, sum.on())));
        assert!(said.contains("the graph `add` bakes in"), "{said}");
    }
}

#[test]
fn simulated_work_takes_no_time_unless_it_is_given_some() {
    let sim = Sim::new(1);
    let lanes = Lanes::new(&sim);
    lanes.plan.launch("job", (), |()| ());
    settle(&lanes).unwrap();
    let usage = device::Device::usage(&sim);
    assert_eq!(usage.results.calls, 4);
    assert!(usage.results.time.is_zero() && usage.busy.iter().all(std::time::Duration::is_zero));
}
