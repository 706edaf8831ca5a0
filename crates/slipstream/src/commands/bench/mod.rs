//! `slipstream bench`: what drafting accepts, what it changes (nothing), and what it gains.

mod acceptance;
mod fences;
pub(crate) mod load;
mod lossless;
mod speed;
mod workload;

use crate::args::BenchCommand;
use crate::failure::Failure;
use engine::RunError;

pub(crate) fn run(command: BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Acceptance(args) => acceptance::run(args),
        BenchCommand::Fences(args) => fences::run(args),
        BenchCommand::Lossless(args) => lossless::run(args),
        BenchCommand::Speed(args) => speed::run(args),
        BenchCommand::Load(args) => load::run(*args),
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        match error {
            RunError::Refused(refused) => refused.into(),
            RunError::Lost(lost) => lost.into(),
        }
    }
}
