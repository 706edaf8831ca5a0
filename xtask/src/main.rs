//! Checks of the house that no compiler makes: `cargo run -p xtask -- tidy`.
//!
//! Exit code: 0 clean, 1 findings, 2 the check itself could not run.

mod report;
mod tidy;
mod tree;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let task = std::env::args().nth(1).unwrap_or_default();
    if task != "tidy" {
        eprintln!("xtask: unknown task {task:?}: the only one is `tidy`");
        return ExitCode::from(2);
    }
    // xtask lies one folder below the root of the repository.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent folder");
    match tree::load(root) {
        Ok(files) => report::print(&tidy::check(&files)),
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::from(2)
        }
    }
}
