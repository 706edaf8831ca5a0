//! Passes of few rows of small models, whose products do what stands before and behind them too: see
//! [`kernels::gemm::short`].

use super::batch::{Cut, Kind};
use super::pass::{Program, Work, kept, pieces, tapped, times};
use super::plan::{Body, Weight};
use device::cuda::{CudaSlice, CudaSliceMut, Queue};
use kernels::attention::Sight;
use kernels::gemm::cuda::{Layout, Shape};
use kernels::gemm::short::{self, Around, Stream};
use kernels::rope::cuda::{Heads, Stored, Turns};
use std::ops::Range;

/// How the layers of a pass are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By products that do what stands around them too.
    Short,
    /// Tile by tile of rows.
    Tiled,
}

/// What heads are made of.
pub(super) enum Made<'j> {
    /// What a product of this shape left.
    Pieces(Shape),
    /// Rows of the stream, with a norm's weights and what is added to the mean square, and a weight.
    Rows(short::Weight<'j>, (CudaSlice<'j, f32>, f32)),
}

/// What stands around the product of a body's heads, which may have norms of their own.
fn around_heads(body: &Body, head_norms: &Range<usize>) -> Around {
    if head_norms.is_empty() { Around::Heads(body.sizes.heads.dim) } else { Around::Normed }
}

/// A weight as short products take it.
fn on_card<'j>(work: &Work<'j>, weight: &Weight) -> short::Weight<'j> {
    short::Weight {
        packed: weight.packed(work.weights),
        bias: weight.bias.clone().map(|bias| work.vectors.range(bias)),
    }
}

impl Program {
    /// How `rows` rows go through the layers of `body`, whose weights have the same shapes in all.
    pub(super) fn way(&self, body: &Body, rows: usize) -> Way {
        let layer = &body.layers[0];
        let products = [
            (&layer.qkv, around_heads(body, &layer.head_norms)),
            (&layer.o, Around::Added),
            (&layer.gate_up, Around::Gated),
            (&layer.down, Around::Added),
        ];
        self.way_of(products, rows)
    }

    /// How `rows` rows are absorbed.
    pub(super) fn way_to_absorb(&self, rows: usize) -> Way {
        let drafter = self.drafter();
        let around = around_heads(&drafter.body, &drafter.head_norms().0);
        self.way_of([(&drafter.kv, around), (&drafter.fc, Around::Added)], rows)
    }

    fn way_of<'p>(
        &self,
        products: impl IntoIterator<Item = (&'p Weight, Around)>,
        rows: usize,
    ) -> Way {
        let fits = |weight: &Weight, around| self.kernels.shorts.fits(&weight.shape, around, rows);
        let all = products.into_iter().all(|(weight, around)| fits(weight, around));
        if all { Way::Short } else { Way::Tiled }
    }

    /// As [`Program::layers`], behind the embedding.
    pub(super) fn short_layers(
        &self,
        work: &mut Work<'_>,
        body: &Body,
        cut: &Cut,
        (sight, taps): (Option<&[Sight]>, &[usize]),
    ) {
        let (rows, sizes) = (cut.regions.rows, &body.sizes);
        let all = 0..rows;
        for (i, layer) in body.layers.iter().enumerate() {
            let at = body.first + i;
            let sight = sight.map(|sight| sight[i]);
            let kind = if sight.is_some() { Kind::Block } else { Kind::Causal };
            let norms = (&layer.attention_norm, sizes.eps, &layer.head_norms);
            let made = self.project(work, &layer.qkv, norms, &all);
            self.store(work, body, (layer, made), (at, kind, cut), &all);
            self.attend(work, body, layer, (at, sight, cut));
            let stream = times(&all, sizes.hidden);
            let (o, down) = (on_card(work, &layer.o), on_card(work, &layer.down));
            let gate_up = on_card(work, &layer.gate_up);
            let norm = work.vectors.range(layer.mlp_norm.clone());
            let (shorts, scratch) = (&self.kernels.shorts, &mut work.scratch);
            let sum = (scratch.x.range(stream.clone()), None);
            shorts.added(work.queue, o, scratch.attended.read(), sum);
            let normed =
                Stream { rows: scratch.x.read().range(stream.clone()), norm, eps: sizes.eps };
            shorts.of_gated(work.queue, gate_up, normed, scratch.gated.all());
            let kept =
                tapped(taps, i).map(|tap| kept(&mut scratch.features, tap, (&all, sizes.hidden)));
            let sum = (scratch.x.range(stream), kept);
            shorts.added(work.queue, down, scratch.gated.read(), sum);
        }
        self.norm(work, (&body.norm, sizes.eps), (&all, Layout::Rows), None, None);
    }

    /// What heads are made of that are the product of `weight` with normed rows of the stream: what that product left
    /// where heads have norms of their own.
    fn project<'j>(
        &self,
        work: &mut Work<'j>,
        weight: &Weight,
        (norm, eps, head_norms): (&Range<usize>, f32, &Range<usize>),
        rows: &Range<usize>,
    ) -> Made<'j> {
        let (on_card, norm) = (on_card(work, weight), work.vectors.range(norm.clone()));
        if head_norms.is_empty() {
            return Made::Rows(on_card, (norm, eps));
        }
        let scratch = &mut work.scratch;
        let stream = scratch.x.read().range(times(rows, norm.len()));
        let stream = Stream { rows: stream, norm, eps };
        self.kernels.shorts.of_normed(work.queue, on_card, stream, scratch.pieces.all());
        Made::Pieces(weight.shape.whole())
    }

    /// Makes the heads of a tile and stores them; `left` are pieces, `x` is the stream.
    pub(super) fn put_heads(
        &self,
        queue: &Queue,
        (heads, made): (Heads, Made<'_>),
        (left, x, tile): (&CudaSliceMut<'_, f32>, &CudaSliceMut<'_, f32>, &Range<usize>),
        (turns, to): (Turns<'_>, Stored<'_>),
    ) {
        match made {
            Made::Pieces(shape) => {
                self.kernels.rotations.store(queue, (heads, pieces(left, shape, tile)), turns, to);
            }
            Made::Rows(weight, (norm, eps)) => {
                let rows = x.read().range(times(tile, norm.len()));
                let stream = Stream { rows, norm, eps };
                self.kernels.shorts.of_heads(queue, (weight, heads), stream, (turns, to));
            }
        }
    }

    /// As [`Program::absorb`], behind places.
    pub(super) fn short_absorb(&self, work: &mut Work<'_>, rows: usize) {
        let (drafter, all) = (self.drafter(), 0..rows);
        let fc = on_card(work, &drafter.fc);
        let (scratch, sizes) = (&mut work.scratch, &drafter.body.sizes);
        let stream = scratch.x.range(times(&all, sizes.hidden));
        self.kernels.shorts.begun(work.queue, fc, scratch.features.read(), stream);
        let head_norms = drafter.head_norms().0;
        let norms = (&drafter.hidden_norm, sizes.eps, &head_norms);
        let made = self.project(work, &drafter.kv, norms, &all);
        self.store_context(work, made, (rows, &all));
    }
}
