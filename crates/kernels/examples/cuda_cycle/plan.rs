//! The kernels of a pass, and the weights that it is of.

use crate::model::Model;
use crate::weights::{Layer, Weight};
use device::cuda::{Cuda, CudaError};
use kernels::accept::cuda::Acceptance;
use kernels::activation::cuda::Activations;
use kernels::attention::cuda::Attention;
use kernels::choose::cuda::Choices;
use kernels::gemm::cuda::Products;
use kernels::gemm::short::Shorts;
use kernels::norm::cuda::Norms;
use kernels::rope::cuda::Rotations;
use std::ops::Range;

/// Every kernel of a pass.
#[derive(Clone)]
pub(crate) struct Kernels {
    pub(crate) products: Products,
    pub(crate) shorts: Shorts,
    pub(crate) norms: Norms,
    pub(crate) activations: Activations,
    pub(crate) rotations: Rotations,
    pub(crate) attention: Attention,
    pub(crate) choices: Choices,
    pub(crate) acceptance: Acceptance,
}

impl Kernels {
    pub(crate) fn load(cuda: &Cuda) -> Result<Kernels, CudaError> {
        Ok(Kernels {
            products: Products::load(cuda)?,
            shorts: Shorts::load(cuda)?,
            norms: Norms::load(cuda)?,
            activations: Activations::load(cuda)?,
            rotations: Rotations::load(cuda)?,
            attention: Attention::load(cuda)?,
            choices: Choices::load(cuda)?,
            acceptance: Acceptance::load(cuda)?,
        })
    }
}

/// Where weights lie.
pub(crate) struct Plan {
    pub(crate) model: Model,
    pub(crate) target: Vec<Layer>,
    pub(crate) drafter: Vec<Layer>,
    pub(crate) fc: Weight,
    /// k and v of all of the drafter's layers, for rows that are absorbed.
    pub(crate) kv: Weight,
    pub(crate) head: Weight,
    /// The embedding, `[vocab, hidden]`.
    pub(crate) table: Range<usize>,
}

impl Plan {
    /// The rows of a pass, cut into those whose logits are there at once.
    pub(crate) fn slabs(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let most = self.head.shape.rows_at_once();
        (0..rows).step_by(most).map(move |start| start..(start + most).min(rows))
    }
}
