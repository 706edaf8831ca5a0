//! Why a command failed, and with which exit code: 2 for what the caller can put right (arguments,
//! models, requests), 1 for what it cannot.

use engine::{EngineLost, Reject};
use fetch::FetchError;
use model::LoadError;
use model::chat::ChatError;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument, a model or a request that cannot be used.
    Input(String),
    /// The engine stopped.
    Engine(EngineLost),
    /// Standard output could not be written.
    Output(io::Error),
    /// `--compare` found the drafted output to differ from the plain one.
    Different,
    /// `trace` found accesses that nothing orders.
    Unordered,
    /// Ctrl-C.
    Interrupted,
}

impl Failure {
    pub(crate) fn input(problem: impl Display) -> Failure {
        Failure::Input(problem.to_string())
    }

    /// Reports the failure on standard error.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::Input(problem) => {
                eprintln!("error: {problem}");
                ExitCode::from(2)
            }
            Failure::Engine(lost) => {
                eprintln!("error: {lost}");
                ExitCode::from(1)
            }
            // The reader has what it wanted (`| head`).
            Failure::Output(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Failure::Output(error) => {
                eprintln!("error: standard output: {error}");
                ExitCode::from(1)
            }
            Failure::Different => {
                eprintln!(
                    "error: the drafted output differs from the plain one, which is a bug: please \
                     report the command and both outputs"
                );
                ExitCode::from(1)
            }
            Failure::Unordered => {
                eprintln!(
                    "error: nothing orders the accesses listed above, which is a bug: please \
                     report the command and the timeline"
                );
                ExitCode::from(1)
            }
            // 128 + SIGINT, as shells report it.
            Failure::Interrupted => ExitCode::from(130),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Output(error)
    }
}

impl From<EngineLost> for Failure {
    fn from(lost: EngineLost) -> Failure {
        Failure::Engine(lost)
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Failure {
        Failure::input(error)
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure::input(error)
    }
}

impl From<Reject> for Failure {
    fn from(error: Reject) -> Failure {
        Failure::input(error)
    }
}

impl From<ChatError> for Failure {
    fn from(error: ChatError) -> Failure {
        Failure::input(error)
    }
}
