//! DFlash behind [`Drafter`]: its weights, its KV pool on the target's page ids, its buffers.
//!
//! Absorbing reads the drafter's projections whatever the number of tokens, so tokens are gathered
//! and absorbed in batches. Nothing but a draft pass reads the drafter's KV: until one comes, or a
//! batch is full, they wait.

use super::{Draft, DraftRow, Drafter, Features};
use device::Cpu;
use kernels::choose::{Asked, Choices, Confidence, Draw, Shape};
use kernels::kv_store::KvPool;
use model::decoder::Decoder;
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::Pass;
use model::proposals::Proposals;
use std::ops::Range;
use std::sync::Arc;

/// Tokens that are absorbed together at the latest: enough rows for products at their full speed,
/// and few enough that their features take little memory.
const BATCH: usize = 64;

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
    proposals: Proposals,
    pass: Pass,
    choices: Choices,
}

impl DflashDrafter {
    /// A drafter over `kv`, [`Dflash::kv_pool`] with pages of the target's geometry. Ids below `allowed` may
    /// be chosen; it proposes a part of them.
    pub fn new(
        cpu: Cpu,
        model: Dflash,
        target: Arc<Decoder>,
        kv: KvPool,
        allowed: usize,
    ) -> DflashDrafter {
        let proposals = model.proposals(&cpu, &target, allowed);
        DflashDrafter {
            cpu,
            model,
            target,
            kv,
            waiting: Waiting::default(),
            workspace: DraftWorkspace::default(),
            proposals,
            pass: Pass::default(),
            choices: Choices::default(),
        }
    }
}

/// What is done to the logits of the draft for `position`. Penalties do not count the drafts before
/// it, which are chosen at the same time.
pub(crate) fn shape<'a>(row: &DraftRow<'a>, position: u32) -> Shape<'a> {
    row.shaper.map_or_else(Shape::default, |own| own.shape(position as usize, &[]))
}

/// A row that may want more proposals, and those that it has.
struct Open<'a, 'r> {
    row: &'a DraftRow<'r>,
    /// Where its block begins in the draft pass.
    first: usize,
    /// Positions of its block that may be verified.
    width: usize,
    out: &'a mut Draft,
}

impl Open<'_, '_> {
    /// Places in the block that the next proposals are for.
    fn places(&self) -> Range<usize> {
        let made = self.out.tokens.len() + 1;
        let most = if self.row.judge.is_strict() { made + WAVE } else { self.width };
        made..self.width.min(most)
    }

    /// Whether more is wanted than the proposals so far: all of them are worth verifying.
    fn wants_more(&self) -> bool {
        let made = self.out.tokens.len();
        made + 1 < self.width && self.row.judge.worth(&self.out.confidences) == made
    }
}

impl DflashDrafter {
    /// Proposes the next few tokens of each row, of which each wants one at least.
    fn wave(&mut self, open: &mut [Open<'_, '_>]) {
        let (mut wanted, mut draws, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for one in &*open {
            let Open { row, first, .. } = one;
            for j in one.places() {
                wanted.push(first + j);
                let position = row.draw.position + j as u32 - 1;
                draws.push(Draw { position, ..row.draw });
                // What may follow a draft is known once it is one.
                let allowed = row.allowed.filter(|_| j == 1);
                shapes.push(Shape { allowed, ..shape(row, position) });
            }
        }
        let (draws, shapes, confidence) = (&draws[..], &shapes[..], Confidence::Told);
        let asked = Asked { draws, shapes, kept: &[], confidence };
        let (cpu, w, of) = (&self.cpu, &mut self.workspace, (&*self.target, &self.proposals));
        self.model.choose(cpu, w, of, (&wanted, &asked), &mut self.choices);
        let mut proposals = self.choices.ids().iter().zip(self.choices.confidences());
        for one in open {
            for (&token, &confidence) in proposals.by_ref().take(one.places().len()) {
                one.out.push(token, confidence);
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

    fn blocks(&self) -> Vec<usize> {
        self.model.config().blocks.clone()
    }

    fn taps(&self) -> &[usize] {
        &self.model.config().target_layers
    }

    /// Of the numbers of positions that may be drafted, the least is that has the room that is asked for. The head
    /// runs on positions that may be verified, a few of each row at a time.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        self.settle();
        let (most, context) = (self.block(), self.model.config().body.context);
        let mut tokens = vec![self.model.config().mask_id; most];
        self.pass.clear();
        let mut open = Vec::new();
        for (row, out) in rows.iter().zip(out) {
            if in_reach(row, most, context) {
                let block = self.model.config().holding(row.likely + 1);
                tokens[0] = row.anchor;
                let (first, width) = (self.pass.rows(), row.width.min(block));
                open.push(Open { row, first, width, out });
                self.pass.push_block(&tokens[..block], row.len, row.pages);
            }
        }
        if open.is_empty() {
            return;
        }
        let (cpu, w) = (&self.cpu, &mut self.workspace);
        self.model.draft(cpu, w, &self.kv, &self.target, &self.pass);
        while !open.is_empty() {
            self.wave(&mut open);
            open.retain(Open::wants_more);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::{Calibration, Judge};
    use kernels::kv_store::KvFormat;
    use model::Precision;
    use model::checkpoint::Checkpoint;
    use std::path::Path;

    const BLOCK: usize = 8;

    /// The tiny drafter, as one that was trained with blocks of these numbers of positions.
    fn drafter(blocks: &[usize]) -> DflashDrafter {
        listing(blocks, None)
    }

    /// The same, as one that lists the ids that it proposes.
    fn listing(blocks: &[usize], ids: Option<&[u32]>) -> DflashDrafter {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let copy =
            |file| std::fs::copy(fixtures.join("dflash").join(file), folder.path().join(file));
        copy("model.safetensors").expect("copies");
        let text = std::fs::read(fixtures.join("dflash/config.json")).expect("reads");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        config["dflash_config"]["block_sizes"] = blocks.into();
        config["block_size"] = blocks[blocks.len() - 1].into();
        config["dflash_config"]["proposed_ids"] = ids.into();
        let text = serde_json::to_string(&config).expect("JSON");
        std::fs::write(folder.path().join("config.json"), text).expect("writes");

        let (cpu, precision) = (Cpu::new(2), Precision::AsStored);
        let files = Checkpoint::open(&fixtures.join("qwen3")).expect("the target opens");
        let target = Decoder::load(&cpu, &files, precision).expect("the target loads");
        let config = files.config();
        let model = Dflash::load(&cpu, folder.path(), config, None, precision).expect("loads");
        let (kv, vocab) = (model.kv_pool(KvFormat::F32, 4, 16), config.vocab);
        DflashDrafter::new(cpu, model, Arc::new(target), kv, vocab)
    }

    /// Rows of different anchors, with their widths, prices and what is expected of them.
    fn propose(drafter: &mut DflashDrafter, asked: &[(usize, f32, usize)]) -> Vec<Draft> {
        propose_within(drafter, asked, None)
    }

    /// The same, with a mask of what may follow their anchors.
    fn propose_within(
        drafter: &mut DflashDrafter,
        asked: &[(usize, f32, usize)],
        allowed: Option<&[u32]>,
    ) -> Vec<Draft> {
        let calibration = Calibration::NEW;
        let draw =
            Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 6 };
        let row = |(i, &(width, price, likely)): (usize, &(usize, f32, usize))| DraftRow {
            request: i as u64,
            anchor: 40 + i as u32,
            len: 5,
            behind: None,
            width,
            judge: Judge::new(&calibration, price),
            likely,
            pages: &[1],
            draw,
            shaper: None,
            allowed,
        };
        let rows: Vec<DraftRow<'_>> = asked.iter().enumerate().map(row).collect();
        let mut out = vec![Draft::default(); rows.len()];
        drafter.propose(&rows, &mut out);
        out
    }

    /// A price that every draft is worth.
    const CHEAP: f32 = 1e-30;

    /// What stands in a block of `block` positions behind the anchor of row `i` of four.
    fn alone(block: usize, i: usize) -> Draft {
        propose(&mut drafter(&[block]), &[(block, 0.0, block - 1); 4]).swap_remove(i)
    }

    #[test]
    fn blocks_are_as_narrow_as_what_is_expected() {
        let mut drafter = drafter(&[2, BLOCK]);
        let asked = [(BLOCK, CHEAP, 1), (BLOCK, CHEAP, 2), (BLOCK, CHEAP, 7), (3, 0.0, 3)];
        let found = propose(&mut drafter, &asked);
        for (i, block) in [2, 3, BLOCK].into_iter().enumerate() {
            assert_eq!(found[i], alone(block, i), "row {i}");
        }
        let Draft { tokens, confidences } = alone(4, 3);
        let (own, sure) = (&found[3].tokens, &found[3].confidences);
        assert_eq!((&own[..], &sure[..]), (&tokens[..2], &confidences[..2]), "two were asked for");
    }

    /// Those of its list alone; where a mask leaves none of them, one that it leaves, of which nobody is sure.
    #[test]
    fn ids_that_are_not_listed_are_not_proposed() {
        let ids: Vec<u32> = (3..320).step_by(7).collect();
        let mut drafter = listing(&[BLOCK], Some(&ids));
        for Draft { tokens, confidences } in propose(&mut drafter, &[(BLOCK, 0.0, BLOCK - 1); 4]) {
            assert_eq!(tokens.len(), BLOCK - 1);
            assert!(tokens.iter().all(|token| ids.contains(token)), "{tokens:?}");
            assert!(confidences.iter().all(|&sure| sure > 0.0), "{confidences:?}");
        }
        let mut mask = [0; 10];
        mask[5] = 1 << 5;
        let asked = [(BLOCK, 0.0, BLOCK - 1)];
        let found = propose_within(&mut drafter, &asked, Some(&mask)).swap_remove(0);
        assert!(!ids.contains(&165));
        assert_eq!((found.tokens[0], found.confidences[0]), (165, 0.0));
        assert!(ids.contains(&found.tokens[1]), "the mask is of the first place alone");
    }
}
