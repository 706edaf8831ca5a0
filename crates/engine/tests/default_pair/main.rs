//! The engine on the default pair, which is fetched as the program fetches it.

mod golden;
#[path = "../kit/default_pair.rs"]
mod kit;
mod lossless;
mod scale;

use device::Cpu;
pub(crate) use kit::files;

/// All CPUs.
pub(crate) fn cpu() -> Cpu {
    Cpu::host()
}
