//! The engine on the default pair, which is fetched as the program fetches it.

mod golden;
mod lossless;
mod scale;

use device::Cpu;
use fetch::Progress;
use std::path::PathBuf;

/// The files of the default target and drafter.
pub(crate) fn files() -> (PathBuf, PathBuf) {
    let get = |name| match fetch::resolve(name, Progress::for_stderr()) {
        Ok(path) => path,
        Err(error) => panic!("this test needs the default pair, which could not be had: {error}"),
    };
    (get(fetch::DEFAULT_TARGET), get(fetch::DEFAULT_DRAFTER))
}

/// All CPUs.
pub(crate) fn cpu() -> Cpu {
    Cpu::host()
}
