//! The passes of a card, written once over the plan of a model: what is enqueued, or captured as a
//! graph.
//!
//! What a product leaves takes room for each row, so rows are cut into tiles, and what reads a product's
//! pieces does so tile by tile, in [`Program::product`] alone.

use super::batch::{Cut, Kind, Regions, Slice};
use super::card::Kernels;
use super::job::{Part, Place};
use super::plan::{Body, Drafter, Layer, Plan, Weight};
use super::room::{Room, Scratch, draw_words};
use super::short::{Made, Way};
use device::cuda::{CudaSlice, CudaSliceMut, Queue};
use kernels::accept::cuda::Accepted;
use kernels::attention::Sight;
use kernels::attention::cuda::{Attended, Out, TILE, Tail, Tiling};
use kernels::choose::cuda::{Lists, Sampled};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Behind, Layout, Lines, MOST_ROWS, Shape};
use kernels::gemm::gated::{Gates, Gating};
use kernels::norm::cuda::Kept;
use kernels::rope::cuda::{Embedded, Layers, Placed, StepRows, Stored, Turns};
use std::ops::Range;
use std::sync::Arc;

/// What a program sees of the card's memory.
pub(crate) type Seen<'j> = (
    (&'j Queue, CudaSlice<'j, u16>, CudaSlice<'j, f32>),
    (CudaSliceMut<'j, u16>, CudaSliceMut<'j, u64>),
);

/// The memory of a pass.
pub(crate) struct Work<'j> {
    pub(crate) queue: &'j Queue,
    pub(crate) weights: CudaSlice<'j, u16>,
    pub(crate) vectors: CudaSlice<'j, f32>,
    pub(super) keys: CudaSliceMut<'j, u16>,
    pub(super) values: CudaSliceMut<'j, u16>,
    pub(crate) scratch: Scratch<'j>,
}

/// What multiplies a weight.
#[derive(Clone, Copy)]
pub(crate) enum Input<'p> {
    /// Rows of the stream on their way through a layer, or out of it.
    Hidden(Layout),
    Picked,
    Features,
    /// With what is multiplied next.
    Attended(Layout, &'p Weight),
    Gated(Layout),
}

/// What a program does. A value says all that a graph of it depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// The target's layers, and the normed outputs of all rows.
    Verify { cut: Cut, taps: Taps, tokens: Tokens },
    /// The drafter's layers over blocks, and a choice for those that are asked for.
    Draft { cut: Cut, asked: Asked, sampled: Sampled },
    /// The drafter's keys and values of so many rows of features.
    Absorb { rows: usize },
    /// A choice for each of so many rows.
    Choose { rows: usize, from: From, sampled: Sampled },
    /// The same with the rules of each row, for picked rows.
    Rule { rows: usize, ids: Ids, lists: Lists },
    /// The logits of so many picked rows.
    Logits { rows: usize, ids: Ids },
    /// What becomes of the blocks of the pass before it, all of whose rows chose.
    Accept { regions: Regions },
}

impl What {
    /// Its rows, those that fill it up included.
    pub(crate) fn rows(&self) -> usize {
        match self {
            What::Verify { cut, .. } | What::Draft { cut, .. } => cut.regions.rows,
            What::Accept { regions } => regions.rows,
            What::Absorb { rows }
            | What::Choose { rows, .. }
            | What::Rule { rows, .. }
            | What::Logits { rows, .. } => *rows,
        }
    }
}

/// Who says which tokens a pass is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tokens {
    /// The host.
    Told,
    /// The host; of some it says which of the choices before they are.
    Promised,
}

/// Whether the outputs of tapped layers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Taps {
    /// For the drafter.
    Keep,
    /// Nobody will ask for them.
    Drop,
}

/// Which rows choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum From {
    /// All, in order.
    All,
    /// Those that were picked.
    Picked,
}

/// Which rows of a draft are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Asked {
    /// All, in order.
    All,
    /// So many, whose numbers stand behind the words of their draws.
    Some(usize),
}

/// Which ids of the head are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ids {
    /// All.
    All,
    /// Those that are proposed.
    Proposed,
}

/// Something to enqueue: one thing after the other.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) kernels: Kernels,
    pub(crate) plan: Arc<Plan>,
    pub(crate) room: Arc<Room>,
    pub(crate) parts: Vec<Part>,
}

impl<'j> Work<'j> {
    fn new(
        ((queue, weights, vectors), (kv, scratch)): Seen<'j>,
        room: &Room,
        place: &Place,
    ) -> Work<'j> {
        let half = kv.len() / 2;
        let (keys, values) = kv.split(half);
        Work { queue, weights, vectors, keys, values, scratch: room.cut(scratch, place) }
    }
}

/// What the host said about the rows of a slice.
fn step<'j>(batch: CudaSlice<'j, u32>, cut: &Cut, slice: &Slice, page_size: usize) -> StepRows<'j> {
    let regions = cut.regions;
    let own = |all: Range<usize>| all.start + slice.rows.start..all.start + slice.rows.end;
    StepRows {
        lengths: batch.range(regions.lengths()),
        spans: batch.range(own(regions.spans())),
        offsets: batch.range(own(regions.offsets())),
        firsts: batch.range(regions.firsts()),
        pages: batch.range(regions.pages()..batch.len()),
        page_size,
    }
}

/// Rows in tiles of so many at most.
fn in_tiles(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(most).map(move |start| start..(start + most).min(rows))
}

/// What a product of this shape left of a tile's rows.
pub(super) fn pieces<'w>(
    at: &'w CudaSliceMut<'_, f32>,
    shape: Shape,
    tile: &Range<usize>,
) -> Pieces<'w> {
    let rows = u32::try_from(tile.len()).expect("a tile has few rows");
    Pieces { at: at.read(), shape, rows }
}

pub(super) fn times(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// The elements of the rows of a tile, which begins where one of `layout` does.
fn of_tile(layout: Layout, rows: &Range<usize>, width: usize) -> Range<usize> {
    let start = rows.start * width;
    start..start + layout.elements(rows.len(), width)
}

/// Where a tile's rows of the stream are kept as one feature of so many.
pub(super) fn kept<'w>(
    features: &'w mut CudaSliceMut<'_, u16>,
    (tap, taps): (usize, usize),
    (tile, width): (&Range<usize>, usize),
) -> Kept<'w> {
    let to = features.range(times(tile, taps * width));
    Kept { to, first: tap * width, stride: taps * width }
}

/// Which feature of how many the output of layer `i` is.
pub(super) fn tapped(taps: &[usize], i: usize) -> Option<(usize, usize)> {
    taps.iter().position(|&tap| tap == i).map(|tap| (tap, taps.len()))
}

impl Program {
    /// Enqueues it all.
    pub(crate) fn run(&self, ((queue, weights, vectors), (mut kv, mut scratch)): Seen<'_>) {
        for Part { what, place } in &self.parts {
            let seen = ((queue, weights, vectors), (kv.all(), scratch.all()));
            self.run_one(&mut Work::new(seen, &self.room, place), what);
        }
    }

    fn run_one(&self, work: &mut Work<'_>, what: &What) {
        match what {
            What::Verify { cut, taps, tokens } => self.verify(work, cut, (*taps, *tokens)),
            What::Draft { cut, asked, sampled } => self.draft(work, cut, (*asked, *sampled)),
            What::Absorb { rows } => self.absorb(work, *rows),
            What::Choose { rows, from, sampled } => {
                self.choose(work, (*rows, *sampled), *from, Ids::All);
            }
            What::Rule { rows, ids, lists } => self.rule(work, (*rows, *ids), *lists),
            What::Logits { rows, ids } => self.logits(work, *rows, *ids),
            What::Accept { regions } => self.accept(work, *regions),
        }
    }

    /// `weight` times `rows` rows of `input`: `then` is called for each tile of rows, whose pieces are
    /// there until it returns.
    pub(crate) fn product(
        &self,
        work: &mut Work<'_>,
        of: (&Weight, Input<'_>),
        rows: usize,
        then: impl FnMut(&mut Work<'_>, &Range<usize>),
    ) {
        self.product_by(work, of, (rows, of.0.shape.rows_at_once()), then);
    }

    /// The same, by tiles of `most` rows, which are not more than the weight's shape has at once.
    pub(crate) fn product_by(
        &self,
        work: &mut Work<'_>,
        of: (&Weight, Input<'_>),
        (rows, most): (usize, usize),
        mut then: impl FnMut(&mut Work<'_>, &Range<usize>),
    ) {
        for tile in in_tiles(rows, most) {
            self.multiply(work, of, &tile);
            then(work, &tile);
        }
    }

    /// `weight` times a tile of rows of `input`, in pieces.
    fn multiply(
        &self,
        work: &mut Work<'_>,
        (weight, input): (&Weight, Input<'_>),
        tile: &Range<usize>,
    ) {
        let scratch = &mut work.scratch;
        let (x, layout, behind) = match input {
            Input::Hidden(layout) => (scratch.hidden.read(), layout, Behind::Short),
            Input::Picked => (scratch.picked.read(), Layout::Rows, Behind::Short),
            Input::Features => (scratch.features.read(), Layout::Rows, Behind::Short),
            Input::Attended(layout, next) => {
                let next = next.packed(work.weights);
                (scratch.attended.read(), layout, Behind::Attention(next))
            }
            Input::Gated(layout) => (scratch.gated.read(), layout, Behind::Short),
        };
        let x = x.range(of_tile(layout, tile, weight.shape.k));
        let x = Lines { x, rows: tile.len(), layout };
        let (products, packed) = (&self.kernels.products, weight.packed(work.weights));
        let pieces = scratch.pieces.all();
        let bias = weight.bias.clone().map(|bias| work.vectors.range(bias));
        match bias {
            None => products.launch(work.queue, (packed, behind), x, pieces),
            // Many rows are left added up, and take no bias later.
            Some(bias) if tile.len() > MOST_ROWS || layout == Layout::Tiles => {
                products.launch_biased(work.queue, packed, x, bias, pieces);
            }
            Some(bias) => {
                products.launch(work.queue, (packed, behind), x, pieces);
                let pieces = (scratch.pieces.all(), &weight.shape, tile.len());
                self.kernels.biases.add(work.queue, pieces, bias);
            }
        }
    }

    /// `x += delta` and its norm, into `hidden`; the sum is kept as a feature, of so many, where it is one.
    pub(super) fn norm(
        &self,
        work: &mut Work<'_>,
        (norm, eps): (&Range<usize>, f32),
        (tile, layout): (&Range<usize>, Layout),
        delta: Option<&Weight>,
        feature: Option<(usize, usize)>,
    ) {
        let at = times(tile, norm.len());
        let scratch = &mut work.scratch;
        let delta = delta.map(|weight| pieces(&scratch.pieces, weight.shape, tile));
        let weight = (work.vectors.range(norm.clone()), eps);
        let out = scratch.hidden.range(of_tile(layout, tile, norm.len()));
        let (x, out) = (scratch.x.range(at), (out, layout));
        let kept = feature.map(|tap| kept(&mut scratch.features, tap, (tile, norm.len())));
        self.kernels.norms.add_norm(work.queue, x, delta, weight, out, kept);
    }

    /// The places of the rows that the words of a batch tell of, for the heads of `body`. Where a pass begins, so
    /// does the stream: `ids` are the words with the rows' tokens.
    pub(super) fn place(
        &self,
        work: &mut Work<'_>,
        body: &Body,
        rows: impl for<'w> FnOnce(CudaSlice<'w, u32>) -> StepRows<'w>,
        ids: Option<Range<usize>>,
    ) {
        let (scratch, rotations) = (&mut work.scratch, &self.kernels.rotations);
        let words = scratch.batch.read();
        let to = Placed {
            positions: scratch.positions.all(),
            slots: scratch.slots.all(),
            angles: scratch.angles.all(),
        };
        let frequencies = (work.vectors.range(body.frequencies.clone()), 1.0);
        let Some(ids) = ids else {
            return rotations.places(work.queue, rows(words), frequencies, to);
        };
        let embedded = Embedded {
            table: work.weights.range(self.plan.table.clone()),
            width: body.sizes.hidden,
            ids: words.range(ids),
            x: scratch.x.all(),
        };
        rotations.begin(work.queue, rows(words), frequencies, to, embedded);
    }

    /// Places and embedding.
    fn begin(&self, work: &mut Work<'_>, body: &Body, cut: &Cut) {
        let all = Slice { rows: 0..cut.regions.rows, tiles: 0..0, tiling: Tiling::Any };
        let ids = Some(cut.regions.tokens());
        self.place(work, body, |words| step(words, cut, &all, self.room.page_size), ids);
    }

    /// The layers of `body`, and the norm behind them. `sight` is what rows of a block see, by layer;
    /// `taps` are the layers whose outputs are kept.
    fn layers(
        &self,
        work: &mut Work<'_>,
        body: &Body,
        cut: &Cut,
        (sight, taps): (Option<&[Sight]>, &[usize]),
    ) {
        self.begin(work, body, cut);
        let (rows, sizes) = (cut.regions.rows, &body.sizes);
        if self.way(body, rows) == Way::Short {
            return self.short_layers(work, body, cut, (sight, taps));
        }
        let layout = Layout::of(rows);
        let first = (&body.layers[0].attention_norm, sizes.eps);
        self.norm(work, first, (&(0..rows), layout), None, None);
        for (i, layer) in body.layers.iter().enumerate() {
            let at = body.first + i;
            let sight = sight.map(|sight| sight[i]);
            let kind = if sight.is_some() { Kind::Block } else { Kind::Causal };
            self.product(work, (&layer.qkv, Input::Hidden(layout)), rows, |work, tile| {
                let made = Made::Pieces(layer.qkv.shape);
                self.store(work, body, (layer, made), (at, kind, cut), tile);
            });
            self.attend(work, body, layer, (at, sight, cut));
            let attended = Input::Attended(layout, &layer.gate_up);
            self.product(work, (&layer.o, attended), rows, |work, tile| {
                let norm = (&layer.mlp_norm, sizes.eps);
                self.norm(work, norm, (tile, layout), Some(&layer.o), None);
            });
            self.gate(work, (&layer.gate_up, sizes.ffn), (rows, layout));
            // The last norm's rows are picked one by one.
            let (next, behind) = match body.layers.get(i + 1) {
                Some(next) => (&next.attention_norm, layout),
                None => (&body.norm, Layout::Rows),
            };
            let tap = tapped(taps, i);
            self.product(work, (&layer.down, Input::Gated(layout)), rows, |work, tile| {
                self.norm(work, (next, sizes.eps), (tile, behind), Some(&layer.down), tap);
            });
        }
    }

    /// SwiGLU of `rows` rows of the stream that lie as `layout` says: with the product of gates and ups, or behind it.
    fn gate(
        &self,
        work: &mut Work<'_>,
        (weight, ffn): (&Weight, usize),
        (rows, layout): (usize, Layout),
    ) {
        let (shape, products) = (weight.shape, &self.kernels.products);
        for tile in in_tiles(rows, shape.rows_at_once()) {
            let out_at = of_tile(layout, &tile, ffn);
            if !products.gates(&shape, tile.len(), layout) {
                self.multiply(work, (weight, Input::Hidden(layout)), &tile);
                let scratch = &mut work.scratch;
                let both = pieces(&scratch.pieces, shape, &tile);
                let out = (scratch.gated.range(out_at), layout);
                self.kernels.activations.swiglu(work.queue, both, out);
                continue;
            }
            let scratch = &mut work.scratch;
            let out = scratch.gated.range(out_at);
            let x = scratch.hidden.read().range(of_tile(layout, &tile, shape.k));
            let bias = weight.bias.clone().map(|bias| work.vectors.range(bias));
            let gates = Gates { weight: weight.packed(work.weights), bias };
            let (pieces, there) = (scratch.pieces.all(), scratch.there.all());
            let lines = Lines { x, rows: tile.len(), layout };
            products.launch_gated(work.queue, gates, lines, Gating { pieces, there, out });
        }
    }

    /// Where layer `at` has its keys, and its values.
    pub(super) fn pool(&self, at: usize) -> Range<usize> {
        let each = self.room.pool(&self.plan);
        at * each..(at + 1) * each
    }

    /// Makes a tile's heads of q, k and v, and puts them where attention finds them.
    pub(super) fn store(
        &self,
        work: &mut Work<'_>,
        body: &Body,
        (layer, made): (&Layer, Made<'_>),
        (at, kind, cut): (usize, Kind, &Cut),
        tile: &Range<usize>,
    ) {
        let (pool, sizes) = (self.pool(at), &body.sizes);
        let scratch = &mut work.scratch;
        let (slots, keys, values, page_size) = match kind {
            Kind::Block => {
                let own = scratch.batch.read().range(cut.regions.own());
                (own, scratch.block_keys.all(), scratch.block_values.all(), 1)
            }
            Kind::Causal => {
                let slots = scratch.slots.read();
                (slots, work.keys.range(pool.clone()), work.values.range(pool), self.room.page_size)
            }
        };
        let turns = Turns {
            norms: work.vectors.range(layer.head_norms.clone()),
            eps: sizes.head_eps(),
            angles: scratch.angles.read().range(times(tile, sizes.heads.dim)),
            slots: slots.range(tile.clone()),
        };
        let q = scratch.q.range(times(tile, sizes.queries()));
        let to = Stored { q, keys, values, page_size, layers: Layers::ONE };
        let from = (&scratch.pieces, &scratch.x, tile);
        self.put_heads(work.queue, (sizes.heads, made), from, (turns, to));
    }

    pub(super) fn attend(
        &self,
        work: &mut Work<'_>,
        body: &Body,
        layer: &Layer,
        (at, sight, cut): (usize, Option<Sight>, &Cut),
    ) {
        let (pool, sizes) = (self.pool(at), &body.sizes);
        let scratch = &mut work.scratch;
        if cut.slices.len() > 1 {
            // A later slice takes the rows of an earlier one for context, which attention fetches
            // before it waits. Nothing starts early behind a clear, so they are there.
            work.queue.clear(scratch.spare.all());
        }
        for slice in &cut.slices {
            let tail = sight.map_or(Tail::Causal, |sight| Tail::Block {
                keys: scratch.block_keys.read().range(times(&slice.rows, sizes.keys())),
                values: scratch.block_values.read().range(times(&slice.rows, sizes.keys())),
                sight,
            });
            let tiles = cut.regions.tiles();
            let tiles =
                tiles.start + slice.tiles.start * TILE..tiles.start + slice.tiles.end * TILE;
            let attended = Attended {
                keys: work.keys.read().range(pool.clone()),
                values: work.values.read().range(pool.clone()),
                tail,
                step: step(scratch.batch.read(), cut, slice, self.room.page_size),
                tiles: scratch.batch.read().range(tiles),
                tiling: slice.tiling,
                heads: sizes.heads,
                splits: cut.splits,
                scale: sizes.scale(),
                window: layer.window,
            };
            let q = scratch.q.read().range(times(&slice.rows, sizes.queries()));
            let layout = Layout::of(cut.regions.rows);
            let out = Out { to: scratch.attended.all(), first: slice.rows.start, layout };
            self.kernels.attention.launch(work.queue, attended, q, scratch.parts.all(), out);
        }
    }

    fn verify(&self, work: &mut Work<'_>, cut: &Cut, (taps, tokens): (Taps, Tokens)) {
        match tokens {
            Tokens::Told => {}
            Tokens::Promised => {
                let scratch = &mut work.scratch;
                let tokens = scratch.batch.range(cut.regions.tokens());
                self.kernels.gather.resolve(work.queue, scratch.chosen.read(), tokens);
            }
        }
        let drafter = self.plan.drafter.as_ref();
        let taps = match (taps, drafter) {
            (Taps::Keep, Some(drafter)) => &drafter.taps[..],
            (Taps::Keep | Taps::Drop, _) => &[],
        };
        self.layers(work, &self.plan.target, cut, (None, taps));
    }

    fn draft(&self, work: &mut Work<'_>, cut: &Cut, (asked, sampled): (Asked, Sampled)) {
        let drafter = self.drafter();
        self.layers(work, &drafter.body, cut, (Some(&drafter.sight), &[]));
        let (rows, from) = match asked {
            Asked::All => (cut.regions.rows, From::All),
            Asked::Some(rows) => {
                let (words, scratch) = (draw_words(rows), &mut work.scratch);
                let numbers = scratch.draws.read().range(words..words + rows);
                let hidden = (scratch.hidden.read(), drafter.body.sizes.hidden);
                self.kernels.gather.rows(work.queue, hidden, numbers, scratch.picked.all());
                (rows, From::Picked)
            }
        };
        self.choose(work, (rows, sampled), from, Ids::Proposed);
    }

    fn accept(&self, work: &mut Work<'_>, regions: Regions) {
        let scratch = &mut work.scratch;
        let batch = scratch.batch.read();
        let rows = (batch.range(regions.tokens()), batch.range(regions.spans()));
        let accepted = Accepted { refused: scratch.refused.all(), anchors: scratch.anchors.all() };
        self.kernels.acceptance.launch(work.queue, rows, scratch.chosen.read(), accepted);
    }

    pub(super) fn drafter(&self) -> &Drafter {
        self.plan.drafter.as_ref().expect("a pair with a drafter")
    }
}
