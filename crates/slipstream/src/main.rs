//! The command line of Slipstream. Models are found by `fetch`, tokens made by `engine`; here are
//! arguments, terminals, and what people and scripts read.

mod args;
mod commands;
mod failure;
mod interrupt;
mod render;
mod repl;
mod session;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Chat(args) => commands::chat::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Serve(args) => commands::serve::run(*args),
        Command::Pull(args) => commands::pull::run(args),
        Command::Models => commands::models::run(),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Bench(command) => commands::bench::run(command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
