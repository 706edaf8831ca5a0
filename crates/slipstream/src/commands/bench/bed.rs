//! A target's passes over one sequence, called by themselves: no engine, no scheduler.

use device::Cpu;
use engine::OnHost;
use kernels::kv_store::KvPool;
use model::decoder::{Decoder, Workspace};
use model::pass::Pass;

/// Tokens of a page.
pub(super) const PAGE: usize = 16;

/// A target with memory for one sequence.
pub(super) struct Bed<'d> {
    pub(super) decoder: &'d Decoder,
    pages: Vec<u32>,
    kv: KvPool,
    workspace: Workspace,
    pass: Pass,
    logits: Vec<f32>,
}

impl<'d> Bed<'d> {
    /// Of the target of `models`, for sequences of at most `tokens` tokens.
    pub(super) fn new(models: &'d OnHost, tokens: usize) -> Bed<'d> {
        let decoder = &models.target;
        let pages: Vec<u32> = (0..tokens.div_ceil(PAGE) as u32).collect();
        let kv = decoder.kv_pool(models.kv, pages.len(), PAGE);
        let (workspace, pass, logits) = (Workspace::default(), Pass::default(), Vec::new());
        Bed { decoder, pages, kv, workspace, pass, logits }
    }

    /// The next passes are over `ids`, behind `context` tokens.
    pub(super) fn lay(&mut self, ids: &[u32], context: usize) {
        self.pass.clear();
        self.pass.push(ids, context, &self.pages, PAGE);
    }

    /// The layers.
    pub(super) fn forward(&mut self, cpu: &Cpu) {
        self.decoder.forward(cpu, &mut self.workspace, &mut self.kv, &self.pass, &[]);
    }

    /// The head on `rows` of the last pass: their logits, `[rows.len(), vocab]`.
    pub(super) fn head(&mut self, cpu: &Cpu, rows: &[usize]) -> &[f32] {
        self.decoder.logits(cpu, &mut self.workspace, rows, &mut self.logits);
        &self.logits
    }
}
