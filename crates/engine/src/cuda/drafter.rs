//! The drafter of a pair on a card.

use super::{By, Chooser, Shared};
use crate::draft::{Draft, DraftRow, Drafter, Features, Follows, Promise, in_reach, shape};
use device::Cpu;
use kernels::choose::{Draw, Shape};
use model::cuda::{Drafting, Found, Ids, TOGETHER};
use model::dflash_config::DflashConfig;
use model::pass::Pass;

/// The DFlash drafter of a pair on a card.
pub(super) struct CardDrafter {
    pub(super) card: Shared,
    pub(super) cpu: Cpu,
    pub(super) config: DflashConfig,
    /// Ids below this are proposed.
    pub(super) proposed: usize,
    pub(super) pass: Pass,
    /// Proposals that were started, so many for each row.
    pub(super) started: Option<(Vec<usize>, Drafting)>,
}

/// What is asked of the drafter's pass.
struct Asked<'r> {
    /// Proposals of each row.
    counts: Vec<usize>,
    /// For each proposal its row in the pass, and how it is chosen.
    wanted: Vec<usize>,
    draws: Vec<Draw>,
    shapes: Vec<Shape<'r>>,
}

impl CardDrafter {
    /// Lays the blocks of `rows` out.
    fn ask<'r>(&mut self, rows: &[DraftRow<'r>]) -> Asked<'r> {
        let (most, context) = (self.config.block, self.config.body.context);
        let mut tokens = vec![self.config.mask_id; most];
        self.pass.clear();
        let (mut wanted, mut draws, mut shapes) = (vec![], vec![], vec![]);
        let mut counts = vec![0; rows.len()];
        for (row, count) in rows.iter().zip(&mut counts) {
            if !in_reach(row, most, context) {
                continue;
            }
            let (first, block) = (self.pass.rows(), self.config.holding(row.likely + 1));
            tokens[0] = row.anchor;
            self.pass.push_block(&tokens[..block], row.start(), row.pages);
            *count = row.width.min(block) - 1;
            for j in 1..=*count {
                let position = row.draw.position + j as u32 - 1;
                wanted.push(first + j);
                draws.push(Draw { position, ..row.draw });
                // What may follow a draft is known once it is one.
                let allowed = row.allowed.filter(|_| j == 1);
                shapes.push(Shape { allowed, ..shape(row, position) });
            }
        }
        Asked { counts, wanted, draws, shapes }
    }
}

/// Deals proposals out to rows that have so many.
fn deal(found: Found, counts: &[usize], out: &mut [Draft]) {
    let mut proposals = found.tokens.into_iter().zip(found.confidences);
    for (&count, out) in counts.iter().zip(out) {
        let own = proposals.by_ref().take(count);
        own.for_each(|(token, confidence)| out.push(token, confidence));
    }
}

impl Drafter for CardDrafter {
    fn block(&self) -> usize {
        self.config.block
    }

    fn blocks(&self) -> Vec<usize> {
        self.config.blocks.clone()
    }

    fn taps(&self) -> &[usize] {
        &self.config.target_layers
    }

    /// Of the numbers of positions that may be drafted, the least is that has the room that is asked for. All rows
    /// that may be verified choose at once, each at its own position, and say how sure they are: what is not worth
    /// it costs next to nothing, where another launch would.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        if let Some((counts, drafting)) = self.started.take() {
            return deal(drafting.found(), &counts, out);
        }
        let Asked { counts, wanted, draws, shapes } = self.ask(rows);
        if wanted.is_empty() {
            return;
        }
        let all = self.card.get().draft(&self.pass, &wanted, &draws);
        let (card, cpu, width) = (&self.card, &self.cpu, (self.proposed, self.proposed));
        let chooser = Chooser { card, cpu, ids: Ids::Proposed, width };
        let found = chooser.choose(&wanted, &draws, &shapes, || all);
        deal(found, &counts, out);
    }

    fn start(&mut self, rows: &[DraftRow<'_>]) {
        let Asked { counts, wanted, draws, .. } = self.ask(rows);
        if !wanted.is_empty() {
            let drafting = self.card.get().start(&self.pass, &wanted, &draws);
            self.started = Some((counts, drafting));
        }
    }

    fn follows(&self) -> Follows {
        Follows::Blocks
    }

    fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
        let Asked { counts, wanted, draws, shapes } = self.ask(rows);
        let by_card = |(draw, shape)| By::of(draw, shape) == By::Card;
        let simple = draws.iter().zip(&shapes).all(by_card);
        if wanted.is_empty() || !simple || self.pass.rows() > TOGETHER {
            return None;
        }
        let (all, promised) = self.card.get().promise(&self.pass, &wanted, &draws);
        let mut all = all.into_iter();
        let stand_ins = counts.iter().map(|&count| all.by_ref().take(count).collect());
        Some(Promise::new(stand_ins.collect(), move || {
            let mut out = vec![Draft::default(); counts.len()];
            deal(promised.found().clone(), &counts, &mut out);
            out
        }))
    }

    /// # Panics
    /// When the features are of a target elsewhere.
    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        let Features::Left(rows) = features else {
            panic!("this drafter reads the features that its own target left on the card")
        };
        self.card.get().keep(rows.start, positions, slots);
    }

    fn settle(&mut self) {
        self.card.get().settle();
    }
}
