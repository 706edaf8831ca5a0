//! Steps that are left, and those behind them.

use super::{Block, Forward, StepMemory, draw, take_in, taps};
use crate::ahead::Promised;
use crate::left::{Coming, Drafts, LeftRow, LeftStep, ReadStep, Unknown};
use crate::target::Leaves;
use kernels::choose::Draw;
use schedule::{Absorb, PlannedRow, Work};
use std::sync::Arc;
use std::time::Duration;

impl Forward {
    /// Starts what was laid out, and waits for nothing.
    pub(super) fn leave(
        &mut self,
        blocks: Vec<Block<'_>>,
        promised: Option<Promised>,
        (began, drafted): (Duration, Duration),
        stride: usize,
    ) -> Arc<LeftStep> {
        let of = |block: &Block<'_>| {
            let (row, first) = (block.row, block.context + 1);
            (first..first + block.len).map(move |position| draw(row, position)).collect::<Vec<_>>()
        };
        let draws: Vec<Draw> = blocks.iter().flat_map(of).collect();
        let taps = taps(&*self.drafter, &blocks);
        let left = self.target.leave(&self.pass, taps, &draws);
        self.clock.work("verify", self.pass.rows());
        self.results.resize(blocks.len() * stride, 0);
        let row = |block: &Block<'_>| LeftRow {
            row: block.row.row,
            first: block.first,
            width: block.len,
            absorb: block.row.absorb,
            pages: block.pages.to_vec(),
        };
        let rows = blocks.iter().map(row).collect();
        let drafts = match promised {
            None => {
                let told = blocks.into_iter().map(|block| (block.drafts, block.judged));
                Drafts::Told(told.collect(), drafted)
            }
            Some(promised) => {
                let known = Box::new(self.calibration.clone());
                let most = self.drafter.block() - 1;
                Drafts::Promised(promised, known, most)
            }
        };
        self.left.push(rows, Coming { left, drafts }, (&self.clock, began))
    }

    /// Whether the step `planned` may be left: nothing of it needs the host before the next one begins, and no block
    /// is narrower than planned, wherever it begins.
    pub(super) fn may_leave(&self, planned: &[PlannedRow], memory: &StepMemory<'_>) -> bool {
        let free = |row: &PlannedRow| {
            let Work::Block { width, .. } = row.work else { return false };
            let len = memory.lengths[row.row.index] as usize;
            self.left.start(row.row, len).most() + width < row.limit
                && row.logprobs.is_none()
                && !draw(row, len).filters()
                && self.shapers.of(row.row).is_none()
                && self.guides.of(row.row).is_none()
        };
        let rows: usize = planned.iter().map(|row| row.work.tokens()).sum();
        let Leaves { blocks, rows: most } = self.leaves;
        planned.len() <= blocks && rows <= most && planned.iter().all(free)
    }

    /// Whether it pays to leave what was laid out. Where drafts were waited for the step behind it waits for its own, too,
    /// and of many rows that was measured to cost more than it saves.
    pub(super) fn is_worth_leaving(
        &self,
        blocks: &[Block<'_>],
        promised: Option<&Promised>,
    ) -> bool {
        let plain = blocks.iter().all(|block| block.len == 1);
        plain || promised.is_some() || self.pass.rows() <= self.target.ahead()
    }

    /// Takes in what steps chose that were left, up to what is to be unknown: waits where nobody has read them yet.
    pub(super) fn catch_up(&mut self, to: Unknown, memory: &mut StepMemory<'_>) {
        while let Some(step) = self.left.pop(to) {
            let ReadStep { outcomes, drafts, .. } = step.read();
            for ((left, outcome), (tokens, sure)) in step.rows.iter().zip(outcomes).zip(drafts) {
                memory.lengths[left.row.index] += outcome.tokens.len() as u32;
                if let Some(&last) = outcome.tokens.last() {
                    memory.anchors[left.row.index] = last;
                }
                self.calibration.take_in(sure, tokens.len(), outcome.accepted);
            }
        }
    }

    /// Gives the drafter the features of the last step, if that was left: of drafts that turn out to be refused, too,
    /// whose places nobody looks at before they are written again.
    pub(super) fn absorb_left(&mut self, memory: &StepMemory<'_>) {
        let Some(step) = self.left.last() else { return };
        let (features, all) = (self.target.features(), self.pass.rows());
        if features.is_empty() {
            return;
        }
        for left in step.rows.iter().filter(|left| left.absorb == Absorb::Keep) {
            let start = memory.lengths[left.row.index] as usize;
            let own = features.rows(left.first..left.first + left.width, all);
            let tokens = (start..start + left.width, &left.pages[..], self.page_size);
            take_in(&mut *self.drafter, own, tokens);
            self.clock.work("absorb", left.width);
        }
    }
}
