//! Drafts of a step: promised, or proposed and judged.

use super::{Drafted, Forward, StepMemory, draw, with_pages};
use crate::ahead::Promised;
use crate::counters::StepTimes;
use crate::draft::{Calibration, Draft, DraftRow, Follows, Judge};
use crate::fit::{Open, fit};
use crate::guide::Guide;
use crate::holders::Holders;
use crate::left::{Judged, Steps, Unknown};
use crate::shaper::Shaper;
use model::pass::Start;
use schedule::{PlannedRow, Work};

impl Forward {
    /// Drafts for every planned row that is to be verified. Where they are not promised, it is known then where the
    /// rows begin.
    pub(super) fn draft(
        &mut self,
        planned: &[PlannedRow],
        memory: &mut StepMemory<'_>,
        times: &mut StepTimes,
    ) -> Drafted {
        let mut drafted = Drafted {
            drafts: vec![Vec::new(); planned.len()],
            judged: vec![Judged::default(); planned.len()],
            promised: None,
        };
        let known = (&self.calibration, &self.left, &self.guides, &self.shapers);
        let (places, wanting) = wanting(planned, memory, known);
        if wanting.is_empty() {
            return drafted;
        }
        let start = self.clock.now();
        self.drafter.settle();
        let settled = self.clock.now();
        times.absorb += settled - start;
        let positions = wanting.iter().map(|row| self.drafter.positions(row.likely)).sum();
        let prices: Vec<f32> = wanting.iter().map(|row| row.judge.price()).collect();
        let takes = match self.may_run_ahead(planned, &wanting) {
            true => self.pace.takes(positions),
            false => None,
        };
        if let Some(takes) = takes
            && let Some(promise) = self.drafter.promise(&wanting)
        {
            for (&place, own) in places.iter().zip(&promise.stand_ins) {
                drafted.drafts[place].clone_from(own);
            }
            let rows = places.into_iter().zip(prices).collect();
            drafted.promised = Some(Promised { promise, rows, takes });
            times.draft = self.clock.now() - settled;
            return drafted;
        }
        // Who waits for drafts waits for the step before as well: of rows that do not draft, too, it is known then where
        // they begin.
        let (places, wanting) = if self.left.last().is_some() {
            self.drafter.start(&wanting);
            self.catch_up(Unknown::Nothing, memory);
            let known = (&self.calibration, &self.left, &self.guides, &self.shapers);
            self::wanting(planned, memory, known)
        } else {
            (places, wanting)
        };
        let begun = self.clock.now();
        let mut proposals = vec![Draft::default(); wanting.len()];
        self.drafter.propose(&wanting, &mut proposals);
        self.clock.work("draft", wanting.len());
        times.draft = self.clock.now() - begun;
        self.pace.learn(positions, times.draft);
        let counts = self.counts(planned, &wanting, &proposals);
        let judged = self.judge(&prices, proposals);
        for ((place, (mut tokens, judged)), count) in places.into_iter().zip(judged).zip(counts) {
            tokens.truncate(count);
            (drafted.drafts[place], drafted.judged[place]) = (tokens, judged);
        }
        drafted
    }

    /// What is known of drafts, of each of which so much is wanted, beside their tokens. All are judged by what was
    /// known before.
    pub(super) fn judge(&self, prices: &[f32], drafts: Vec<Draft>) -> Vec<(Vec<u32>, Judged)> {
        let (known, most) = (&self.calibration, self.drafter.block() - 1);
        let one = |(&price, draft): (&f32, Draft)| Judged::of((known, price), most, draft);
        prices.iter().zip(drafts).map(one).collect()
    }

    /// Whether the drafts of `rows` may be verified before the host knows them: nothing that the host does to their
    /// logits depends on them, and verifying them all costs little. And the drafter knows enough of where they begin.
    fn may_run_ahead(&self, planned: &[PlannedRow], rows: &[DraftRow<'_>]) -> bool {
        let knows =
            |row: &DraftRow<'_>| row.behind.is_none() || self.drafter.follows() == Follows::Blocks;
        let free = |row: &DraftRow<'_>| row.shaper.is_none() && row.allowed.is_none();
        let drafts: usize = rows.iter().map(|row| row.width - 1).sum();
        let told: usize = planned.iter().map(PlannedRow::told).sum();
        told + drafts <= self.target.ahead() && rows.iter().all(|row| free(row) && knows(row))
    }

    /// How many of the proposals of each row are verified: those that are worth it, and some more or less as the
    /// target's passes cost.
    fn counts(
        &self,
        planned: &[PlannedRow],
        rows: &[DraftRow<'_>],
        proposals: &[Draft],
    ) -> Vec<usize> {
        let worth = |(row, draft): (&DraftRow<'_>, &Draft)| row.judge.worth(&draft.confidences);
        let mut counts: Vec<usize> = rows.iter().zip(proposals).map(worth).collect();
        if self.stairs.is_empty() {
            return counts;
        }
        let open: Vec<usize> = (0..rows.len()).filter(|&i| rows[i].judge.is_strict()).collect();
        let Some(price) = open.first().map(|&i| rows[i].judge.price()) else { return counts };
        let chances = |&i: &usize| rows[i].judge.chances(&proposals[i].confidences).collect();
        let chances: Vec<Vec<f32>> = open.iter().map(chances).collect();
        let blocks = open.iter().zip(&chances);
        let blocks: Vec<Open<'_>> =
            blocks.map(|(&i, chances)| Open { chances, worth: counts[i] }).collect();
        let judged: usize = blocks.iter().map(|block| block.worth).sum();
        let drafts: usize = counts.iter().sum();
        let others = planned.iter().map(PlannedRow::told).sum::<usize>() + drafts - judged;
        let fitted = fit(others, &blocks, price, &self.stairs);
        open.iter().zip(fitted).for_each(|(&i, count)| counts[i] = count);
        counts
    }
}

/// The planned rows that want drafts: their places, and what they want.
fn wanting<'f>(
    planned: &[PlannedRow],
    memory: &StepMemory<'f>,
    known: (&'f Calibration, &Steps, &'f Holders<Guide>, &'f Holders<Shaper>),
) -> (Vec<usize>, Vec<DraftRow<'f>>) {
    let (calibration, left, guides, shapers) = known;
    let (mut wanting, mut places) = (Vec::new(), Vec::new());
    for (i, (row, pages)) in with_pages(planned, memory.pages).enumerate() {
        let Work::Block { width, price, likely } = row.work else { continue };
        let start = left.start(row.row, memory.lengths[row.row.index] as usize);
        let len = start.most();
        let width = width.min(row.limit - 1 - len);
        let guide = guides.of(row.row);
        if width > 1 && guide.is_none_or(|guide| guide.end().is_none()) {
            places.push(i);
            wanting.push(DraftRow {
                request: row.id,
                anchor: memory.anchors[row.row.index],
                len,
                behind: match start {
                    Start::At(_) => None,
                    Start::Behind { block, .. } => Some(block),
                },
                width,
                judge: Judge::new(calibration, price),
                likely,
                pages,
                draw: draw(row, len + 1),
                shaper: shapers.of(row.row),
                allowed: guide.and_then(Guide::next),
            });
        }
    }
    (places, wanting)
}
