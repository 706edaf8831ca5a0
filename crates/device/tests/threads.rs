//! What only real threads can show: that nothing hangs when a lane fails or a device is dropped,
//! that the host blocks in one place, and that order holds under load.

use device::{
    Access, Copies, Device, DeviceLost, Fence, Forward, LaneId, Lanes, Local, Pending, Plan,
    Readback, Reason, Schedule, Shared, Staging, StepFence, Threads, Usage, Waits, check,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// A loop of overlapped steps over the three lanes.
struct Loop {
    lanes: Lanes<Threads>,
    rows: Staging<u32, Schedule, Threads>,
    table: Shared<u32, Schedule, Threads>,
    metadata: [Shared<u32, Plan, Threads>; 2],
    total: Local<u32, Forward>,
    out: Readback<u32, Forward, Threads>,
    step: u32,
}

const LEN: usize = 64;

impl Loop {
    fn new(device: &Threads) -> Loop {
        let lanes = Lanes::new(device);
        Loop {
            rows: Staging::new(device, "rows", 3, LEN),
            table: Shared::new(device, "table", LEN),
            metadata: std::array::from_fn(|_| Shared::new(device, "metadata", LEN)),
            total: Local::new(&lanes.forward, "total", 0),
            out: Readback::new(device, "out", 2, 1),
            step: 0,
            lanes,
        }
    }

    /// Launches the next step, whose result is the sum of all steps' numbers times `LEN`. Its
    /// forward job begins with `first`.
    fn launch(&mut self, first: impl FnOnce() + Send + 'static) -> Pending<u32, Threads> {
        let Loop { lanes, rows, table, metadata, total, out, step } = self;
        *step += 1;
        {
            let rows = rows.stage(&lanes.schedule, &[*step; LEN]);
            let mut table = table.write(&lanes.schedule);
            let arguments = (rows.view(), table.view());
            lanes.schedule.launch("rows", arguments, |(rows, table)| table.copy_from_slice(rows));
        }
        let metadata = &mut metadata[*step as usize % 2];
        {
            let table = table.read(&lanes.plan);
            let mut metadata = metadata.write(&lanes.plan);
            let arguments = (table.view(), metadata.view());
            lanes.plan.launch("snapshot", arguments, |(table, own)| own.copy_from_slice(table));
        }
        let metadata = metadata.read(&lanes.forward);
        let mut filling = out.fill(&lanes.forward, 1);
        let arguments = (metadata.view(), total.on(), filling.view());
        lanes.forward.launch("forward", arguments, move |(metadata, total, out)| {
            first();
            *total = total.wrapping_add(metadata.iter().sum());
            out[0] = *total;
        });
        filling.pending()
    }
}

#[test]
fn many_steps_give_the_right_sums() {
    let device = Threads::recording(4_000);
    let mut steps = Loop::new(&device);
    let (mut before, mut expected) = (None, 0u32);
    for step in 1..=5_000u32 {
        let pending = steps.launch(|| ());
        if let Some(before) = before.replace(pending) {
            expected = expected.wrapping_add((step - 1) * LEN as u32);
            assert_eq!(Pending::land(before), Ok(vec![expected]));
        }
    }
    let trace = device.recorder().expect("a recording device").trace();
    assert_eq!(trace.len(), 4_000);
    assert_eq!(check(&trace), []);
}

/// Runs steps whose forward job ends only when the host has queued the step after it, so a host
/// that waits for a step before it has queued the next never gets there; the job gives up after
/// `patience`. Returns what landed before that.
fn run_ahead(fence: Fence, steps: u32, patience: Duration) -> (Result<u32, DeviceLost>, Usage) {
    let device = Threads::new();
    let mut loops = Loop::new(&device);
    let mut order = StepFence::new(fence);
    let mut run = || {
        let (mut before, mut landed) = (None::<(Pending<u32, Threads>, Sender<()>)>, 0);
        for _ in 0..steps {
            order.before_plan(&loops.lanes)?;
            let (open, gate) = channel();
            let pending = loops.launch(move || gate.recv_timeout(patience).expect("a next step"));
            order.launched(pending.event().clone());
            if let Some((before, open)) = before.replace((pending, open)) {
                assert!(!before.arrived(), "it is queued while the one before runs");
                open.send(()).expect("the job listens");
                before.land()?;
                landed += 1;
            }
        }
        let (last, open) = before.expect("a step in flight");
        open.send(()).expect("the job listens");
        last.land()?;
        Ok(landed + 1)
    };
    (run(), device.usage())
}

/// In the steady state the host blocks to land and nowhere else, and each step is queued while
/// the one before it runs.
#[test]
fn only_landing_blocks() {
    for fence in [Fence::Fine, Fence::Coarse] {
        let (landed, usage) = run_ahead(fence, 200, Duration::from_secs(60));
        assert_eq!(landed, Ok(200), "{fence}");
        assert_eq!(usage.fence, Waits::default());
        assert_eq!(usage.results.calls, 200);
        assert!(usage.results.blocked > 0 && usage.results.blocked <= 200);
    }
}

/// The same test notices a host that waits in another place.
#[test]
fn a_host_that_waits_elsewhere_is_caught() {
    let (landed, usage) = run_ahead(Fence::SelfFence, 200, Duration::from_millis(50));
    assert_eq!(landed.expect_err("the first step never ends").job, "forward");
    assert_eq!((usage.fence.calls, usage.fence.blocked, usage.results.calls), (1, 1, 0));
    assert!(usage.fence.time > Duration::ZERO);
}

#[test]
fn time_inside_jobs_is_counted_by_lane() {
    let device = Threads::new();
    let lanes = Lanes::new(&device);
    let time = Duration::from_millis(5);
    lanes.plan.launch("sleep", (), move |()| std::thread::sleep(time));
    lanes.copies.wait(&lanes.plan.record());
    device.land(&lanes.copies.record(), Reason::Results).unwrap();
    let usage = device.usage();
    assert!(usage.busy[LaneId::Plan.index()] >= time && usage.results.time > Duration::ZERO);
    assert_eq!(usage.busy[LaneId::Copies.index()], Duration::ZERO);
}

/// No call but `land` waits for a lane that stands still.
#[test]
fn nothing_else_waits_for_a_lane() {
    let device = Threads::new();
    let mut steps = Loop::new(&device);
    let (open, gate) = channel::<()>();
    steps.lanes.forward.launch("hold", (), move |()| gate.recv().unwrap());
    let first = steps.launch(|| ());
    let second = steps.launch(|| ());
    assert!(!first.arrived() && !second.arrived());
    assert_eq!(device.usage().results.calls, 0);
    open.send(()).unwrap();
    assert_eq!(second.land(), Ok(vec![3 * LEN as u32]));
    assert_eq!(first.land(), Ok(vec![LEN as u32]));
}

#[test]
fn dropping_a_device_waits_for_its_lanes() {
    let ran = Arc::new(AtomicU32::new(0));
    let device = Threads::new();
    let mut steps = Loop::new(&device);
    for _ in 0..2 {
        drop(steps.launch(|| std::thread::sleep(Duration::from_millis(20))));
    }
    let counted = ran.clone();
    steps.lanes.forward.launch("count", (), move |()| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    drop((device, steps));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}

/// The last handle may go inside a job, while other lanes wait for that very lane.
#[test]
fn a_job_may_drop_the_last_handle() {
    let device = Threads::new();
    let lanes = Lanes::new(&device);
    let (open, gate) = channel::<()>();
    let (done, ended) = channel();
    let owned = device.clone();
    lanes.plan.launch("drop", (), move |()| {
        gate.recv().unwrap();
        drop(owned);
    });
    lanes.forward.wait(&lanes.plan.record());
    lanes.forward.launch("end", (), move |()| done.send(()).unwrap());
    drop((device, lanes));
    open.send(()).unwrap();
    ended.recv_timeout(Duration::from_secs(60)).expect("the other lane ran to its end");
}

/// Lanes and a host thread that wait for a lane which fails all come back.
#[test]
fn a_failure_wakes_whoever_waits() {
    for _ in 0..50 {
        let device = Threads::new();
        let lanes = Lanes::new(&device);
        let (open, gate) = channel::<()>();
        lanes.plan.launch("fail", (), move |()| {
            gate.recv().unwrap();
            panic!("expected by the test");
        });
        let event = lanes.plan.record();
        lanes.schedule.wait(&event);
        lanes.forward.wait(&event);
        lanes.copies.wait(&lanes.forward.record());
        let last = lanes.copies.record();
        let waiting = {
            let device = device.clone();
            std::thread::spawn(move || device.land(&last, Reason::Results))
        };
        open.send(()).unwrap();
        let lost = device.land(&event, Reason::Results).expect_err("the job failed");
        assert_eq!((lost.lane, lost.message.as_str()), (LaneId::Plan, "expected by the test"));
        assert_eq!(waiting.join().expect("no panic outside the lane"), Err(lost));
        // Dropping the device joins its lanes.
    }
}

/// Two host threads with their own handles to the same lanes.
#[test]
fn two_hosts_share_a_device() {
    let device = Threads::new();
    let host = |device: Threads| {
        std::thread::spawn(move || {
            let lanes = Lanes::new(&device);
            let mut table: Shared<u32, Schedule, Threads> = Shared::new(&device, "table", 8);
            let mut out: Readback<u32, Copies, Threads> = Readback::new(&device, "out", 1, 8);
            for step in 0..500 {
                let mut writing = table.write(&lanes.schedule);
                lanes.schedule.launch("fill", writing.view(), move |table| table.fill(step));
                drop(writing);
                let (table, mut out) = (table.read(&lanes.copies), out.fill(&lanes.copies, 8));
                let arguments = (table.view(), out.view());
                lanes.copies.launch("copy", arguments, |(table, out)| out.copy_from_slice(table));
                assert_eq!(out.pending().land(), Ok(vec![step; 8]));
            }
        })
    };
    let hosts = [host(device.clone()), host(device.clone())];
    hosts.into_iter().for_each(|host| host.join().expect("every step gave its number"));
}

/// A job that reads is told apart from one that writes, for checks and traces.
#[test]
fn graphs_say_what_they_touch() {
    let device = Threads::new();
    let lanes = Lanes::new(&device);
    let ids: Shared<u32, Plan, Threads> = Shared::new(&device, "ids", 4);
    let mut state = Local::new(&lanes.forward, "state", 0u32);
    let ids = ids.read(&lanes.forward);
    let graph = lanes.forward.capture("add", (ids.range(1..3), state.on()), |_| ());
    let touches: Vec<_> = graph.touches().iter().map(|t| (t.access, t.range.clone())).collect();
    assert_eq!(touches, [(Access::Read, 1..3), (Access::Write, 0..1)]);
}
