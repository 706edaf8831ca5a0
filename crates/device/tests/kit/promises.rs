//! What every device promises, whatever its jobs enqueue on.

use crate::steps::{Kit, Queue, ROWS, Slice, SliceMut, Times, run};
use device::{
    Copies, Device, DeviceLost, Element, Fence, Forward, Graph, Lane, LaneId, Lanes, Local,
    Pending, Plan, Readback, Reason, Role, Schedule, Shared, Space, Staging,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A tenth of a millisecond: long against what a job enqueues, short for a test.
const SHORT: Duration = Duration::from_micros(100);

/// A device and its operations.
pub(crate) type Open<'o, K> = &'o dyn Fn() -> (<K as Kit>::Device, K);

/// What the panic of `job` said.
pub(crate) fn panic_of(job: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(job)).expect_err("a panic was expected");
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a panic with a text")).to_owned(),
    }
}

/// Waits until everything launched so far has run.
pub(crate) fn settle<D: Device>(lanes: &Lanes<D>) -> Result<(), DeviceLost> {
    let events = [
        lanes.schedule.record(),
        lanes.plan.record(),
        lanes.forward.record(),
        lanes.copies.record(),
    ];
    events.iter().try_for_each(|event| lanes.device().land(event, Reason::Results))
}

/// A way in for arrays that one lane copies to a shared buffer.
struct Inlet<K: Kit, W: Role> {
    kit: K,
    ring: Staging<u32, W, K::Device>,
}

impl<K: Kit, W: Role> Inlet<K, W> {
    fn new(device: &K::Device, kit: &K, slots: usize, len: usize) -> Inlet<K, W> {
        Inlet { kit: kit.clone(), ring: Staging::new(device, "in", slots, len) }
    }

    fn write(
        &mut self,
        lane: &Lane<W, K::Device>,
        to: &mut Shared<u32, W, K::Device>,
        values: &[u32],
    ) {
        let (staged, mut to) = (self.ring.stage(lane, values), to.write(lane));
        let (kit, arguments) =
            (self.kit.clone(), (lane.queue(), staged.view(), to.range(0..values.len())));
        lane.launch("write", arguments, move |(queue, values, to)| kit.copy(queue, values, to));
    }
}

/// Launches a job that waits and then copies a shared buffer out.
fn read<K: Kit, W: Role, R: Role>(
    kit: &K,
    lane: &Lane<R, K::Device>,
    from: &Shared<u32, W, K::Device>,
    out: &mut Readback<u32, R, K::Device>,
    after: Duration,
) -> Pending<u32, K::Device> {
    let (from, mut filling) = (from.read(lane), out.fill(lane, from.len()));
    let (kit, arguments) = (kit.clone(), (lane.queue(), from.view(), filling.view()));
    lane.launch("read", arguments, move |(queue, from, out)| {
        kit.delay(queue, after);
        kit.copy(queue, from, out);
    });
    filling.pending()
}

pub(crate) fn a_lane_runs_its_jobs_in_order<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    let mut total: Shared<u32, Plan, K::Device> = Shared::new(&device, "total", 3);
    let mut addend: Shared<u32, Plan, K::Device> = Shared::new(&device, "addend", 3);
    let mut inlet = Inlet::new(&device, &kit, 1, 3);
    inlet.write(&lanes.plan, &mut addend, &[1, 2, 3]);
    for _ in 0..100 {
        let (addend, mut to) = (addend.read(&lanes.plan), total.write(&lanes.plan));
        let (kit, arguments) = (kit.clone(), (lanes.plan.queue(), addend.view(), to.view()));
        lanes.plan.launch("add", arguments, move |(queue, addend, to)| kit.add(queue, addend, to));
    }
    let mut out = Readback::new(&device, "out", 1, 3);
    let pending = read(&kit, &lanes.plan, &total, &mut out, Duration::ZERO);
    assert_eq!(pending.land(), Ok(vec![100, 200, 300]));
}

/// A lane that waits for an event of another comes after it, and the host goes on at once.
pub(crate) fn a_wait_orders_two_lanes<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    for _ in 0..20 {
        let delay = kit.clone();
        lanes.copies.launch("delay", lanes.copies.queue(), move |queue| delay.delay(queue, SHORT));
        let first = lanes.copies.record();
        lanes.schedule.wait(&first);
        let second = lanes.schedule.record();
        device.land(&second, Reason::Results).expect("nothing failed");
        assert!(device.reached(&first), "the event it waited for came before");
    }
}

/// Four lanes read a table, each as late as it likes, while the next write is launched already.
/// Returns how many of the values that were read were wrong.
pub(crate) fn late_readers<K: Kit>(
    device: &K::Device,
    kit: &K,
    steps: u32,
    late: [Duration; 4],
) -> u32 {
    let lanes = Lanes::new(device);
    let mut table: Shared<u32, Schedule, K::Device> = Shared::new(device, "table", ROWS);
    let mut inlet = Inlet::new(device, kit, steps as usize, ROWS);
    let slots = steps as usize;
    let mut schedule = Readback::new(device, "schedule", slots, ROWS);
    let mut plan = Readback::new(device, "plan", slots, ROWS);
    let mut forward = Readback::new(device, "forward", slots, ROWS);
    let mut copies = Readback::new(device, "copies", slots, ROWS);
    let mut pending = Vec::new();
    for step in 0..steps {
        inlet.write(&lanes.schedule, &mut table, &[step + 1; ROWS]);
        pending.push([
            read(kit, &lanes.forward, &table, &mut forward, late[0]),
            read(kit, &lanes.plan, &table, &mut plan, late[1]),
            read(kit, &lanes.copies, &table, &mut copies, late[2]),
            read(kit, &lanes.schedule, &table, &mut schedule, late[3]),
        ]);
    }
    let mut wrong = 0;
    for (pending, step) in pending.into_iter().zip(1..) {
        for pending in pending {
            let values = pending.land().expect("nothing failed");
            wrong += values.iter().filter(|value| **value != step).count() as u32;
        }
    }
    wrong
}

pub(crate) fn a_write_waits_for_every_reader<K: Kit>(open: Open<'_, K>) {
    for first in 0..3 {
        let (device, kit) = open();
        let mut late = [Duration::ZERO; 4];
        late[first] = 5 * SHORT;
        assert_eq!(late_readers(&device, &kit, 30, late), 0);
    }
}

/// Slots of both rings are used again and again, by arrays of other lengths.
pub(crate) fn rings_are_used_again<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    let mut rows: Staging<u32, Forward, K::Device> = Staging::new(&device, "rows", 3, ROWS);
    let mut out: Readback<u32, Forward, K::Device> = Readback::new(&device, "out", 2, ROWS);
    let mut before = None;
    for step in 0..300u32 {
        let values: Vec<u32> = (0..=step % ROWS as u32).map(|i| step * 1_000 + i).collect();
        let staged = rows.stage(&lanes.forward, &values);
        let mut filling = out.fill(&lanes.forward, values.len());
        let (kit, arguments) =
            (kit.clone(), (lanes.forward.queue(), staged.view(), filling.view()));
        lanes.forward.launch("echo", arguments, move |(queue, from, to)| kit.copy(queue, from, to));
        drop(staged);
        if let Some((before, values)) = before.replace((filling.pending(), values)) {
            assert_eq!(Pending::land(before), Ok(values));
        }
    }
}

/// A source of choices (xorshift64*, Vigna 2016).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    /// Mostly nothing, at times up to half a millisecond.
    fn delay(&mut self) -> Duration {
        Duration::from_micros(if self.below(4) == 0 { self.below(500) } else { 0 })
    }
}

/// Thousands of overlapped steps whose parts take as long as they like.
pub(crate) fn steps_under_random_delays<K: Kit>(open: Open<'_, K>, steps: u32) {
    for fence in Fence::ALL {
        let (device, kit) = open();
        let mut choices = Choices(0x5EED + u64::from(steps));
        let times = || Times {
            planning: choices.delay(),
            commit: choices.delay(),
            table: choices.delay(),
            snapshot: choices.delay(),
            forward: choices.delay(),
        };
        let measured = run(&device, &kit, fence, steps, times).expect("nothing failed");
        let usage = measured.usage;
        assert_eq!(usage.results.calls, u64::from(steps));
        let fences = if fence == Fence::SelfFence { u64::from(steps) - 1 } else { 0 };
        assert_eq!(usage.fence.calls, fences, "{fence}");
        assert!(measured.led < steps && !measured.wall.is_zero());
    }
}

/// One step's work on its slot of a ring: what is captured, and what is launched eagerly.
fn work<K: Kit>(kit: &K, queue: &Queue<K>, from: Slice<'_, K>, to: SliceMut<'_, K>) {
    kit.delay(queue, SHORT);
    kit.add(queue, from, to);
}

/// Steps whose forward pass is a graph, one a slot of the metadata ring, give what the same steps
/// launched eagerly give.
pub(crate) fn a_replayed_graph_equals_eager_work<K: Kit>(open: Open<'_, K>) {
    #[derive(PartialEq, Eq)]
    enum Work {
        Eager,
        Replayed,
    }
    let total = |how: Work| {
        let (device, kit) = open();
        let lanes = Lanes::new(&device);
        let lane = &lanes.forward;
        let mut ring: [Shared<u32, Plan, K::Device>; 2] =
            std::array::from_fn(|_| Shared::new(&device, "metadata", 8));
        let mut total: Shared<u32, Forward, K::Device> = Shared::new(&device, "total", 8);
        let graphs: [Graph<_, _, _>; 2] = std::array::from_fn(|slot| {
            let (own, mut to) = (ring[slot].read(lane), total.write(lane));
            let (kit, arguments) = (kit.clone(), (lane.queue(), own.view(), to.view()));
            lane.capture("step", arguments, move |(queue, own, to)| work(&kit, queue, own, to))
        });
        let mut inlet = Inlet::new(&device, &kit, 200, 8);
        for step in 0..200u32 {
            let slot = step as usize % 2;
            let values: [u32; 8] = std::array::from_fn(|i| step * 10 + i as u32);
            inlet.write(&lanes.plan, &mut ring[slot], &values);
            let (own, mut to) = (ring[slot].read(lane), total.write(lane));
            let (kit, arguments) = (kit.clone(), (lane.queue(), own.view(), to.view()));
            if how == Work::Replayed {
                lane.replay(&graphs[slot], arguments);
            } else {
                lane.launch("step", arguments, move |(queue, own, to)| work(&kit, queue, own, to));
            }
        }
        // The other slot's graph bakes in the other slot.
        let (other, mut to) = (ring[1].read(lane), total.write(lane));
        let said = panic_of(|| lane.replay(&graphs[0], (lane.queue(), other.view(), to.view())));
        assert!(said.contains("the graph `step` bakes in"), "{said}");
        drop((other, to));
        let mut out = Readback::new(&device, "out", 1, 8);
        read(&kit, &lanes.forward, &total, &mut out, Duration::ZERO).land()
    };
    let want: Vec<u32> = (0..8).map(|i| (0..200).map(|step| step * 10 + i).sum()).collect();
    assert_eq!(total(Work::Eager), Ok(want.clone()));
    assert_eq!(total(Work::Replayed), Ok(want));
}

/// Buffers may go while what was launched with them is still to run.
pub(crate) fn what_jobs_use_outlives_its_owner<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    let mut out = Readback::new(&device, "out", 20, ROWS);
    let mut pending = Vec::new();
    for step in 0..20u32 {
        let mut table: Shared<u32, Plan, K::Device> = Shared::new(&device, "table", ROWS);
        let mut inlet = Inlet::new(&device, &kit, 1, ROWS);
        inlet.write(&lanes.plan, &mut table, &[step; ROWS]);
        pending.push(read(&kit, &lanes.copies, &table, &mut out, SHORT));
    }
    for (pending, step) in pending.into_iter().zip(0..) {
        assert_eq!(pending.land(), Ok(vec![step; ROWS]));
    }
}

/// New buffers hold default elements, also where dropped ones were.
pub(crate) fn new_buffers_hold_defaults<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    let mut out = Readback::new(&device, "out", 1, 1_000);
    for step in 0..5 {
        let mut table: Shared<u32, Plan, K::Device> = Shared::new(&device, "table", 1_000);
        let fresh = read(&kit, &lanes.plan, &table, &mut out, Duration::ZERO);
        assert_eq!(fresh.land(), Ok(vec![0; 1_000]), "buffer {step}");
        let mut inlet = Inlet::new(&device, &kit, 1, 1_000);
        inlet.write(&lanes.plan, &mut table, &[7; 1_000]);
        settle(&lanes).expect("nothing failed");
    }
    // Elements that are not numbers, and lengths of all kinds.
    for len in [0, 1, 2, 3, 1_025] {
        let pinned = device.alloc_pinned::<Option<u16>>("options", len);
        assert_eq!(<K::Device as Device>::Space::buffer(&pinned).len, len);
        // SAFETY: no job was launched with it.
        assert_eq!(unsafe { device.load(&pinned, len) }, vec![None; len]);
    }
    fn buffer_of<D: Device, T: Element>(device: &D) -> usize {
        D::Space::buffer(&device.alloc::<T>("empty", 0)).len
    }
    assert_eq!(buffer_of::<K::Device, u64>(&device), 0);
}

/// A failed job loses the device: nothing hangs, and later work is accepted and not done.
pub(crate) fn a_panic_loses_the_device<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let lanes = Lanes::new(&device);
    let mut table: Shared<u32, Schedule, K::Device> = Shared::new(&device, "table", 4);
    let mut writing = table.write(&lanes.schedule);
    let arguments = (lanes.schedule.queue(), writing.view());
    lanes.schedule.launch("break", arguments, |_| panic!("expected by the test"));
    drop(writing);
    let mut out = Readback::new(&device, "out", 1, 4);
    let lost = DeviceLost {
        lane: LaneId::Schedule,
        job: "break",
        message: "expected by the test".to_owned(),
    };
    for _ in 0..3 {
        let pending = read(&kit, &lanes.forward, &table, &mut out, Duration::ZERO);
        assert_eq!(pending.land(), Err(lost.clone()));
    }
    assert_eq!(device.lost(), Some(lost.clone()));
    let mut inlet = Inlet::new(&device, &kit, 1, 4);
    for _ in 0..3 {
        inlet.write(&lanes.schedule, &mut table, &[1; 4]);
    }
    assert_eq!(settle(&lanes), Err(lost));
}

/// Launches of a job come after it; the device cannot be waited for inside.
pub(crate) fn a_job_may_launch_and_must_not_land<K: Kit>(open: Open<'_, K>) {
    let (device, _) = open();
    let (lanes, inner) = (Lanes::new(&device), Lanes::new(&device));
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    let mut state = Local::new(&lanes.forward, "state", 0u32);
    lanes.forward.launch("outer", state.on(), move |state| {
        let inside = counted.clone();
        inner.forward.launch("inner", (), move |()| {
            // The outer job has ended: a lane runs one job at a time.
            assert_eq!(inside.load(Ordering::SeqCst), 1);
            inside.store(2, Ordering::SeqCst);
        });
        inner.plan.wait(&inner.forward.record());
        *state += 1;
        counted.store(*state, Ordering::SeqCst);
    });
    // Twice: the inner job is queued once the outer one has run.
    settle(&lanes).expect("nothing failed");
    settle(&lanes).expect("nothing failed");
    assert_eq!(count.load(Ordering::SeqCst), 2);
    let inner = device.clone();
    lanes.forward.launch("wait", (), move |()| {
        let event = inner.record(LaneId::Plan);
        inner.land(&event, Reason::Results).expect("a job cannot land");
    });
    let lost = settle(&lanes).expect_err("the job panicked");
    assert_eq!(lost.message, "a job must not wait for its own device");
}

/// Whatever belongs to one device is refused by another of the same kind.
pub(crate) fn devices_do_not_mix<K: Kit>(open: Open<'_, K>) {
    let ((a, _), (b, _)) = (open(), open());
    let (ours, theirs) = (Lanes::new(&a), Lanes::new(&b));
    let mut table: Shared<u32, Schedule, K::Device> = Shared::new(&a, "table", 4);
    let mut rows: Staging<u32, Schedule, K::Device> = Staging::new(&a, "rows", 1, 1);
    let mut out: Readback<u32, Schedule, K::Device> = Readback::new(&a, "out", 1, 1);
    let event = ours.forward.record();
    let said = [
        panic_of(|| drop(table.read(&theirs.forward))),
        panic_of(|| drop(rows.stage(&theirs.schedule, &[1]))),
        panic_of(|| drop(out.fill(&theirs.schedule, 1))),
        panic_of(|| theirs.forward.launch("job", ours.forward.queue(), |_| ())),
        panic_of(|| theirs.forward.launch("job", table.read(&ours.forward).view(), |_| ())),
        panic_of(|| theirs.schedule.launch("job", table.write(&ours.schedule).view(), |_| ())),
        panic_of(|| theirs.plan.wait(&event)),
        panic_of(|| assert!(!b.reached(&event))),
        panic_of(|| b.land(&event, Reason::Results).expect("a device of its own")),
    ];
    for said in said {
        assert!(said.contains("expected something of device 0x"), "{said}");
    }
}

/// Two host threads with their own handles to the same lanes.
pub(crate) fn two_hosts_share_a_device<K: Kit>(open: Open<'_, K>) {
    let (device, kit) = open();
    let host = |device: K::Device, kit: K| {
        std::thread::spawn(move || {
            let lanes = Lanes::new(&device);
            let mut table: Shared<u32, Schedule, K::Device> = Shared::new(&device, "table", 8);
            let mut out: Readback<u32, Copies, K::Device> = Readback::new(&device, "out", 1, 8);
            let mut inlet = Inlet::new(&device, &kit, 2, 8);
            for step in 0..200 {
                inlet.write(&lanes.schedule, &mut table, &[step; 8]);
                let pending = read(&kit, &lanes.copies, &table, &mut out, Duration::ZERO);
                assert_eq!(pending.land(), Ok(vec![step; 8]));
            }
        })
    };
    let hosts = [host(device.clone(), kit.clone()), host(device, kit)];
    hosts.into_iter().for_each(|host| host.join().expect("every step gave its number"));
}
