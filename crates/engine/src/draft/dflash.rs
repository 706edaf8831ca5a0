//! DFlash behind [`Drafter`]: its weights, its KV pool on the target's page ids, its buffers.
//!
//! Absorbing reads the drafter's projections whatever the number of tokens, so tokens are gathered
//! and absorbed in batches. Nothing but a draft pass reads the drafter's KV: until one comes, or a
//! batch is full, they wait.

use super::{DraftRow, Drafter, Features};
use device::Cpu;
use kernels::choose::{Draw, Shape, choose};
use kernels::kv_store::KvPool;
use model::decoder::Decoder;
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::Pass;
use std::sync::Arc;

/// Tokens that are absorbed together at the latest: enough rows for products at their full speed,
/// and few enough that their features take little memory.
const BATCH: usize = 64;

/// Of so many ids one is proposed, the lowest. A byte-pair vocabulary numbers its tokens in the order
/// in which they were learned, frequent ones first, so a part of it makes nearly all of a text; and
/// the head costs what it reads.
pub(crate) const PROPOSED: usize = 2;

/// Committed tokens that wait to be absorbed, in the order they came.
#[derive(Default)]
struct Waiting {
    /// `[rows, taps · hidden]`.
    features: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
}

/// A DFlash drafter and its memory.
pub struct DflashDrafter {
    cpu: Cpu,
    model: Dflash,
    /// Lends its embedding and its head.
    target: Arc<Decoder>,
    kv: KvPool,
    waiting: Waiting,
    workspace: DraftWorkspace,
    /// Ids below this are proposed.
    ids: usize,
    pass: Pass,
    logits: Vec<f32>,
    chosen: Vec<u32>,
}

impl DflashDrafter {
    /// A drafter over pages of the target's geometry. It proposes ids from the lower half of those below
    /// `allowed`.
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
            waiting: Waiting::default(),
            workspace: DraftWorkspace::default(),
            ids: allowed.div_ceil(PROPOSED),
            pass: Pass::default(),
            logits: Vec::new(),
            chosen: Vec::new(),
        }
    }
}

/// What is done to the logits of the draft for `position`. Penalties do not count the drafts before
/// it, which are chosen at the same time.
pub(crate) fn shape<'a>(row: &DraftRow<'a>, position: u32) -> Shape<'a> {
    row.shaper.map_or_else(Shape::default, |own| own.shape(position as usize, &[]))
}

/// The drafter was made for `context` positions; a row whose block would reach past them stops
/// drafting, and no other row notices.
pub(crate) fn in_reach(row: &DraftRow<'_>, block: usize, context: usize) -> bool {
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
        self.settle();
        let (block, context) = (self.block(), self.model.config().body.context);
        let mut tokens = vec![self.model.config().mask_id; block];
        self.pass.clear();
        let (mut wanted, mut draws, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows.iter().filter(|row| in_reach(row, block, context)) {
            let first = self.pass.rows();
            tokens[0] = row.anchor;
            self.pass.push_block(&tokens, row.len, row.pages);
            for j in 1..row.width {
                wanted.push(first + j);
                let position = row.draw.position + j as u32 - 1;
                draws.push(Draw { position, ..row.draw });
                // What may follow a draft is known once it is one.
                let allowed = row.allowed.filter(|_| j == 1);
                shapes.push(Shape { allowed, ..shape(row, position) });
            }
        }
        if wanted.is_empty() {
            return;
        }
        let (cpu, w, target) = (&self.cpu, &mut self.workspace, &self.target);
        self.model.draft(cpu, w, &self.kv, target, &self.pass, &wanted, self.ids, &mut self.logits);
        self.chosen.resize(wanted.len(), 0);
        choose(cpu, &self.logits, self.ids, self.ids, &draws, &shapes, &mut self.chosen);
        let mut chosen = self.chosen.iter();
        for (row, out) in rows.iter().zip(out).filter(|(row, _)| in_reach(row, block, context)) {
            out.extend(chosen.by_ref().take(row.width - 1));
        }
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        self.waiting.features.extend_from_slice(features.host());
        self.waiting.positions.extend_from_slice(positions);
        self.waiting.slots.extend_from_slice(slots);
        if self.waiting.positions.len() >= BATCH {
            self.settle();
        }
    }

    fn settle(&mut self) {
        let Waiting { features, positions, slots } = &mut self.waiting;
        if positions.is_empty() {
            return;
        }
        let w = &mut self.workspace;
        self.model.absorb(&self.cpu, w, &mut self.kv, features, positions, slots);
        features.clear();
        positions.clear();
        slots.clear();
    }
}
