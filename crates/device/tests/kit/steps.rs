//! A loop of overlapped steps on any device, with the values that must come out: rows in, table
//! written, snapshot gathered, forward pass, results out, landed a step late.

use device::{
    Copies, Device, DeviceLost, Fence, Forward, Lanes, Pending, Plan, Readback, Schedule, Shared,
    Space, Staging, StepFence, Usage,
};
use std::time::Duration;

/// What a job of a kit's device reads.
pub(crate) type Slice<'j, K> = <<<K as Kit>::Device as Device>::Space as Space>::Slice<'j, u32>;

/// What a job of a kit's device writes.
pub(crate) type SliceMut<'j, K> =
    <<<K as Kit>::Device as Device>::Space as Space>::SliceMut<'j, u32>;

/// What a job of a kit's device enqueues on.
pub(crate) type Queue<K> = <<K as Kit>::Device as Device>::Queue;

/// The operations that the programs of the tests are made of. Slices of one call have one length,
/// besides the table of a gather.
pub(crate) trait Kit: Clone + Send + Sync + 'static {
    /// Where they run.
    type Device: Device;

    /// `to[i] = from[i]`.
    fn copy(&self, queue: &Queue<Self>, from: Slice<'_, Self>, to: SliceMut<'_, Self>);

    /// `to[i] += from[i]`, wrapping.
    fn add(&self, queue: &Queue<Self>, from: Slice<'_, Self>, to: SliceMut<'_, Self>);

    /// `to[i] = table[ids[i]]`, with every id below the table's length.
    fn gather(
        &self,
        queue: &Queue<Self>,
        table: Slice<'_, Self>,
        ids: Slice<'_, Self>,
        to: SliceMut<'_, Self>,
    );

    /// Keeps the lane busy for `time`.
    fn delay(&self, queue: &Queue<Self>, time: Duration);

    /// The work of a forward pass that takes `time`.
    fn pass(&self, queue: &Queue<Self>, time: Duration) {
        self.delay(queue, time);
    }
}

/// How long the parts of a step take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// The host, before it launches the step.
    pub(crate) planning: Duration,
    /// The host, when it has landed the step before.
    pub(crate) commit: Duration,
    /// Writing the table.
    pub(crate) table: Duration,
    /// The snapshot.
    pub(crate) snapshot: Duration,
    /// The forward pass.
    pub(crate) forward: Duration,
}

/// What a run of steps took.
pub(crate) struct Measured {
    /// From the first plan to the last landing.
    pub(crate) wall: Duration,
    /// What the device counted.
    pub(crate) usage: Usage,
    /// Steps queued before the one ahead had ended.
    pub(crate) led: u32,
}

/// Entries of the table, and of each snapshot.
pub(crate) const ROWS: usize = 64;

/// Entries of the table that one step writes.
const WRITTEN: usize = 24;

struct Loop<'k, K: Kit> {
    kit: &'k K,
    lanes: Lanes<K::Device>,
    rows: Staging<u32, Schedule, K::Device>,
    ids: Staging<u32, Plan, K::Device>,
    table: Shared<u32, Schedule, K::Device>,
    snapshots: [Shared<u32, Plan, K::Device>; 2],
    totals: Shared<u32, Forward, K::Device>,
    out: Readback<u32, Copies, K::Device>,
    model: Model,
}

/// What the device must hold.
struct Model {
    table: [u32; ROWS],
    totals: [u32; ROWS],
}

/// A launched step and what it must bring.
struct Launched<D: Device> {
    pending: Pending<u32, D>,
    want: [u32; ROWS],
}

impl<K: Kit> Loop<'_, K> {
    fn new<'k>(device: &K::Device, kit: &'k K) -> Loop<'k, K> {
        Loop {
            kit,
            lanes: Lanes::new(device),
            rows: Staging::new(device, "rows", 3, WRITTEN),
            ids: Staging::new(device, "ids", 3, ROWS),
            table: Shared::new(device, "table", ROWS),
            snapshots: std::array::from_fn(|_| Shared::new(device, "snapshot", ROWS)),
            totals: Shared::new(device, "totals", ROWS),
            out: Readback::new(device, "out", 2, ROWS),
            model: Model { table: [0; ROWS], totals: [0; ROWS] },
        }
    }

    fn launch(&mut self, step: u32, times: Times) -> Launched<K::Device> {
        self.write_table(step, times.table);
        self.take_snapshot(step, times.snapshot);
        let Loop { kit, lanes, snapshots, totals, out, model, .. } = self;
        {
            let lane = &lanes.forward;
            let snapshot = snapshots[step as usize % 2].read(lane);
            let mut totals = totals.write(lane);
            let (kit, arguments) = ((*kit).clone(), (lane.queue(), snapshot.view(), totals.view()));
            lane.launch("forward", arguments, move |(queue, snapshot, totals)| {
                kit.pass(queue, times.forward);
                kit.add(queue, snapshot, totals);
            });
        }
        let lane = &lanes.copies;
        let (totals, mut filling) = (totals.read(lane), out.fill(lane, ROWS));
        let (kit, arguments) = ((*kit).clone(), (lane.queue(), totals.view(), filling.view()));
        lane.launch("results", arguments, move |(queue, totals, out)| {
            kit.copy(queue, totals, out);
        });
        drop(totals);
        Launched { pending: filling.pending(), want: model.totals }
    }

    fn write_table(&mut self, step: u32, time: Duration) {
        let Loop { kit, lanes, rows, table, model, .. } = self;
        let lane = &lanes.schedule;
        let first = step as usize * 5 % (ROWS - WRITTEN + 1);
        let new: [u32; WRITTEN] =
            std::array::from_fn(|i| step.wrapping_mul(0x9E37_79B9) ^ i as u32);
        model.table[first..first + WRITTEN].copy_from_slice(&new);
        let (staged, mut table) = (rows.stage(lane, &new), table.write(lane));
        let (kit, arguments) =
            ((*kit).clone(), (lane.queue(), staged.view(), table.range(first..first + WRITTEN)));
        lane.launch("table", arguments, move |(queue, rows, table)| {
            kit.delay(queue, time);
            kit.copy(queue, rows, table);
        });
    }

    fn take_snapshot(&mut self, step: u32, time: Duration) {
        let Loop { kit, lanes, ids, table, snapshots, model, .. } = self;
        let lane = &lanes.plan;
        let new: [u32; ROWS] = std::array::from_fn(|i| (i as u32 * 7 + step) % ROWS as u32);
        for (total, id) in model.totals.iter_mut().zip(new) {
            *total = total.wrapping_add(model.table[id as usize]);
        }
        let (staged, table) = (ids.stage(lane, &new), table.read(lane));
        let mut own = snapshots[step as usize % 2].write(lane);
        let (kit, arguments) =
            ((*kit).clone(), (lane.queue(), table.view(), staged.view(), own.view()));
        lane.launch("snapshot", arguments, move |(queue, table, ids, own)| {
            kit.delay(queue, time);
            kit.gather(queue, table, ids, own);
        });
    }
}

impl<D: Device> Launched<D> {
    fn land(self) -> Result<(), DeviceLost> {
        let totals = self.pending.land()?;
        assert_eq!(totals, self.want, "what the step must bring");
        Ok(())
    }
}

/// Runs `steps` steps that take what `times` says of each.
///
/// # Errors
/// [`DeviceLost`] when a job failed.
///
/// # Panics
/// When a step brings a wrong value.
pub(crate) fn run<K: Kit>(
    device: &K::Device,
    kit: &K,
    fence: Fence,
    steps: u32,
    mut times: impl FnMut() -> Times,
) -> Result<Measured, DeviceLost> {
    let mut loops = Loop::new(device, kit);
    let mut order = StepFence::new(fence);
    let (mut before, mut led) = (None::<Launched<K::Device>>, 0);
    let (clock, already) = (device.clock(), device.usage());
    let start = clock.now();
    assert_eq!(already.results.calls + already.fence.calls, 0, "a device of its own");
    for step in 0..steps {
        let times = times();
        order.before_plan(&loops.lanes)?;
        clock.spend(times.planning);
        let launched = loops.launch(step, times);
        order.launched(loops.lanes.forward.record());
        if let Some(before) = before.replace(launched) {
            led += u32::from(!before.pending.arrived());
            before.land()?;
            clock.spend(times.commit);
        }
    }
    before.map_or(Ok(()), Launched::land)?;
    Ok(Measured { wall: clock.now() - start, usage: device.usage(), led })
}
