//! The program as people and scripts run it, with the default pair. Tests that need the pair fetch
//! it as the program does, and fail with a sentence when they cannot.

mod damage;
mod load;
mod pull;
mod quality;
mod runs;
#[cfg(unix)]
mod serve;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The target's GGUF file.
fn target() -> PathBuf {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| fetched(fetch::DEFAULT_TARGET)).clone()
}

/// The drafter's folder.
fn drafter() -> PathBuf {
    static DRAFTER: OnceLock<PathBuf> = OnceLock::new();
    DRAFTER.get_or_init(|| fetched(fetch::DEFAULT_DRAFTER)).clone()
}

fn fetched(name: &str) -> PathBuf {
    match fetch::resolve(name, fetch::Progress::Lines) {
        Ok(path) => path,
        Err(error) => panic!("this test needs the default pair: {error}"),
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slipstream"));
    command.args(arguments).stdin(Stdio::null());
    for variable in [
        "NO_COLOR",
        "CLICOLOR_FORCE",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ] {
        command.env_remove(variable);
    }
    command
}

/// What a run said and how it ended.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Run {
    /// Demands success.
    fn ok(self) -> Run {
        assert_eq!(self.code, Some(0), "standard error: {}", self.err);
        self
    }

    /// Demands one error, exit code 2, no panic, and each of `parts` in what was said.
    fn refused(self, parts: &[&str]) {
        let Run { code, out, err } = self;
        assert_eq!(code, Some(2), "standard error: {err}");
        assert!(!err.contains("panicked"), "{err}");
        let errors = err.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, 1, "one error, not {err}");
        for part in parts {
            assert!(err.contains(part), "no {part:?} in {err}");
        }
        assert_eq!(out, "", "an error leaves standard output empty");
    }
}

fn run(arguments: &[&str]) -> Run {
    command(arguments).output().expect("the program starts").into()
}

/// Runs with `input` on standard input.
fn run_with_input(arguments: &[&str], input: &str) -> Run {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it was asked for");
    // A program that ends before it has read everything is judged by what it said.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the program ends").into()
}
