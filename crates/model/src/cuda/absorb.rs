//! Absorbing: a drafter's keys and values of rows of features.

use super::pass::{Input, Program, Rest, Work, pieces, times};
use super::short::Way;
use kernels::gemm::cuda::Layout;
use kernels::rope::cuda::{Layers, Placed, StepRows, Stored, Turns};
use std::ops::Range;

impl Program {
    /// The words of a batch are the rows' positions, zeros (the request of each, its length, and where
    /// its page is) and the rows' slots: see [`super::run`].
    pub(super) fn absorb(&self, work: &mut Work<'_>, rows: usize) {
        let drafter = self.drafter();
        let body = &drafter.body;
        let scratch = &mut work.scratch;
        let words = scratch.batch.read();
        let zeros = words.range(rows..2 * rows);
        let of = StepRows {
            lengths: zeros,
            spans: zeros,
            offsets: words.range(0..rows),
            firsts: zeros,
            pages: zeros,
            // One page for all: slots are told, and only angles are wanted here.
            page_size: 1 << 30,
        };
        let to = Placed {
            positions: scratch.positions.all(),
            slots: scratch.slots.all(),
            angles: scratch.angles.all(),
        };
        let frequencies = (work.vectors.range(body.frequencies.clone()), 1.0);
        self.kernels.rotations.places(work.queue, of, frequencies, to);
        match self.way_to_absorb(rows) {
            Way::Short => self.short_absorb(work, rows),
            Way::Tiled => self.tiled_absorb(work, rows),
        }
    }

    fn tiled_absorb(&self, work: &mut Work<'_>, rows: usize) {
        let (drafter, layout) = (self.drafter(), Layout::of(rows));
        let hidden = drafter.body.sizes.hidden;
        work.queue.clear(work.scratch.x.range(0..rows * hidden));
        self.product(work, (&drafter.fc, Input::Features), rows, |work, tile| {
            let norm = (&drafter.hidden_norm, drafter.body.sizes.eps);
            self.norm(work, norm, (tile, layout), Some(&drafter.fc), None);
        });
        self.product(work, (&drafter.kv, Input::Hidden(layout)), rows, |work, tile| {
            let (turns, to, rest) = self.with_context(work, (rows, tile));
            let projected = pieces(rest.pieces, drafter.kv.shape, tile);
            self.kernels.rotations.store(rest.queue, (drafter.absorbed(), projected), turns, to);
        });
    }

    /// What the heads of a tile's rows, of `rows` in all, are made with, and where they go: k and v of all layers.
    pub(super) fn with_context<'w>(
        &self,
        work: &'w mut Work<'_>,
        (rows, tile): (usize, &Range<usize>),
    ) -> (Turns<'w>, Stored<'w>, Rest<'w>) {
        let drafter = self.drafter();
        let (body, sizes) = (&drafter.body, &drafter.body.sizes);
        let (first, each) = (self.pool(body.first), self.room.pool(&self.plan));
        let pool = first.start..first.start + body.layers.len() * each;
        let (norms, norms_apart) = drafter.head_norms();
        let scratch = &mut work.scratch;
        let turns = Turns {
            norms: work.vectors.range(norms),
            eps: sizes.head_eps(),
            angles: scratch.angles.read().range(times(tile, sizes.heads.dim)),
            slots: scratch.batch.read().range(2 * rows + tile.start..2 * rows + tile.end),
        };
        let to = Stored {
            q: scratch.q.all(),
            keys: work.keys.range(pool.clone()),
            values: work.values.range(pool),
            page_size: self.room.page_size,
            layers: Layers { count: body.layers.len(), pages_apart: each, norms_apart },
        };
        let rest = Rest { queue: work.queue, pieces: &scratch.pieces, x: &scratch.x };
        (turns, to, rest)
    }
}
