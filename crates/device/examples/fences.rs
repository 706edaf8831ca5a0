//! The ablation on the CPU's lanes with kernels that only sleep: what a fence costs when nothing
//! else does. `cargo run --release -p slipstream-device --example fences [STEPS]`
//!
//! The host spends 1 ms planning a step and 0.3 ms on what it landed; writing the table takes
//! 0.05 ms, its snapshot 0.2 ms, the forward pass 5 ms.

use device::{
    Device, DeviceLost, Fence, Forward, LaneId, Lanes, Local, Pending, Plan, Readback, Schedule,
    Shared, Staging, StepFence, Threads, Usage,
};
use std::time::{Duration, Instant};

const PLANNING: Duration = Duration::from_micros(1_000);
const COMMIT: Duration = Duration::from_micros(300);
const TABLE: Duration = Duration::from_micros(50);
const SNAPSHOT: Duration = Duration::from_micros(200);
const FORWARD: Duration = Duration::from_micros(5_000);

const ROWS: usize = 64;

/// What a run of steps took.
struct Measured {
    wall: Duration,
    usage: Usage,
    /// Steps queued before the one ahead had ended.
    led: u32,
}

fn main() -> Result<(), DeviceLost> {
    let steps = std::env::args()
        .nth(1)
        .map_or(300, |steps| steps.parse().expect("the number of steps is a whole number above 1"));
    println!("fence   host blocked ms/step (land + fence)  device idle  steps/s  queued ahead");
    for fence in Fence::ALL {
        let Measured { wall, usage, led } = run(fence, steps)?;
        let per_step = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(steps);
        let (land, own) = (per_step(usage.results.time), per_step(usage.fence.time));
        let busy = usage.busy[LaneId::Forward.index()].as_secs_f64() / wall.as_secs_f64();
        println!(
            "{:<7} {:>6.2} ({land:.2} + {own:.2}) {:>27.1} % {:>8.1} {:>11.1} %",
            fence.name(),
            land + own,
            100.0 * (1.0 - busy),
            f64::from(steps) / wall.as_secs_f64(),
            100.0 * f64::from(led) / f64::from(steps - 1),
        );
    }
    Ok(())
}

fn run(fence: Fence, steps: u32) -> Result<Measured, DeviceLost> {
    let device = Threads::new();
    let lanes = Lanes::new(&device);
    let mut rows: Staging<u32, Schedule, Threads> = Staging::new(&device, "rows", 3, ROWS);
    let mut table: Shared<u32, Schedule, Threads> = Shared::new(&device, "table", ROWS);
    let mut metadata: [Shared<u32, Plan, Threads>; 2] =
        std::array::from_fn(|_| Shared::new(&device, "metadata", ROWS));
    let mut out: Readback<u32, Forward, Threads> = Readback::new(&device, "out", 2, 1);
    let mut done = Local::new(&lanes.forward, "done", 0u32);
    let mut order = StepFence::new(fence);
    let (mut before, mut led) = (None::<Pending<u32, Threads>>, 0);
    let start = Instant::now();
    for step in 0..steps {
        order.before_plan(&lanes)?;
        std::thread::sleep(PLANNING);
        {
            let rows = rows.stage(&lanes.schedule, &[step; ROWS]);
            let mut table = table.write(&lanes.schedule);
            lanes.schedule.launch("table", (rows.view(), table.view()), |(rows, table)| {
                std::thread::sleep(TABLE);
                table.copy_from_slice(rows);
            });
        }
        let metadata = &mut metadata[step as usize % 2];
        {
            let (table, mut own) = (table.read(&lanes.plan), metadata.write(&lanes.plan));
            lanes.plan.launch("snapshot", (table.view(), own.view()), |(table, own)| {
                std::thread::sleep(SNAPSHOT);
                own.copy_from_slice(table);
            });
        }
        let (metadata, mut filling) = (metadata.read(&lanes.forward), out.fill(&lanes.forward, 1));
        let arguments = (metadata.view(), done.on(), filling.view());
        lanes.forward.launch("forward", arguments, move |(metadata, done, out)| {
            std::thread::sleep(FORWARD);
            assert_eq!(metadata[ROWS - 1], *done, "the step's own rows");
            *done += 1;
            out[0] = *done;
        });
        drop(metadata);
        let pending = filling.pending();
        order.launched(pending.event().clone());
        if let Some(before) = before.replace(pending) {
            led += u32::from(!before.arrived());
            before.land()?;
            std::thread::sleep(COMMIT);
        }
    }
    if let Some(last) = before {
        last.land()?;
    }
    Ok(Measured { wall: start.elapsed(), usage: device.usage(), led })
}
