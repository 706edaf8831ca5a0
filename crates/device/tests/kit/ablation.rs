//! The ablation: the same steps under each fence, as a table.

use crate::steps::{Kit, Measured, Times, run};
use device::{DeviceLost, Fence, LaneId};
use std::time::Duration;

/// The number of steps that the first argument of the program asks for.
pub(crate) fn steps_asked_for() -> u32 {
    let asked = std::env::args().nth(1);
    asked.map_or(300, |steps| steps.parse().expect("the number of steps is a whole number above 1"))
}

/// Prints what each fence costs `steps` steps that take what `times` says, each on a device of its
/// own.
///
/// # Errors
/// [`DeviceLost`] when a job failed.
pub(crate) fn table<K: Kit>(
    open: impl Fn() -> (K::Device, K),
    steps: u32,
    times: Times,
) -> Result<(), DeviceLost> {
    let Times { planning, commit, table, snapshot, forward } = times;
    println!(
        "planning {planning:?}, commit {commit:?}; table {table:?}, snapshot {snapshot:?}, forward \
         {forward:?}; {steps} steps"
    );
    println!("fence   host blocked ms/step (land + fence)  device idle  steps/s  queued ahead");
    for fence in Fence::ALL {
        let (device, kit) = open();
        let Measured { wall, usage, led } = run(&device, &kit, fence, steps, || times)?;
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
