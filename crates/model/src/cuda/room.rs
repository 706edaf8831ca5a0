//! Memory of passes: one stretch of the card's, guarded once a launch and cut into what a pass works on.

use super::batch::{Regions, filled};
use super::job::Place;
use super::plan::Plan;
use device::cuda::{CudaSliceMut, Number};
use kernels::attention::cuda::Attention;
use kernels::choose::cuda::{Choices, RULE_WORDS};
use kernels::gather::cuda::MOST_BLOCKS;
use kernels::gemm::cuda::{Layout, Shape};

/// Bytes of what attention leaves of its rows, at most: a pass that needs more attends in parts.
const PARTS_BYTES: usize = 256 << 20;
/// Floats that filters leave of a row.
const CUT: usize = 3;
/// Bytes that a stretch for one purpose is aligned to.
const ALIGN: usize = 256;
/// Rows whose logits are there at once, for rules and for the host.
pub const SLAB: usize = 32;
/// Additions to the logits of a row that a card makes at most.
pub const MOST_ADDITIONS: usize = 2048;

/// What the passes of a pair may need at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Pages of the KV pool.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Rows of a pass.
    pub rows: usize,
    /// Requests of a pass.
    pub requests: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// Rows of a block that a drafter drafts; 1 without one.
    pub block: usize,
    /// Ids below this may be chosen.
    pub allowed: usize,
    /// Ids below this are proposed.
    pub proposed: usize,
}

/// The lengths of everything that passes work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) rows: usize,
    pub(crate) pages: usize,
    pub(crate) page_size: usize,
    pub(crate) allowed: usize,
    pub(crate) proposed: usize,
    /// Page ids of a pass.
    pub(crate) ids: usize,
    /// Floats of what attention leaves.
    pub(crate) parts: usize,
    hidden: usize,
    features: usize,
    q: usize,
    gated: usize,
    block: usize,
    angles: usize,
    pieces: usize,
    there: usize,
    chunks: usize,
    vocab: usize,
    /// Words of rules of up to [`SLAB`] rows and of what they name, those of one row at least.
    pub(crate) rules: usize,
}

/// Room for the best of each chunk of a choice.
pub(crate) struct Best<'j> {
    pub(crate) largest: CudaSliceMut<'j, f32>,
    pub(crate) ids: CudaSliceMut<'j, u32>,
    pub(crate) scores: CudaSliceMut<'j, f64>,
    pub(crate) drawn: CudaSliceMut<'j, u32>,
}

/// What a pass works on.
pub(crate) struct Scratch<'j> {
    /// What the host says about a pass: see [`super::batch`].
    pub(crate) batch: CudaSliceMut<'j, u32>,
    /// What the host says about choices.
    pub(crate) draws: CudaSliceMut<'j, u32>,
    /// Rows that are multiplied, `[rows, hidden]`; after a pass its normed outputs.
    pub(crate) hidden: CudaSliceMut<'j, u16>,
    /// Some of those, for the head.
    pub(crate) picked: CudaSliceMut<'j, u16>,
    /// `[rows, taps · hidden]`.
    pub(crate) features: CudaSliceMut<'j, u16>,
    pub(crate) q: CudaSliceMut<'j, u16>,
    pub(crate) attended: CudaSliceMut<'j, u16>,
    pub(crate) gated: CudaSliceMut<'j, u16>,
    pub(crate) block_keys: CudaSliceMut<'j, u16>,
    pub(crate) block_values: CudaSliceMut<'j, u16>,
    /// The residual stream, `[rows, hidden]`.
    pub(crate) x: CudaSliceMut<'j, f32>,
    pub(crate) pieces: CudaSliceMut<'j, f32>,
    /// Which pieces of gates and ups are there: zero between passes.
    pub(crate) there: CudaSliceMut<'j, u32>,
    pub(crate) parts: CudaSliceMut<'j, f32>,
    pub(crate) angles: CudaSliceMut<'j, f32>,
    pub(crate) positions: CudaSliceMut<'j, u32>,
    pub(crate) slots: CudaSliceMut<'j, u32>,
    /// What was chosen for each row; behind those of a drafter how sure it is of each, floats. Of a place behind others
    /// that are still to be read it begins there.
    pub(crate) chosen: CudaSliceMut<'j, u32>,
    /// What became of the blocks of a step that was left: see [`kernels::accept::cuda::Accepted`].
    pub(crate) refused: CudaSliceMut<'j, u32>,
    pub(crate) anchors: CudaSliceMut<'j, u32>,
    /// `[SLAB, vocab]`, and room to align each row.
    pub(crate) logits: CudaSliceMut<'j, f32>,
    /// What filters leave of up to [`SLAB`] rows.
    pub(crate) cuts: CudaSliceMut<'j, f32>,
    pub(crate) best: Best<'j>,
    /// What chunks weigh, for how sure the drafter is.
    pub(crate) weights: CudaSliceMut<'j, f32>,
    /// Nobody's: to put something between two kernels.
    pub(crate) spare: CudaSliceMut<'j, u32>,
}

/// Words of a choice of `rows` rows: seeds, temperatures, positions.
pub(crate) const fn draw_words(rows: usize) -> usize {
    4 * rows
}

impl Room {
    pub(crate) fn new(plan: &Plan, capacity: &Capacity) -> Room {
        let Capacity { pages, page_size, rows, requests, context, block, .. } = *capacity;
        let Capacity { allowed, proposed, .. } = *capacity;
        // So that passes of so many can be filled up.
        let rows = filled(rows, usize::MAX).unwrap_or(rows);
        let bodies = || [&plan.target].into_iter().chain(plan.drafter.iter().map(|d| &d.body));
        let most = |of: &dyn Fn(&super::shape::Sizes) -> usize| {
            bodies().map(|body| of(&body.sizes)).max().expect("a target")
        };
        let tile = |shape: &Shape| rows.min(shape.rows_at_once());
        let head = &plan.head.shape;
        let draft_head = Shape::new(proposed, head.k, plan.workers);
        let shapes = plan.weights().map(|weight| weight.shape).chain([draft_head]);
        let choices = [(head, allowed), (&draft_head, proposed)];
        let chunks = choices.map(|(head, ids)| tile(head) * Choices::chunks(ids));
        let one = |body: &super::plan::Body| {
            let heads = body.sizes.heads;
            let (all, least) = (Attention::parts(heads, rows), Attention::parts(heads, block));
            // A block is attended to whole.
            all.min(PARTS_BYTES / 4).max(least)
        };
        let hidden = plan.target.sizes.hidden;
        // What is multiplied may lie in whole tiles.
        let lines = Layout::of(rows).elements(rows, 1);
        let taps = plan.drafter.as_ref().map_or(0, |drafter| drafter.taps.len());
        let ids = requests * context.div_ceil(page_size) + Regions::slack(page_size);
        Room {
            rows,
            pages,
            page_size,
            allowed,
            proposed,
            ids,
            parts: bodies().map(one).max().expect("a target"),
            hidden: lines * hidden,
            features: rows * taps * hidden,
            q: lines * most(&|sizes| sizes.queries()),
            gated: lines * most(&|sizes| sizes.ffn),
            block: rows * most(&|sizes| sizes.keys()),
            angles: rows * most(&|sizes| sizes.heads.dim),
            pieces: shapes.map(|shape| shape.pieces(tile(&shape))).max().expect("a head"),
            there: plan.gates().map(|weight| weight.shape.meetings()).max().expect("a layer"),
            chunks: chunks[0].max(chunks[1]),
            vocab: plan.vocab,
            rules: SLAB * (RULE_WORDS + 2 * block + allowed.div_ceil(32))
                + 2 * (context.min(plan.vocab) + MOST_ADDITIONS),
        }
    }

    /// The page that rows write to which stand for nothing.
    pub(crate) fn nowhere(&self) -> u32 {
        u32::try_from(self.pages).expect("page ids fit 32 bits")
    }

    /// Elements of one layer's keys, and of its values.
    pub(crate) fn pool(&self, plan: &Plan) -> usize {
        (self.pages + 1) * self.page_size * plan.kv_width()
    }

    /// Words of what the host says at most: about a pass, and about choices.
    pub(crate) fn said(&self) -> usize {
        let filters = draw_words(self.rows) + self.rows * RULE_WORDS;
        let draws = filters.max(draw_words(SLAB) + self.rules);
        draws.next_multiple_of(ALIGN) + Regions::most(self.rows, self.ids)
    }

    /// Choices that are there at once: those of a draft, how sure the drafter is of each, and those that verify it.
    pub(crate) fn chosen(&self) -> usize {
        3 * self.rows
    }

    fn logits(&self) -> usize {
        SLAB * self.vocab.next_multiple_of(4)
    }

    /// 64-bit words of it all.
    pub(crate) fn words(&self) -> usize {
        let mut sizes = Sizes(0);
        let Room { rows, chunks, .. } = *self;
        sizes.of::<u32>(self.said());
        for halves in [
            self.hidden,
            self.hidden,
            self.features,
            self.q,
            self.q,
            self.gated,
            self.block,
            self.block,
        ] {
            sizes.of::<u16>(halves);
        }
        for floats in [self.hidden, self.pieces, self.parts, self.angles] {
            sizes.of::<f32>(floats);
        }
        for words in [self.there, rows, rows, self.chosen(), MOST_BLOCKS, MOST_BLOCKS] {
            sizes.of::<u32>(words);
        }
        sizes.of::<f32>(self.logits());
        sizes.of::<f32>(CUT * SLAB);
        sizes.of::<f32>(chunks);
        sizes.of::<u32>(chunks);
        sizes.of::<f64>(chunks);
        sizes.of::<u32>(chunks);
        sizes.of::<f32>(2 * chunks);
        sizes.of::<u32>(1);
        sizes.0 / 8
    }

    /// Cuts memory of [`Room::words`] words, for what stands at `place`.
    pub(crate) fn cut<'j>(&self, memory: CudaSliceMut<'j, u64>, place: &Place) -> Scratch<'j> {
        let mut cut = Cutter(Some(memory));
        let Room { rows, chunks, .. } = *self;
        let (before, batch) = cut.take::<u32>(self.said()).split(place.batch.start);
        let (draws, _) = before.split(place.draws.end);
        Scratch {
            batch: batch.split(place.batch.len()).0,
            draws: draws.split(place.draws.start).1,
            hidden: cut.take(self.hidden),
            picked: cut.take(self.hidden),
            features: cut.take(self.features),
            q: cut.take(self.q),
            attended: cut.take(self.q),
            gated: cut.take(self.gated),
            block_keys: cut.take(self.block),
            block_values: cut.take(self.block),
            x: cut.take(self.hidden),
            pieces: cut.take(self.pieces),
            there: cut.take(self.there),
            parts: cut.take(self.parts),
            angles: cut.take(self.angles),
            positions: cut.take(rows),
            slots: cut.take(rows),
            chosen: cut.take(self.chosen()).split(place.chosen).1,
            refused: cut.take(MOST_BLOCKS),
            anchors: cut.take(MOST_BLOCKS),
            logits: cut.take(self.logits()),
            cuts: cut.take(CUT * SLAB),
            best: Best {
                largest: cut.take(chunks),
                ids: cut.take(chunks),
                scores: cut.take(chunks),
                drawn: cut.take(chunks),
            },
            weights: cut.take(2 * chunks),
            spare: cut.take(1),
        }
    }
}

/// Bytes of a stretch for so many elements.
fn stretch<T>(elements: usize) -> usize {
    (elements * size_of::<T>()).next_multiple_of(ALIGN)
}

struct Sizes(usize);

impl Sizes {
    fn of<T>(&mut self, elements: usize) {
        self.0 += stretch::<T>(elements);
    }
}

/// Memory that is handed out from its beginning.
struct Cutter<'j>(Option<CudaSliceMut<'j, u64>>);

impl<'j> Cutter<'j> {
    fn take<T: Number>(&mut self, elements: usize) -> CudaSliceMut<'j, T> {
        let rest = self.0.take().expect("what is left is put back");
        let (own, rest) = rest.split(stretch::<T>(elements) / 8);
        self.0 = Some(rest);
        own.numbers::<T>().split(elements).0
    }
}
