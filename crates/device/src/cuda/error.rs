//! What can go wrong before a CUDA device runs, each with its remedy.

use std::fmt;

/// Why there is no CUDA device, or no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaError {
    /// The driver's library was not found.
    NoDriver,
    /// The driver speaks an older version of CUDA than this program (versions as the driver
    /// numbers them: 1000 · major + 10 · minor).
    OldDriver {
        /// What the driver speaks.
        found: i32,
        /// What this program needs.
        needed: i32,
    },
    /// No card of that number.
    NoCard {
        /// The number, from 0.
        card: usize,
        /// Cards that the driver shows.
        found: usize,
    },
    /// The card is older than what the kernels are written for.
    OldCard {
        /// Its name.
        name: String,
        /// Its compute capability, major and minor.
        capability: (i32, i32),
    },
    /// The run-time compiler's library was not found.
    NoCompiler,
    /// The run-time compiler is older than the card.
    OldCompiler {
        /// Its version, major and minor.
        version: (i32, i32),
        /// The card's target, such as `sm_90a`.
        target: String,
    },
    /// The compiler refused a source.
    Source {
        /// Its name.
        name: &'static str,
        /// The target.
        target: String,
        /// What the compiler said.
        log: String,
    },
    /// A module has no function of that name with those parameters.
    Kernel {
        /// The function.
        name: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The driver or the compiler failed.
    Driver {
        /// At what.
        doing: &'static str,
        /// Its text.
        said: String,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cuda = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
        match self {
            CudaError::NoDriver => f.write_str(
                "no NVIDIA driver: its library `libcuda` was not found. Install the driver, or add \
                 the library's folder to LD_LIBRARY_PATH",
            ),
            CudaError::OldDriver { found, needed } => write!(
                f,
                "the NVIDIA driver is too old: it speaks CUDA {}, and {} or later is needed. \
                 Update the driver",
                cuda(*found),
                cuda(*needed)
            ),
            CudaError::NoCard { found: 0, .. } => f.write_str(
                "the NVIDIA driver shows no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
            ),
            CudaError::NoCard { card, found } => write!(
                f,
                "there is no GPU {card}: the NVIDIA driver shows {found}, numbered from 0"
            ),
            CudaError::OldCard { name, capability: (major, minor) } => write!(
                f,
                "the GPU {name} has compute capability {major}.{minor}, and 8.0 or later is needed"
            ),
            CudaError::NoCompiler => f.write_str(
                "no CUDA run-time compiler: its library `libnvrtc` was not found. Install it \
                 (Python package nvidia-cuda-nvrtc, or the CUDA toolkit), or add its folder to \
                 LD_LIBRARY_PATH",
            ),
            CudaError::OldCompiler { version: (major, minor), target } => write!(
                f,
                "the CUDA run-time compiler {major}.{minor} does not know {target}. Update \
                 `libnvrtc`"
            ),
            CudaError::Source { name, target, log } => {
                write!(f, "`{name}` does not compile for {target}:\n{log}")
            }
            CudaError::Kernel { name, problem } => write!(f, "the kernel `{name}`: {problem}"),
            CudaError::Driver { doing, said } => write!(f, "CUDA failed while {doing}: {said}"),
        }
    }
}

impl std::error::Error for CudaError {}
