//! Gates and ups, and SwiGLU of them.

use super::{By, Input, Program, Way};
use crate::buffers::Work;
use crate::weights::Layer;
use kernels::gemm::cuda::Lines;
use kernels::gemm::gated::{Gates, Gating};

impl Program {
    /// Gates and ups, into `gated`.
    pub(super) fn gate(&self, work: &mut Work<'_>, layer: &Layer) {
        match self.way() {
            Way::Short => {
                let on_card = Self::on_card(work, &layer.gate_up);
                let stream = self.stream(&work.x, &work.ones);
                self.kernels.shorts.of_gated(work.queue, on_card, stream, work.gated.all());
            }
            Way::Long => {
                self.norm(work, Some(&layer.o));
                self.gates_and_ups(work, layer);
                if self.gater() == By::Kernel {
                    self.swiglu(work, layer);
                }
            }
        }
    }

    /// Who makes SwiGLU of gates and ups.
    pub(crate) fn gater(&self) -> By {
        let shape = &self.plan.target[0].gate_up.shape;
        let own = self.kernels.products.gates(shape, self.rows(), self.layout());
        if own || self.way() == Way::Short { By::Product } else { By::Kernel }
    }

    /// The product of gates and ups, and what it makes of them.
    pub(super) fn gates_and_ups(&self, work: &mut Work<'_>, layer: &Layer) {
        if self.gater() == By::Kernel {
            return self.product(work, &layer.gate_up, Input::Hidden);
        }
        let lines = Lines { x: work.hidden.read(), rows: self.rows(), layout: self.layout() };
        let gates = Gates { weight: layer.gate_up.packed(work.weights), bias: None };
        let (pieces, there, out) = (work.pieces.all(), work.there.all(), work.gated.all());
        let gating = Gating { pieces, there, out };
        self.kernels.products.launch_gated(work.queue, gates, lines, gating);
    }

    pub(super) fn swiglu(&self, work: &mut Work<'_>, layer: &Layer) {
        let (both, out) = (self.pieces(&work.pieces, &layer.gate_up), work.gated.all());
        self.kernels.activations.swiglu(work.queue, both, (out, self.layout()));
    }
}
