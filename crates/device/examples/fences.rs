//! The ablation on the CPU's lanes with kernels that only sleep: what a fence costs when nothing
//! else does. `cargo run --release -p slipstream-device --example fences [STEPS]`
//!
//! The host spends 1 ms planning a step and 0.3 ms on what it landed; writing the table takes
//! 0.05 ms, its snapshot 0.2 ms, the forward pass 5 ms.

#[path = "../tests/kit/ablation.rs"]
mod ablation;
#[path = "../tests/kit/host.rs"]
mod host;
#[path = "../tests/kit/steps.rs"]
mod steps;

use device::{DeviceLost, Threads};
use host::HostKit;
use std::time::Duration;
use steps::Times;

fn main() -> Result<(), DeviceLost> {
    let times = Times {
        planning: Duration::from_micros(1_000),
        commit: Duration::from_micros(300),
        table: Duration::from_micros(50),
        snapshot: Duration::from_micros(200),
        forward: Duration::from_micros(5_000),
    };
    let open = || (Threads::new(), HostKit::new());
    ablation::table(open, ablation::steps_asked_for(), times)
}
