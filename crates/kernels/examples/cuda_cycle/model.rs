//! The shapes of two models and of drafters for them.

use kernels::rope::cuda::Heads;

/// A target, and a drafter of the same width.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
    pub(crate) ffn: usize,
    pub(crate) vocab: usize,
    /// Whether each head of q and k has a norm.
    pub(crate) head_norms: bool,
    /// Layers of the drafter; as many of the target's are its features.
    pub(crate) draft_layers: usize,
}

pub(crate) const QWEN3_8B: Model = Model {
    name: "Qwen3-8B",
    hidden: 4096,
    layers: 36,
    heads: Heads { q: 32, kv: 8, dim: 128 },
    ffn: 12_288,
    vocab: 151_936,
    head_norms: true,
    draft_layers: 5,
};

pub(crate) const SMOLLM2_135M: Model = Model {
    name: "SmolLM2-135M",
    hidden: 576,
    layers: 30,
    heads: Heads { q: 9, kv: 3, dim: 64 },
    ffn: 1536,
    vocab: 49_152,
    head_norms: false,
    draft_layers: 3,
};

impl Model {
    /// Columns of q.
    pub(crate) fn q(&self) -> usize {
        self.heads.q * self.heads.dim
    }

    /// Columns of k, and of v.
    pub(crate) fn kv(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    /// Whether a layer's output is a feature of the drafter.
    pub(crate) fn feature(&self, layer: usize) -> Option<usize> {
        let each = self.layers / self.draft_layers;
        (layer % each == each / 2 && layer / each < self.draft_layers).then_some(layer / each)
    }
}
