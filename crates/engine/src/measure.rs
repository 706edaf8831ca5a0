//! What steps cost on this device, measured before the first request comes, so that its width is
//! chosen as well as later ones. A few passes tell enough; landed steps tell the rest.

use crate::draft::{Draft, DraftRow, Drafter, Judge};
use crate::target::{Choosing, Target};
use crate::{EngineOptions, Parts};
use device::Clock;
use kernels::choose::Draw;
use model::pass::Pass;
use schedule::{CostCurve, StepCost, WidthPolicy};
use std::time::Duration;

/// No pass begins later than this.
const BUDGET: Duration = Duration::from_millis(50);
/// Each pass is timed so often, and the least time counts: the first one reads weights that no
/// cache holds, and what else the machine does only ever adds.
const READINGS: usize = 3;
/// Rows of the wider verify pass, and tokens that a drafted request verifies, the anchor included:
/// a usual width.
const WIDTH: usize = 4;

impl Parts {
    /// Measures what steps cost on this device, in about 50 ms, if `options` adapt widths without
    /// knowing it and there is a drafter to choose widths for. To be called before an engine is
    /// assembled of the parts, whose device has `clock`; [`Engine::new`](crate::Engine::new) does
    /// so.
    pub fn measure(&mut self, clock: &Clock, options: &mut EngineOptions) {
        let WidthPolicy::Adaptive(cost) = &mut options.widths else { return };
        if cost.is_unknown() && self.drafter.block() > 1 {
            let (target, drafter) = (&mut *self.target, &mut *self.drafter);
            *cost = step_cost(clock, target, drafter, (self.pages, options.page_size));
        }
    }
}

/// Times passes over the first of the pools' `pages` of some size, whose content is nobody's yet.
/// The drafter's block is at least 2 wide.
fn step_cost(
    clock: &Clock,
    target: &mut dyn Target,
    drafter: &mut dyn Drafter,
    (pages, page_size): (usize, usize),
) -> StepCost {
    let (pages, wide) = ((0..pages as u32).collect(), WIDTH.min(pages * page_size));
    let mut probe = Probe { target, drafter, page_size, pages, pass: Pass::default() };
    let verify = CostCurve::of_stairs(probe.target.stairs());
    let blocks = probe.drafter.blocks();
    // What lies between is between them.
    let ends = [blocks[0], blocks[blocks.len() - 1]];
    let drafts = &ends[..blocks.len().min(2)];
    let mut passes = vec![Timed::Verify(1)];
    passes.extend(drafts.iter().copied().map(Timed::Draft));
    passes.push(Timed::Verify(wide));
    let (mut cost, begun) = (StepCost { verify, blocks, ..StepCost::default() }, clock.now());
    for _ in 0..READINGS {
        for &pass in &passes {
            let start = clock.now();
            if start - begun > BUDGET {
                return cost;
            }
            match pass {
                Timed::Verify(rows) => {
                    probe.verify(rows);
                    clock.work("verify", rows);
                    cost.verify.learn(rows, (clock.now() - start).as_secs_f64());
                    probe.absorb();
                }
                Timed::Draft(block) => {
                    probe.draft(block);
                    clock.work("draft", 1);
                    cost.draft.learn(block, (clock.now() - start).as_secs_f64());
                }
            }
        }
    }
    cost
}

/// A pass that is timed.
#[derive(Clone, Copy)]
enum Timed {
    /// The target's, of so many rows.
    Verify(usize),
    /// The drafter's, for one request, in a block of so many positions.
    Draft(usize),
}

struct Probe<'p> {
    target: &'p mut dyn Target,
    drafter: &'p mut dyn Drafter,
    page_size: usize,
    pages: Vec<u32>,
    pass: Pass,
}

impl Probe<'_> {
    /// A verify pass of `rows` rows, every one of which chooses.
    fn verify(&mut self, rows: usize) {
        self.pass.clear();
        self.pass.push(&vec![0; rows], 0, &self.pages, self.page_size);
        self.target.forward(&self.pass, self.drafter.taps());
        let draws: Vec<Draw> = (1..=rows).map(draw).collect();
        let all: Vec<usize> = (0..rows).collect();
        let choosing = Choosing { rows: &all, draws: &draws, shapes: &[], kept: &[] };
        self.target.choose(&choosing, &mut vec![0; rows]);
    }

    /// The drafter takes in the rows of the last verify pass.
    fn absorb(&mut self) {
        let Pass { positions, slots, .. } = &self.pass;
        self.drafter.absorb(self.target.features(), positions, slots);
        self.drafter.settle();
    }

    /// A draft pass for one request of one known token.
    fn draft(&mut self, block: usize) {
        let row = DraftRow {
            request: 0,
            anchor: 0,
            len: 1,
            behind: None,
            width: WIDTH.min(block),
            judge: Judge::LENIENT,
            likely: block - 1,
            pages: &self.pages[..1],
            draw: draw(2),
            shaper: None,
            allowed: None,
        };
        self.drafter.propose(&[row], &mut [Draft::default()]);
    }
}

/// A greedy choice.
fn draw(position: usize) -> Draw {
    let position = position as u32;
    Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::{Features, Scripted};
    use kernels::choose::LogProbs;

    /// A target that writes down how many rows its passes had.
    #[derive(Default)]
    struct Witness {
        rows: Vec<usize>,
        slots: u32,
    }

    impl Target for Witness {
        fn forward(&mut self, pass: &Pass, _: &[usize]) {
            assert!(pass.slots.iter().all(|&slot| slot < self.slots), "a slot outside the pool");
            self.rows.push(pass.rows());
        }

        fn features(&self) -> Features<'_> {
            Features::none()
        }

        fn choose(&mut self, rows: &Choosing<'_>, _: &mut [u32]) {
            assert_eq!(rows.rows.len(), self.rows[self.rows.len() - 1], "every row chooses");
        }

        fn log_probs(&self, _: usize, _: u32, _: usize) -> LogProbs {
            LogProbs::default()
        }

        fn score(&mut self, rows: &[usize], _: &[u32], _: usize) -> Vec<LogProbs> {
            vec![LogProbs::default(); rows.len()]
        }
    }

    #[test]
    fn passes_stay_within_the_pool_and_tell_what_they_cost() {
        for (pages, page_size, wide) in [(2, 4, 4), (1, 1, 1), (5, 16, 4)] {
            let slots = (pages * page_size) as u32;
            let mut target = Witness { slots, ..Witness::default() };
            let mut drafter = Scripted::new(8, |_, _| 0);
            let (clock, size) = (Clock::wall(), (pages, page_size));
            let cost = step_cost(&clock, &mut target, &mut drafter, size);
            assert!(cost.verify.seconds(1) > 0.0);
            // How far it gets is a matter of time, that it starts is not.
            assert_eq!(target.rows[0], 1);
            assert!(target.rows.iter().all(|&rows| rows == 1 || rows == wide));
        }
    }
}
