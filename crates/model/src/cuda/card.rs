//! An opened card: its lanes, and every kernel of a pass, compiled for it.

use device::cuda::{Cuda, CudaError, CudaOptions, JobTiming};
use device::{Device, LaneId, Lanes};
use kernels::accept::cuda::Acceptance;
use kernels::activation::cuda::Activations;
use kernels::attention::cuda::Attention;
use kernels::bias::cuda::Biases;
use kernels::choose::cuda::Choices;
use kernels::gather::cuda::Gather;
use kernels::gemm::cuda::Products;
use kernels::gemm::short::Shorts;
use kernels::norm::cuda::Norms;
use kernels::rope::cuda::Rotations;
use std::path::PathBuf;
use std::time::Duration;

/// The kernels of passes.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) products: Products,
    pub(crate) shorts: Shorts,
    pub(crate) biases: Biases,
    pub(crate) norms: Norms,
    pub(crate) activations: Activations,
    pub(crate) gather: Gather,
    pub(crate) rotations: Rotations,
    pub(crate) attention: Attention,
    pub(crate) choices: Choices,
    pub(crate) acceptance: Acceptance,
}

/// A card that models can be put on. Only one thread at a time drives it.
pub struct Card {
    pub(crate) lanes: Lanes<Cuda>,
    pub(crate) kernels: Kernels,
}

impl Card {
    /// Opens card `number`, from 0. Compiled kernels are kept in the folder `cache`, if there is one.
    ///
    /// # Errors
    /// No driver, no such card, one that is too old, no compiler, or a failure of the driver.
    pub fn open(
        number: usize,
        cache: Option<PathBuf>,
        timing: JobTiming,
    ) -> Result<Card, CudaError> {
        let options = CudaOptions { card: number, cache, timing, ..CudaOptions::default() };
        let cuda = Cuda::new(options)?;
        let kernels = Kernels {
            products: Products::load(&cuda)?,
            shorts: Shorts::load(&cuda)?,
            biases: Biases::load(&cuda)?,
            norms: Norms::load(&cuda)?,
            activations: Activations::load(&cuda)?,
            gather: Gather::load(&cuda)?,
            rotations: Rotations::load(&cuda)?,
            attention: Attention::load(&cuda)?,
            choices: Choices::load(&cuda)?,
            acceptance: Acceptance::load(&cuda)?,
        };
        Ok(Card { lanes: Lanes::new(&cuda), kernels })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.lanes.device().name()
    }

    /// Bytes of its memory that nobody has.
    ///
    /// # Errors
    /// A failure of the driver.
    pub fn free(&self) -> Result<usize, CudaError> {
        self.lanes.device().memory().map(|(free, _)| free)
    }

    /// Reads how long jobs have taken on the card so far; none where it does not time them. It does not
    /// wait: of jobs that have not ended nothing is counted.
    pub fn meter(&self) -> Option<impl Fn() -> Duration + Send + use<>> {
        let cuda = self.cuda().clone();
        let timed = cuda.options().timing == JobTiming::On;
        timed.then_some(move || cuda.usage().busy[LaneId::Forward.index()])
    }

    pub(crate) fn cuda(&self) -> &Cuda {
        self.lanes.device()
    }
}
