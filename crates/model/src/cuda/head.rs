//! The output head: choices on the card, how sure the drafter is of its own, and logits for those that the
//! host makes.

use super::pass::{From, Ids, Input, Program, Work, pieces, times};
use super::plan::Weight;
use super::room::{Best, SLAB, draw_words};
use device::cuda::{CudaSlice, CudaSliceMut};
use kernels::choose::cuda::{Confidences, Draws, Lists, Room, RuledRoom, Rules, Sampled};
use kernels::gemm::cuda::{Layout, Shape};
use std::ops::Range;

/// How the rows of a tile draw, of words for `rows` rows.
fn draws<'w>(
    words: CudaSlice<'w, u32>,
    rows: usize,
    tile: &Range<usize>,
    sampled: Sampled,
) -> Draws<'w> {
    let own = |first: usize| first + tile.start..first + tile.end;
    Draws {
        temperatures: words.range(own(2 * rows)).numbers(),
        seeds: words.range(times(tile, 2)).numbers(),
        positions: words.range(own(3 * rows)),
        shift: 0,
        sampled,
    }
}

fn room<'w>(best: &'w mut Best<'_>) -> Room<'w> {
    Room {
        largest: best.largest.all(),
        ids: best.ids.all(),
        scores: best.scores.all(),
        drawn: best.drawn.all(),
    }
}

/// Where it goes how sure the drafter is of the rows of a tile; nobody asks that of a target.
fn confidences<'w>(
    ids: Ids,
    weights: &'w mut CudaSliceMut<'_, f32>,
    (out, tile): (&'w mut CudaSliceMut<'_, u32>, &Range<usize>),
) -> Option<Confidences<'w>> {
    match ids {
        Ids::All => None,
        Ids::Proposed => {
            let out = out.range(tile.clone()).numbers();
            Some(Confidences { weights: weights.all(), out })
        }
    }
}

impl Program {
    /// The head, for the ids that are looked at, and how many of those may be chosen.
    fn head(&self, ids: Ids) -> (Weight, usize) {
        let whole = &self.plan.head;
        match ids {
            Ids::All => (whole.clone(), self.room.allowed),
            Ids::Proposed => {
                // The first columns of a packed weight are a packed weight.
                let n = self.room.proposed;
                let shape = Shape::new(n, whole.shape.k, self.plan.workers);
                (Weight { shape, ..whole.clone() }, n)
            }
        }
    }

    /// Chooses for each of `rows` rows as the words of `draws` say: seeds, temperatures, and positions
    /// of the tokens that are chosen. Of ids that are proposed, it also finds how sure the drafter is.
    pub(super) fn choose(
        &self,
        work: &mut Work<'_>,
        (rows, sampled): (usize, Sampled),
        from: From,
        ids: Ids,
    ) {
        let (head, allowed) = self.head(ids);
        let input = match from {
            From::All => Input::Hidden(Layout::Rows),
            From::Picked => Input::Picked,
        };
        self.product(work, (&head, input), rows, |work, tile| {
            let scratch = &mut work.scratch;
            let draws = draws(scratch.draws.read(), rows, tile, sampled);
            let room = room(&mut scratch.best);
            let logits = (pieces(&scratch.pieces, head.shape, tile), allowed);
            let (mut chosen, mut sure) = scratch.chosen.all().split(rows);
            let sure = confidences(ids, &mut scratch.weights, (&mut sure, tile));
            let out = (chosen.range(tile.clone()), sure);
            self.kernels.choices.launch(work.queue, logits, 0, draws, room, out);
        });
    }

    /// As [`Program::choose`] for picked rows, with the rules that stand behind the positions, and what they
    /// name behind them.
    pub(super) fn rule(&self, work: &mut Work<'_>, (rows, ids): (usize, Ids), lists: Lists) {
        let (head, allowed) = self.head(ids);
        // Rules need the logits whole, and there is room for so many.
        self.product_by(work, (&head, Input::Picked), (rows, SLAB), |work, tile| {
            let scratch = &mut work.scratch;
            let words = scratch.draws.read();
            let behind = words.range(draw_words(rows)..words.len());
            let rules = Rules::of(behind, (rows, tile.clone()), lists);
            let room = RuledRoom {
                best: room(&mut scratch.best),
                logits: scratch.logits.all(),
                cuts: scratch.cuts.all(),
            };
            let logits = (pieces(&scratch.pieces, head.shape, tile), allowed);
            let (mut chosen, mut sure) = scratch.chosen.all().split(rows);
            let sure = confidences(ids, &mut scratch.weights, (&mut sure, tile));
            let out = (chosen.range(tile.clone()), sure);
            let ruled = (draws(words, rows, tile, Sampled::Some), rules);
            self.kernels.choices.launch_ruled(work.queue, logits, 0, ruled, room, out);
        });
    }

    /// The logits of `rows` picked rows.
    pub(super) fn logits(&self, work: &mut Work<'_>, rows: usize, ids: Ids) {
        let (head, _) = self.head(ids);
        self.product(work, (&head, Input::Picked), rows, |work, tile| {
            let scratch = &mut work.scratch;
            let to = scratch.logits.range(times(tile, head.shape.n));
            let sums = pieces(&scratch.pieces, head.shape, tile);
            self.kernels.products.gather(work.queue, sums, to);
        });
    }
}
