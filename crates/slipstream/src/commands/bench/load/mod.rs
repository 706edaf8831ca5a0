//! `slipstream bench load`: many requests on the engine in this process, and what became of them:
//! throughput, latencies, acceptance, host and device time, memory. No HTTP.
//!
//! ```text
//! args → items (drawn, or read from a trace) → compare: play, A B B A → figures → text, JSON, page
//! ```

mod args;
mod compare;
mod figures;
mod items;
mod lengths;
mod page;
mod play;
mod report;
mod text;
mod trace;
mod truth;

pub(crate) use args::LoadArgs;

use crate::failure::Failure;
use crate::session::load_timed;
use args::OutputArgs;
use compare::{Comparison, Run};
use report::Report;
use std::fs::{self, OpenOptions};
use std::io::{self, Write, stdout};
use std::path::{Path, PathBuf};

pub(crate) fn run(args: LoadArgs) -> Result<(), Failure> {
    let outputs = Outputs::check(&args.output)?;
    let pair = load_timed(&args.model, args.settings.timing())?;
    let items = items::build(&args.requests, args.arrivals.trace.as_deref(), &pair)?;
    let mut comparison = Comparison::start(&args, &items, pair)?;
    let runs = comparison.run(&mut tell)?;
    let report = Report::new(&args, &items, comparison.info(), &runs);
    let arrivals: Vec<_> = runs[0].played.answers.iter().map(|answer| answer.arrived).collect();
    outputs.write(&report, || trace::lines(&items, &arrivals))?;
    if report.outputs_equal { Ok(()) } else { Err(Failure::Different) }
}

/// Shows on standard error that a run has ended: a comparison may take long.
fn tell(run: &Run) {
    let (setting, wall) = (run.setting, run.played.wall.as_secs_f64());
    let (mode, fence) = (setting.way.mode.name(), setting.fence);
    let simulation = setting.way.simulation.map_or(String::new(), |i| format!(" {}", i + 1));
    let (pacing, repeat) = (run.pacing, run.repeat + 1);
    eprintln!("{pacing}, {mode}{simulation}, fence {fence}, run {repeat}: {wall:.1} s");
}

/// A file that an option names.
struct Output {
    flag: &'static str,
    path: PathBuf,
}

impl Output {
    /// Makes sure that the file can be written, and leaves what it holds.
    fn check(flag: &'static str, path: &Path) -> Result<Output, Failure> {
        let output = Output { flag, path: path.to_owned() };
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map(|_| ()).map_err(|error| output.failed(&error))?;
        Ok(output)
    }

    fn write(self, text: &str) -> Result<(), Failure> {
        fs::write(&self.path, text).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::input(format!("{} {}: {error}", self.flag, self.path.display()))
    }
}

/// Where the report goes. The files are opened before anything is measured, so that a wrong path
/// costs no measurement.
struct Outputs {
    stdout: Stdout,
    json: Option<Output>,
    html: Option<Output>,
    trace: Option<Output>,
}

/// What goes to standard output.
#[derive(Clone, Copy)]
enum Stdout {
    Table,
    Json,
}

impl Outputs {
    fn check(args: &OutputArgs) -> Result<Outputs, Failure> {
        let check =
            |flag, path: Option<&PathBuf>| path.map(|path| Output::check(flag, path)).transpose();
        let (stdout, json) = match &args.json {
            Some(path) if path == Path::new("-") => (Stdout::Json, None),
            other => (Stdout::Table, other.as_ref()),
        };
        Ok(Outputs {
            stdout,
            json: check("--json", json)?,
            html: check("--html", args.html.as_ref())?,
            trace: check("--save-trace", args.save_trace.as_ref())?,
        })
    }

    fn write(self, report: &Report, trace: impl FnOnce() -> String) -> Result<(), Failure> {
        let json = || {
            let json = serde_json::to_string_pretty(report).expect("reports have text keys only");
            json + "\n"
        };
        self.trace.map_or(Ok(()), |file| file.write(&trace()))?;
        self.html.map_or(Ok(()), |file| file.write(&page::page(report)))?;
        self.json.map_or(Ok(()), |file| file.write(&json()))?;
        let text = match self.stdout {
            Stdout::Table => text::text(report),
            Stdout::Json => json(),
        };
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}
