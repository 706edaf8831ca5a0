//! `slipstream bench`: what drafting accepts, what it changes (nothing), what it gains, how far all of it
//! is from what the machine can do, and what quantized arithmetic costs in quality.

mod acceptance;
mod bed;
mod ceilings;
mod fences;
pub(crate) mod load;
mod lossless;
pub(crate) mod passes;
pub(crate) mod perplexity;
mod speed;
mod told;
mod workload;

use crate::args::BenchCommand;
use crate::failure::Failure;
use engine::RunError;

pub(crate) fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Acceptance(args) => acceptance::run(args),
        BenchCommand::Ceilings(args) => ceilings::run(args),
        BenchCommand::Fences(args) => fences::run(args),
        BenchCommand::Lossless(args) => lossless::run(args),
        BenchCommand::Passes(args) => passes::run(args),
        BenchCommand::Perplexity(args) => perplexity::run(args),
        BenchCommand::Speed(args) => speed::run(args),
        BenchCommand::Load(args) => load::run(*args),
    }
}

/// The order of what is compared in one of the repeats: that of the one before, turned round (A B
/// B A). What always runs second finds the machine as the first has left it, which was worth some
/// percent.
fn mirrored<T>(mut settings: Vec<T>, repeat: usize) -> Vec<T> {
    if repeat % 2 == 1 {
        settings.reverse();
    }
    settings
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Refused(refused) => refused.into(),
            RunError::Lost(lost) => lost.into(),
        }
    }
}
