//! The ablation with kernels that do nothing but take time: what a fence costs when nothing else
//! does. On the CPU's lanes, or by the simulated device's clock, which gives the same figures on
//! every run. `cargo run --release -p slipstream-device --example fences [STEPS] [cpu|sim]`
//!
//! The host spends 1 ms planning a step and 0.3 ms on what it landed; writing the table takes
//! 0.05 ms, its snapshot 0.2 ms, the forward pass 5 ms.

#[path = "../tests/kit/ablation.rs"]
mod ablation;
#[path = "../tests/kit/host.rs"]
mod host;
#[path = "../tests/kit/steps.rs"]
mod steps;

use device::{DeviceLost, HostDevice, Sim, SimOptions, SimOrder, Threads};
use host::HostKit;
use std::time::Duration;
use steps::Times;

fn main() -> Result<(), DeviceLost> {
    match std::env::args().nth(2).as_deref() {
        None | Some("cpu") => table(Threads::new),
        Some("sim") => {
            println!("virtual time");
            let options = SimOptions { order: SimOrder::Timed, ..SimOptions::default() };
            table(|| Sim::with(options))
        }
        Some(other) => panic!("no device is named `{other}`: use cpu or sim"),
    }
}

fn table<D: HostDevice>(device: impl Fn() -> D) -> Result<(), DeviceLost> {
    let times = Times {
        planning: Duration::from_micros(1_000),
        commit: Duration::from_micros(300),
        table: Duration::from_micros(50),
        snapshot: Duration::from_micros(200),
        forward: Duration::from_micros(5_000),
    };
    let open = || {
        let device = device();
        let kit = HostKit::new(&device);
        (device, kit)
    };
    ablation::table(open, ablation::steps_asked_for(), times)
}
