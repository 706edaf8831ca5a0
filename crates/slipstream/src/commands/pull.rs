//! `slipstream pull`: fetches models and says where they lie.

use crate::args::PullArgs;
use crate::failure::Failure;
use fetch::{DEFAULT_DRAFTER, DEFAULT_TARGET, Effort, Progress, Sources};
use std::io::{Write, stdout};

pub(crate) fn run(args: PullArgs) -> Result<(), Failure> {
    let sources = Sources::from_env()?;
    let effort = if args.verify { Effort::Verify } else { Effort::UseLocal };
    let names = match &args.name {
        Some(name) => vec![name.as_str()],
        None => vec![DEFAULT_TARGET, DEFAULT_DRAFTER],
    };
    for name in names {
        let path = sources.resolve(name, effort, Progress::for_stderr())?;
        writeln!(stdout(), "{name}: {}", path.display())?;
    }
    Ok(())
}
