//! DFlash behind [`Drafter`]: its weights, its KV pool on the target's page ids, its buffers.

use super::{DraftRow, Drafter};
use device::Cpu;
use kernels::choose::{Draw, choose};
use kernels::kv_store::KvPool;
use model::decoder::Decoder;
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::Pass;
use std::sync::Arc;

/// A DFlash drafter and its memory.
pub struct DflashDrafter {
    cpu: Cpu,
    model: Dflash,
    /// Lends its embedding and its head.
    target: Arc<Decoder>,
    kv: KvPool,
    workspace: DraftWorkspace,
    /// Ids below this may be proposed.
    allowed: usize,
    pass: Pass,
    logits: Vec<f32>,
    chosen: Vec<u32>,
}

impl DflashDrafter {
    /// A drafter over pages of the target's geometry. It proposes ids below `allowed` only.
    pub fn new(
        cpu: Cpu,
        model: Dflash,
        target: Arc<Decoder>,
        pages: usize,
        page_size: usize,
        allowed: usize,
    ) -> DflashDrafter {
        let kv = model.kv_pool(pages, page_size);
        DflashDrafter {
            cpu,
            model,
            target,
            kv,
            workspace: DraftWorkspace::default(),
            allowed,
            pass: Pass::default(),
            logits: Vec::new(),
            chosen: Vec::new(),
        }
    }
}

/// The drafter was made for `context` positions; a row whose block would reach past them stops
/// drafting, and no other row notices.
fn in_reach(row: &DraftRow<'_>, block: usize, context: usize) -> bool {
    row.len + block <= context
}

impl Drafter for DflashDrafter {
    fn block(&self) -> usize {
        self.model.config().block
    }

    fn taps(&self) -> &[usize] {
        &self.model.config().target_layers
    }

    /// The block is always drafted at its full width, which is what the drafter was trained at;
    /// the head runs on the positions that will be verified.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Vec<u32>]) {
        let (block, context) = (self.block(), self.model.config().body.context);
        let mut tokens = vec![self.model.config().mask_id; block];
        self.pass.clear();
        let (mut wanted, mut draws) = (Vec::new(), Vec::new());
        for row in rows.iter().filter(|row| in_reach(row, block, context)) {
            let first = self.pass.rows();
            tokens[0] = row.anchor;
            self.pass.push_block(&tokens, row.len, row.pages);
            for j in 1..row.width {
                wanted.push(first + j);
                let position = row.draw.position + j as u32 - 1;
                draws.push(Draw { position, ..row.draw });
            }
        }
        if wanted.is_empty() {
            return;
        }
        let (cpu, w, target) = (&self.cpu, &mut self.workspace, &self.target);
        self.model.draft(cpu, w, &self.kv, target, &self.pass, &wanted, &mut self.logits);
        self.chosen.resize(wanted.len(), 0);
        let vocab = target.config().vocab;
        choose(cpu, &self.logits, vocab, self.allowed, &draws, &mut self.chosen);
        let mut chosen = self.chosen.iter();
        for (row, out) in rows.iter().zip(out).filter(|(row, _)| in_reach(row, block, context)) {
            out.extend(chosen.by_ref().take(row.width - 1));
        }
    }

    fn absorb(&mut self, features: &[f32], positions: &[u32], slots: &[u32]) {
        let w = &mut self.workspace;
        self.model.absorb(&self.cpu, w, &mut self.kv, features, positions, slots);
    }
}
