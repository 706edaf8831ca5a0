//! Compiles CUDA sources for every generation of cards that Slipstream runs on, without a card.
//! `cargo run --release -p slipstream-device --features cuda --example compile_kernels FILE…`
//!
//! Exit code: 0 all compile and the compiler has no remarks, 1 it has, 2 it is not there or a file
//! cannot be read.

use device::cuda::{CudaError, Source, compile};
use std::process::ExitCode;

/// Ampere, Ada, Hopper and Blackwell.
const TARGETS: [&str; 5] = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"];

fn main() -> ExitCode {
    let mut clean = true;
    for path in std::env::args().skip(1) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text.leak(),
            Err(error) => {
                eprintln!("compile_kernels: {path}: {error}");
                return ExitCode::from(2);
            }
        };
        let source = Source { name: path.leak(), text };
        for target in TARGETS {
            match compile(&source, target) {
                Ok(compiled) if compiled.log.is_empty() => {
                    println!("{} for {target}: {} bytes", source.name, compiled.image.len());
                }
                Ok(compiled) => {
                    eprintln!("`{}` for {target}:\n{}", source.name, compiled.log);
                    clean = false;
                }
                Err(error @ CudaError::Source { .. }) => {
                    eprintln!("{error}");
                    clean = false;
                }
                Err(error) => {
                    eprintln!("compile_kernels: {error}");
                    return ExitCode::from(2);
                }
            }
        }
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
