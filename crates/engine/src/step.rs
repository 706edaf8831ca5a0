//! A step's way through the lanes. `Schedule` writes the page table, `Plan` snapshots what the
//! step needs of it, `Forward` runs the step on that snapshot alone, `Copies` brings the results
//! back. Guards order the lanes on the device; only the job that brings the results of a step that was left waits for
//! what runs it.

use crate::forward::{Forward, StepMemory};
use crate::recent::{LaneSpans, Span};
use crate::report::{Aside, Entry, Report};
use device::{
    Copies, DeviceLost, Fence, HostDevice, LaneId, Lanes, Local, Pending, Plan, Readback, Schedule,
    Shared, Staging, StepFence,
};
use schedule::{PlannedRow, RowOutcome, StepPlan, TableWrite};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Steps that may be launched and not landed: one, and the one before it while it lands.
const IN_FLIGHT: usize = 2;

/// The device's memory of an engine.
pub(crate) struct Pipeline<D: HostDevice> {
    lanes: Lanes<D>,
    fence: StepFence<D>,
    /// `[rows, pages_each]`: page ids of every row, in token order.
    page_table: Shared<u32, Schedule, D>,
    pages_each: usize,
    /// Page ids that one step reads, planned row after planned row. A ring: the forward lane may
    /// still read a step's slot while the next step's is written.
    snapshots: [Shared<u32, Plan, D>; IN_FLIGHT],
    /// `[rows]`: tokens with KV.
    lengths: Shared<u32, device::Forward, D>,
    /// `[rows]`: the last token of each row, not yet computed.
    anchors: Shared<u32, device::Forward, D>,
    /// `[planned rows, stride]`: see [`Entry`].
    results: Shared<u32, device::Forward, D>,
    stride: usize,
    forward: Local<Forward, device::Forward>,
    /// Page ids on their way to the page table.
    staging: Staging<u32, Schedule, D>,
    readback: Readback<u32, Copies, D>,
    launched: usize,
}

/// The sizes of a pipeline.
pub(crate) struct Sizes {
    /// Places in the row table.
    pub(crate) rows: usize,
    /// Most pages of one row.
    pub(crate) pages_each: usize,
    /// Widest block.
    pub(crate) width: usize,
}

/// A launched step.
pub(crate) struct InFlight<D: HostDevice> {
    pub(crate) plan: StepPlan,
    results: Pending<u32, D>,
    aside: Receiver<Aside>,
    stride: usize,
    planned: Span,
    spans: LaneSpans,
}

/// What came back from a step.
pub(crate) struct Landed {
    pub(crate) plan: StepPlan,
    /// One entry a planned row.
    pub(crate) outcomes: Vec<RowOutcome>,
    pub(crate) aside: Aside,
    /// The host planned and launched it.
    pub(crate) planned: Span,
    pub(crate) spans: LaneSpans,
}

impl<D: HostDevice> Pipeline<D> {
    pub(crate) fn new(device: &D, forward: Forward, sizes: &Sizes, fence: Fence) -> Pipeline<D> {
        let &Sizes { rows, pages_each, width } = sizes;
        let (lanes, stride) = (Lanes::new(device), Entry::stride(width));
        let snapshot = || Shared::new(device, "page snapshot", rows * pages_each);
        Pipeline {
            fence: StepFence::new(fence),
            page_table: Shared::new(device, "page table", rows * pages_each),
            pages_each,
            snapshots: [snapshot(), snapshot()],
            lengths: Shared::new(device, "lengths", rows),
            anchors: Shared::new(device, "anchors", rows),
            results: Shared::new(device, "results", rows * stride),
            stride,
            forward: Local::new(&lanes.forward, "model", forward),
            staging: Staging::new(device, "page ids", IN_FLIGHT + 1, rows * pages_each),
            readback: Readback::new(device, "landed results", IN_FLIGHT + 1, rows * stride),
            launched: 0,
            lanes,
        }
    }

    pub(crate) fn device(&self) -> &D {
        self.lanes.device()
    }

    /// To be called before a step is planned; blocks only in the ablation.
    ///
    /// # Errors
    /// [`DeviceLost`] when the step before will never end.
    pub(crate) fn before_plan(&mut self) -> Result<(), DeviceLost> {
        self.fence.before_plan(&self.lanes)
    }

    /// Launches a step, whose planning began at `start`, on all lanes and returns at once.
    pub(crate) fn launch(&mut self, plan: StepPlan, start: Duration) -> InFlight<D> {
        let clock = self.device().clock().clone();
        let spans = LaneSpans::new(&clock);
        let slot = self.launched % IN_FLIGHT;
        self.launched += 1;
        self.write_table(&plan, spans.clone());
        self.snapshot(&plan.rows, slot, spans.clone());
        let report = self.run(plan.rows.clone(), slot, spans.clone());
        let words = plan.rows.len() * self.stride;
        self.hand_over(words);
        let (results, aside) = self.read_back(words, report, spans.clone());
        self.fence.launched(self.lanes.forward.record());
        let planned = Span { start, end: clock.now() };
        InFlight { plan, results, aside, stride: self.stride, planned, spans }
    }

    /// `Schedule`: the page ids that the table lacks.
    fn write_table(&mut self, plan: &StepPlan, spans: LaneSpans) {
        if plan.table.pages().is_empty() {
            return;
        }
        let lane = &self.lanes.schedule;
        let staged = self.staging.stage(lane, plan.table.pages());
        let mut writing = self.page_table.write(lane);
        let place = |write: TableWrite<'_>| {
            let first = write.row * self.pages_each + write.first;
            first..first + write.pages.len()
        };
        let places: Vec<Range<usize>> = plan.table.iter().map(place).collect();
        // One job for all, since every launch costs.
        lane.launch("write pages", (writing.view(), staged.view()), move |(table, ids)| {
            spans.during(LaneId::Schedule, || {
                let mut rest = ids;
                for place in places {
                    let (own, others) = rest.split_at(place.len());
                    table[place].copy_from_slice(own);
                    rest = others;
                }
            });
        });
    }

    /// `Plan`: the step's own copy of the page ids it may touch.
    fn snapshot(&mut self, rows: &[PlannedRow], slot: usize, spans: LaneSpans) {
        let lane = &self.lanes.plan;
        let reading = self.page_table.read(lane);
        let own = |row: &PlannedRow| {
            let first = row.row.index * self.pages_each;
            reading.range(first..first + row.pages)
        };
        let mut writing = self.snapshots[slot].write(lane);
        let total = rows.iter().map(|row| row.pages).sum();
        let arguments = (rows.iter().map(own).collect::<Vec<_>>(), writing.range(0..total));
        lane.launch("snapshot pages", arguments, move |(rows, mut snapshot)| {
            spans.during(LaneId::Plan, || {
                for row in rows {
                    let (own, rest) = snapshot.split_at_mut(row.len());
                    own.copy_from_slice(row);
                    snapshot = rest;
                }
            });
        });
    }

    /// `Forward`: the step itself, or its start.
    fn run(&mut self, rows: Vec<PlannedRow>, slot: usize, spans: LaneSpans) -> Receiver<Report> {
        let lane = &self.lanes.forward;
        let reading = self.snapshots[slot].read(lane);
        let mut lengths = self.lengths.write(lane);
        let mut anchors = self.anchors.write(lane);
        let (total, stride) = (rows.iter().map(|row| row.pages).sum(), self.stride);
        let arguments =
            (self.forward.on(), reading.range(0..total), lengths.view(), anchors.view());
        let (send, report) = channel();
        lane.launch("step", arguments, move |(forward, pages, lengths, anchors)| {
            let memory = StepMemory { pages, lengths, anchors, stride };
            let (report, span) = spans.timed(|| forward.run(&rows, memory));
            match report {
                Report::Done(_) => spans.set(LaneId::Forward, span),
                // When it ran is known when it has ended.
                Report::Left(_) => {}
            }
            // Nobody listens any more when the engine is being dropped.
            let _ = send.send(report);
        });
        report
    }

    /// `Forward`: the results, to where the copies lane reads them. A job of its own, so that what
    /// waits for the copy of the step before is not the step: that copy ends while the step runs.
    fn hand_over(&mut self, len: usize) {
        let lane = &self.lanes.forward;
        let mut results = self.results.write(lane);
        lane.launch(
            "hand over",
            (self.forward.on(), results.range(0..len)),
            |(forward, results)| {
                results.copy_from_slice(forward.results());
            },
        );
    }

    /// `Copies`: the results, to the host. Of a step that was left they come by themselves, and are waited for here.
    fn read_back(
        &mut self,
        len: usize,
        report: Receiver<Report>,
        spans: LaneSpans,
    ) -> (Pending<u32, D>, Receiver<Aside>) {
        let (lane, stride) = (&self.lanes.copies, self.stride);
        let reading = self.results.read(lane);
        let mut filling = self.readback.fill(lane, len);
        let arguments = (reading.range(0..len), filling.view());
        let (send, aside) = channel();
        lane.launch("results", arguments, move |(results, landed)| {
            let report = report.try_recv().expect("a step that ran has reported");
            let aside = match report {
                Report::Done(aside) => {
                    spans.during(LaneId::Copies, || landed.copy_from_slice(results));
                    aside
                }
                Report::Left(step) => {
                    step.read();
                    let (aside, ran) = spans.during(LaneId::Copies, || step.report(landed, stride));
                    spans.set(LaneId::Forward, ran);
                    aside
                }
            };
            let _ = send.send(aside);
        });
        (filling.pending(), aside)
    }
}

impl<D: HostDevice> InFlight<D> {
    /// Whether the step has ended. Never blocks.
    pub(crate) fn arrived(&self) -> bool {
        self.results.arrived()
    }

    /// Waits for the step's results: the one wait of the host.
    ///
    /// # Errors
    /// [`DeviceLost`] when a job failed.
    pub(crate) fn land(self) -> Result<Landed, DeviceLost> {
        let words = self.results.land()?;
        let aside = self.aside.try_recv().expect("a step that landed has reported before");
        let outcomes = words.chunks_exact(self.stride).map(Entry::read).collect();
        let InFlight { plan, planned, spans, .. } = self;
        Ok(Landed { plan, outcomes, aside, planned, spans })
    }
}
