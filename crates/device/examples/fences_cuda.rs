//! The ablation on a CUDA card with kernels that only wait: what a fence costs on real streams.
//! `cargo run --release -p slipstream-device --features cuda --example fences_cuda [STEPS]`
//!
//! First with a forward pass of one thread, long and short; then with one that fills the card, with
//! the forward lane's kernels before the others' and with the others' before its own.

#[path = "../tests/kit/ablation.rs"]
mod ablation;
#[path = "../tests/kit/cuda.rs"]
mod kit;
#[path = "../tests/kit/steps.rs"]
mod steps;

use device::LaneId;
use device::cuda::{Cuda, CudaError, CudaOptions, JobTiming};
use kit::{CudaKit, Pass};
use std::error::Error;
use std::time::Duration;
use steps::Times;

/// Blocks of 1,024 threads that one multiprocessor runs at a time.
const BLOCKS_EACH: u32 = 2;

fn open(urgent: &[LaneId], pass: Pass) -> Result<(Cuda, CudaKit<Cuda>), CudaError> {
    let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
    let (urgent, timing) = (urgent.to_vec(), JobTiming::On);
    let cuda = Cuda::new(CudaOptions { urgent, cache, timing, ..CudaOptions::default() })?;
    let kit = CudaKit::new(&cuda, pass)?;
    Ok((cuda, kit))
}

fn main() -> Result<(), Box<dyn Error>> {
    let steps = ablation::steps_asked_for();
    let micros = Duration::from_micros;
    let times = |planning, commit, forward| Times {
        planning: micros(planning),
        commit: micros(commit),
        table: micros(20),
        snapshot: micros(100),
        forward: micros(forward),
    };
    let (cuda, _) = open(&[], Pass::Thread)?;
    println!("{} ({})", cuda.name(), cuda.target());
    let blocks = BLOCKS_EACH * cuda.multiprocessors();
    drop(cuda);
    let table = |urgent: &[LaneId], pass, times| {
        // The first opening has shown that the later ones work.
        let open = || open(urgent, pass).expect("the card opens again");
        println!();
        ablation::table(open, steps, times)
    };
    println!("\nA forward pass of one thread.");
    for (planning, commit, forward) in [(1_000, 300, 5_000), (1_000, 300, 500), (100, 30, 500)] {
        table(&[LaneId::Forward], Pass::Thread, times(planning, commit, forward))?;
    }
    let pass = Pass::Card { blocks, each: micros(50) };
    let others = [LaneId::Schedule, LaneId::Plan, LaneId::Copies];
    for (name, urgent) in [("the forward lane", &[LaneId::Forward][..]), ("the others", &others)] {
        println!("\nA forward pass that fills the card; kernels of {name} go first.");
        for (planning, commit, forward) in [(1_000, 300, 5_000), (100, 30, 500)] {
            table(urgent, pass, times(planning, commit, forward))?;
        }
    }
    Ok(())
}
