//! The output head: choices on the card, and logits for those that the host makes.

use super::pass::{From, Ids, Input, Program, Work, pieces, times};
use super::plan::Weight;
use kernels::choose::cuda::{Draws, Room};
use kernels::gemm::cuda::Shape;

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
    /// of the tokens that are chosen.
    pub(super) fn choose(&self, work: &mut Work<'_>, rows: usize, from: From, ids: Ids) {
        let (head, allowed) = self.head(ids);
        let input = match from {
            From::All => Input::Hidden,
            From::Picked => Input::Picked,
        };
        self.product(work, (&head, input), rows, |work, tile| {
            let scratch = &mut work.scratch;
            let words = scratch.draws.read();
            let own = |first: usize| first + tile.start..first + tile.end;
            let draws = Draws {
                temperatures: words.range(own(2 * rows)).numbers(),
                seeds: words.range(times(tile, 2)).numbers(),
                positions: words.range(own(3 * rows)),
                shift: 0,
            };
            let best = &mut scratch.best;
            let room = Room {
                largest: best.largest.all(),
                ids: best.ids.all(),
                scores: best.scores.all(),
                drawn: best.drawn.all(),
            };
            let logits = (pieces(&scratch.pieces, &head, tile), allowed);
            let out = scratch.chosen.range(tile.clone());
            self.kernels.choices.launch(work.queue, logits, 0, draws, room, out);
        });
    }

    /// The logits of `rows` picked rows.
    pub(super) fn logits(&self, work: &mut Work<'_>, rows: usize, ids: Ids) {
        let (head, _) = self.head(ids);
        self.product(work, (&head, Input::Picked), rows, |work, tile| {
            let scratch = &mut work.scratch;
            let to = scratch.logits.range(times(tile, head.shape.n));
            let sums = pieces(&scratch.pieces, &head, tile);
            self.kernels.products.gather(work.queue, sums, to);
        });
    }
}
