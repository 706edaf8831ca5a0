//! Compiles every kernel for every generation of cards that Slipstream runs on, without a card.
//! `cargo run --release -p slipstream-kernels --features cuda --example compile_all`
//!
//! Exit code: 0 all compile and the compiler has no remarks, 1 otherwise.

use device::cuda::compile;
use kernels::cuda::SOURCES;
use std::process::ExitCode;

/// Ampere, Ada, Hopper and Blackwell.
const TARGETS: [&str; 5] = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"];

fn main() -> ExitCode {
    let mut clean = true;
    for source in &SOURCES {
        for target in TARGETS {
            match compile(source, target) {
                Ok(compiled) if compiled.log.is_empty() => {
                    println!("{} for {target}: {} bytes", source.name, compiled.image.len());
                }
                Ok(compiled) => {
                    eprintln!("`{}` for {target}:\n{}", source.name, compiled.log);
                    clean = false;
                }
                Err(error) => {
                    eprintln!("{error}");
                    clean = false;
                }
            }
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
