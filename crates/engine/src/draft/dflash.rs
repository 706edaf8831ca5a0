//! DFlash behind [`Drafter`]: its weights, its KV pool on the target's page ids, its buffers.
//!
//! Absorbing reads the drafter's projections whatever the number of tokens, so tokens are gathered
//! and absorbed in batches. Nothing but a draft pass reads the drafter's KV: until one comes, or a
//! batch is full, they wait.

use super::{Draft, DraftRow, Drafter, Features};
use device::Cpu;
use kernels::choose::{Draw, Shape, choose, confidences};
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

/// Drafts of a row that go through the head together, where not all may be worth verifying: reading the
/// head takes as long as multiplying it with so many, and what follows an unlikely draft is wasted.
const WAVE: usize = 8;

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
    confidences: Vec<f32>,
}

impl DflashDrafter {
    /// A drafter over `kv`, [`Dflash::kv_pool`] with pages of the target's geometry. It proposes ids from
    /// the lower half of those below `allowed`.
    pub fn new(
        cpu: Cpu,
        model: Dflash,
        target: Arc<Decoder>,
        kv: KvPool,
        allowed: usize,
    ) -> DflashDrafter {
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
            confidences: Vec::new(),
        }
    }
}

/// What is done to the logits of the draft for `position`. Penalties do not count the drafts before
/// it, which are chosen at the same time.
pub(crate) fn shape<'a>(row: &DraftRow<'a>, position: u32) -> Shape<'a> {
    row.shaper.map_or_else(Shape::default, |own| own.shape(position as usize, &[]))
}

/// A row, where its block begins in the draft pass, and its proposals so far.
type Open<'a, 'r, 'o> = (&'a DraftRow<'r>, usize, &'o mut Draft);

impl DflashDrafter {
    /// Proposes the next few tokens of each row, of which each wants one at least.
    fn wave(&mut self, open: &mut [Open<'_, '_, '_>]) {
        let (mut wanted, mut draws, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        let places = |(row, _, out): &Open<'_, '_, '_>| {
            let made = out.tokens.len() + 1;
            if row.judge.is_strict() { made..row.width.min(made + WAVE) } else { made..row.width }
        };
        for one in &*open {
            let (row, first, _) = one;
            for j in places(one) {
                wanted.push(first + j);
                let position = row.draw.position + j as u32 - 1;
                draws.push(Draw { position, ..row.draw });
                // What may follow a draft is known once it is one.
                let allowed = row.allowed.filter(|_| j == 1);
                shapes.push(Shape { allowed, ..shape(row, position) });
            }
        }
        let (cpu, w, ids) = (&self.cpu, &mut self.workspace, self.ids);
        self.model.head(cpu, w, &self.target, &wanted, ids, &mut self.logits);
        self.chosen.resize(wanted.len(), 0);
        choose(cpu, &self.logits, ids, ids, &draws, &shapes, &mut self.chosen);
        self.confidences.resize(wanted.len(), 0.0);
        confidences(cpu, &self.logits, ids, &self.chosen, &mut self.confidences);
        let mut proposals = self.chosen.iter().zip(&self.confidences);
        for one in open {
            for (&token, &confidence) in proposals.by_ref().take(places(one).len()) {
                one.2.push(token, confidence);
            }
        }
    }
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

    /// The block is always drafted at its full width, which is what the drafter was trained at. The
    /// head runs on positions that may be verified, a few of each row at a time.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.settle();
        let (block, context) = (self.block(), self.model.config().body.context);
        let mut tokens = vec![self.model.config().mask_id; block];
        self.pass.clear();
        let mut open = Vec::new();
        for (row, out) in rows.iter().zip(out) {
            if in_reach(row, block, context) {
                tokens[0] = row.anchor;
                open.push((row, self.pass.rows(), out));
                self.pass.push_block(&tokens, row.len, row.pages);
            }
        }
        if open.is_empty() {
            return;
        }
        let (cpu, w) = (&self.cpu, &mut self.workspace);
        self.model.draft(cpu, w, &self.kv, &self.target, &self.pass);
        while !open.is_empty() {
            self.wave(&mut open);
            open.retain(|(row, _, out)| {
                let made = out.tokens.len();
                made + 1 < row.width && row.judge.worth(&out.confidences) == made
            });
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
