//! Random weights: one stretch of the card's memory, and where each weight lies in it.

use crate::model::Model;
use crate::plan::Plan;
use device::cuda::{Cuda, CudaSlice, Grid, Kernel, Writes};
use device::{Forward, Lane, Lanes, Shared};
use kernels::gemm::cuda::{Packed, Shape};
use std::ops::Range;
use std::sync::Arc;

/// Fills with random `bf16`, of a seed and up to so much.
pub(crate) type Fill = Kernel<(Writes<u16>, u64, f32)>;

/// A packed weight.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) shape: Shape,
    pub(crate) at: Range<usize>,
}

impl Weight {
    /// It, in the card's memory.
    pub(crate) fn packed<'j>(&self, memory: CudaSlice<'j, u16>) -> Packed<'j> {
        Packed { shape: self.shape, at: memory.range(self.at.clone()) }
    }

    /// Bytes of what a product reads.
    pub(crate) fn bytes(&self) -> f64 {
        (self.shape.n * self.shape.k * 2) as f64
    }
}

/// The weights of a layer.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) qkv: Weight,
    pub(crate) o: Weight,
    pub(crate) gate_up: Weight,
    pub(crate) down: Weight,
}

/// All weights.
pub(crate) struct Arena {
    pub(crate) memory: Shared<u16, Forward, Cuda>,
    /// Where each lies.
    pub(crate) plan: Arc<Plan>,
}

/// Lays weights one after the other.
struct Layout {
    len: usize,
    workers: u32,
}

impl Layout {
    fn take(&mut self, len: usize) -> Range<usize> {
        let at = self.len..self.len + len;
        self.len = at.end.next_multiple_of(128);
        at
    }

    fn weight(&mut self, n: usize, k: usize) -> Weight {
        let shape = Shape::new(n, k, self.workers);
        Weight { shape, at: self.take(shape.packed()) }
    }

    fn layer(&mut self, model: Model) -> Layer {
        let (hidden, q, kv) = (model.hidden, model.q(), model.kv());
        let qkv = self.weight(q + 2 * kv, hidden);
        let o = self.weight(hidden, q);
        let gate_up = self.weight(2 * model.ffn, hidden);
        Layer { qkv, o, gate_up, down: self.weight(hidden, model.ffn) }
    }
}

impl Arena {
    pub(crate) fn new(lanes: &Lanes<Cuda>, fill: &Fill, model: Model, workers: u32) -> Arena {
        let mut layout = Layout { len: 0, workers };
        let target = (0..model.layers).map(|_| layout.layer(model)).collect();
        let drafter = (0..model.draft_layers).map(|_| layout.layer(model)).collect();
        let fc = layout.weight(model.hidden, model.draft_layers * model.hidden);
        let kv = layout.weight(model.draft_layers * 2 * model.kv(), model.hidden);
        let head = layout.weight(model.vocab, model.hidden);
        let table = layout.take(model.vocab * model.hidden);
        let mut memory = Shared::new(lanes.device(), "weights", layout.len);
        // About one over the root of a row's length, so that activations stay of one size.
        let scale = (3.0 / model.hidden as f32).sqrt();
        randomize(&lanes.forward, fill, &mut memory, (1, scale));
        let plan = Arc::new(Plan { model, target, drafter, fc, kv, head, table });
        Arena { memory, plan }
    }
}

/// Fills memory with random `bf16` of a seed, between `-scale` and `scale`.
pub(crate) fn randomize(
    lane: &Lane<Forward, Cuda>,
    fill: &Fill,
    memory: &mut Shared<u16, Forward, Cuda>,
    (seed, scale): (u64, f32),
) {
    let fill = fill.clone();
    lane.launch("fill", (lane.queue(), memory.write(lane).view()), move |(queue, to)| {
        queue.launch(&fill, Grid { blocks: 4096, threads: 256 }, (to, seed, scale));
    });
}
