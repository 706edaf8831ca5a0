//! Absorbing: a drafter's keys and values of rows of features.

use super::pass::{Input, Program, Work, times};
use super::short::{Made, Way};
use kernels::gemm::cuda::Layout;
use kernels::rope::cuda::{Heads, Layers, StepRows, Stored, Turns};
use std::ops::Range;

impl Program {
    /// The words of a batch are the rows' positions, zeros (the request of each, its length, and where
    /// its page is) and the rows' slots: see [`super::run`].
    pub(super) fn absorb(&self, work: &mut Work<'_>, rows: usize) {
        self.place(
            work,
            &self.drafter().body,
            |words| {
                let zeros = words.range(rows..2 * rows);
                StepRows {
                    lengths: zeros,
                    spans: zeros,
                    offsets: words.range(0..rows),
                    firsts: zeros,
                    pages: zeros,
                    // One page for all: slots are told, and only angles are wanted here.
                    page_size: 1 << 30,
                }
            },
            None,
        );
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
            self.store_context(work, Made::Pieces(drafter.kv.shape), (rows, tile));
        });
    }

    /// Makes and stores k and v of all layers, of a tile's rows of `rows` in all.
    pub(super) fn store_context(
        &self,
        work: &mut Work<'_>,
        made: Made<'_>,
        (rows, tile): (usize, &Range<usize>),
    ) {
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
        let heads = Heads { q: 0, ..sizes.heads };
        let from = (&scratch.pieces, &scratch.x, tile);
        self.put_heads(work.queue, (heads, made), from, (turns, to));
    }
}
