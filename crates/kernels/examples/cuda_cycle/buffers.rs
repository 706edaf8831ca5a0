//! The buffers of a pass, and how a graph sees them.

use crate::crowd::{Crowd, Said};
use crate::model::Model;
use crate::plan::Plan;
use crate::weights::{Arena, Fill, randomize};
use device::cuda::{Cuda, CudaSlice, CudaSliceMut, Queue};
use device::{Element, Forward, Lane, Lanes, OnQueue, Shared, Staging, View, ViewMut};
use kernels::attention::cuda::{Attention, tiles};
use kernels::choose::cuda::Choices;
use kernels::gemm::cuda::Layout;
use kernels::rope::cuda::StepRows;
use std::ops::Range;

/// Rows of a block.
pub(crate) const WIDTH: usize = 16;
/// Tokens of a page.
pub(crate) const PAGE: usize = 16;

/// The pages of keys and of values, among the halves of [`Buffers`].
const POOLS: Range<usize> = 5..7;

/// What kernels write, by type; the fields of [`Work`] in order.
pub(crate) struct Buffers {
    halves: Vec<Shared<u16, Forward, Cuda>>,
    floats: Vec<Shared<f32, Forward, Cuda>>,
    words: Vec<Shared<u32, Forward, Cuda>>,
    scores: Shared<f64, Forward, Cuda>,
    seeds: Shared<u64, Forward, Cuda>,
}

/// A new buffer with these elements.
fn put<T: Element>(lanes: &Lanes<Cuda>, elements: &[T]) -> Shared<T, Forward, Cuda> {
    let (cuda, lane) = (lanes.device(), &lanes.forward);
    let mut buffer = Shared::new(cuda, "elements", elements.len());
    let mut staging: Staging<T, Forward, Cuda> = Staging::new(cuda, "staging", 1, elements.len());
    let staged = staging.stage(lane, elements);
    lane.launch(
        "put",
        (lane.queue(), staged.view(), buffer.write(lane).view()),
        |(queue, from, to)| queue.copy(from, to),
    );
    buffer
}

impl Buffers {
    /// For passes of `crowd`.
    pub(crate) fn new(lanes: &Lanes<Cuda>, plan: &Plan, crowd: &Crowd) -> Buffers {
        let model = plan.model;
        let cuda = lanes.device();
        let half = |len: usize| Shared::new(cuda, "halves", len);
        let float = |len: usize| Shared::new(cuda, "floats", len);
        let (rows, said) = (crowd.rows(), crowd.said(model.heads));
        // What is multiplied may lie in whole tiles.
        let lines = Layout::of(rows).elements(rows, 1);
        let layers = model.layers + model.draft_layers;
        let pool = layers * said.pages.len() * PAGE * model.kv();
        let block = rows * model.kv();
        let layer = &plan.target[0];
        let most = [&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &plan.fc];
        let most = most.iter().map(|w| w.shape.pieces(rows)).max().expect("a weight");
        let slab = rows.min(plan.head.shape.rows_at_once());
        let chunks = slab * Choices::chunks(model.vocab);
        let frequencies: Vec<f32> = (0..model.heads.dim / 2)
            .map(|i| 1e6f32.powf(-2.0 * i as f32 / model.heads.dim as f32))
            .collect();
        let (hidden, dim) = (model.hidden, model.heads.dim);
        Buffers {
            halves: vec![
                half(lines * hidden),
                half(rows * model.draft_layers * hidden),
                half(rows * model.q()),
                half(lines * model.q()),
                half(lines * model.ffn),
                half(pool),
                half(pool),
                half(block),
                half(block),
            ],
            floats: vec![
                float(rows * hidden),
                float(most.max(plan.head.shape.pieces(slab))),
                float(Attention::parts(model.heads, rows)),
                float(rows * dim),
                float(chunks),
                put(lanes, &vec![1.0; hidden.max(2 * dim)]),
                put(lanes, &frequencies),
                put(lanes, &vec![0.0; rows]),
                float(rows),
                float(2 * chunks),
            ],
            words: words(lanes, model, (rows, chunks, layer.gate_up.shape.meetings()), &said),
            scores: Shared::new(cuda, "scores", chunks),
            seeds: put(lanes, &vec![7; rows]),
        }
    }

    /// Random keys and values, `bf16` between -1 and 1.
    pub(crate) fn fill_pages(&mut self, lane: &Lane<Forward, Cuda>, fill: &Fill) {
        for (seed, pool) in self.halves[POOLS].iter_mut().enumerate() {
            randomize(lane, fill, pool, (seed as u64, 1.0));
        }
    }
}

/// The words of a pass of so many rows, with so many chunks of choices and workers that meet.
fn words(
    lanes: &Lanes<Cuda>,
    model: Model,
    (rows, chunks, meetings): (usize, usize, usize),
    said: &Said,
) -> Vec<Shared<u32, Forward, Cuda>> {
    let ids: Vec<u32> = (0..rows as u32).map(|row| (row * 977 + 5) % model.vocab as u32).collect();
    vec![
        put(lanes, &ids),
        put(lanes, &ids),
        put(lanes, &vec![0; rows]),
        put(lanes, &vec![0; rows]),
        put(lanes, &vec![0; rows]),
        put(lanes, &vec![0; chunks]),
        put(lanes, &vec![0; chunks]),
        put(lanes, &vec![0; said.requests.len() / 2]),
        put(lanes, &said.requests),
        put(lanes, &said.spans),
        put(lanes, &said.offsets),
        put(lanes, &said.pages),
        put(lanes, &said.tiles),
        put(lanes, &tiles(model.heads, &[(0, 1, 0)]).0),
        put(lanes, &vec![0; meetings]),
    ]
}

type L = Forward;
/// The arguments of a graph.
pub(crate) type Given<'g> = (
    (OnQueue<L, Cuda>, View<'g, u16, L, Cuda>),
    Vec<ViewMut<'g, u16, L, Cuda>>,
    Vec<ViewMut<'g, f32, L, Cuda>>,
    Vec<ViewMut<'g, u32, L, Cuda>>,
    (ViewMut<'g, f64, L, Cuda>, ViewMut<'g, u64, L, Cuda>),
);
/// What a graph sees of them.
pub(crate) type Seen<'j> = (
    (&'j Queue, CudaSlice<'j, u16>),
    Vec<CudaSliceMut<'j, u16>>,
    Vec<CudaSliceMut<'j, f32>>,
    Vec<CudaSliceMut<'j, u32>>,
    (CudaSliceMut<'j, f64>, CudaSliceMut<'j, u64>),
);

/// Hands views of all buffers to `body`, while their guards live.
pub(crate) fn with_views<T>(
    lane: &Lane<Forward, Cuda>,
    buffers: &mut Buffers,
    arena: &Arena,
    body: impl FnOnce(Given<'_>) -> T,
) -> T {
    let weights = arena.memory.read(lane);
    let mut halves: Vec<_> = buffers.halves.iter_mut().map(|b| b.write(lane)).collect();
    let mut floats: Vec<_> = buffers.floats.iter_mut().map(|b| b.write(lane)).collect();
    let mut words: Vec<_> = buffers.words.iter_mut().map(|b| b.write(lane)).collect();
    let (mut scores, mut seeds) = (buffers.scores.write(lane), buffers.seeds.write(lane));
    body((
        (lane.queue(), weights.view()),
        halves.iter_mut().map(|guard| guard.view()).collect(),
        floats.iter_mut().map(|guard| guard.view()).collect(),
        words.iter_mut().map(|guard| guard.view()).collect(),
        (scores.view(), seeds.view()),
    ))
}

/// The slices of a pass.
pub(crate) struct Work<'j> {
    pub(crate) queue: &'j Queue,
    pub(crate) weights: CudaSlice<'j, u16>,
    /// Rows that are multiplied: `[rows, hidden]`.
    pub(crate) hidden: CudaSliceMut<'j, u16>,
    pub(crate) features: CudaSliceMut<'j, u16>,
    pub(crate) q: CudaSliceMut<'j, u16>,
    pub(crate) attended: CudaSliceMut<'j, u16>,
    pub(crate) gated: CudaSliceMut<'j, u16>,
    pub(crate) keys: CudaSliceMut<'j, u16>,
    pub(crate) values: CudaSliceMut<'j, u16>,
    pub(crate) block_keys: CudaSliceMut<'j, u16>,
    pub(crate) block_values: CudaSliceMut<'j, u16>,
    /// The residual stream.
    pub(crate) x: CudaSliceMut<'j, f32>,
    pub(crate) pieces: CudaSliceMut<'j, f32>,
    pub(crate) parts: CudaSliceMut<'j, f32>,
    pub(crate) angles: CudaSliceMut<'j, f32>,
    pub(crate) largest: CudaSliceMut<'j, f32>,
    pub(crate) ones: CudaSliceMut<'j, f32>,
    pub(crate) frequencies: CudaSliceMut<'j, f32>,
    pub(crate) temperatures: CudaSliceMut<'j, f32>,
    /// How sure the drafter is of each draft.
    pub(crate) confidences: CudaSliceMut<'j, f32>,
    /// What chunks of ids weigh.
    pub(crate) chunks: CudaSliceMut<'j, f32>,
    /// The anchor and masks.
    pub(crate) masks: CudaSliceMut<'j, u32>,
    /// The anchor and drafts.
    pub(crate) tokens: CudaSliceMut<'j, u32>,
    pub(crate) choices: CudaSliceMut<'j, u32>,
    pub(crate) positions: CudaSliceMut<'j, u32>,
    pub(crate) slots: CudaSliceMut<'j, u32>,
    pub(crate) best: CudaSliceMut<'j, u32>,
    pub(crate) drawn: CudaSliceMut<'j, u32>,
    pub(crate) step: Step<'j>,
    pub(crate) tiles: CudaSliceMut<'j, u32>,
    pub(crate) tile_of_one: CudaSliceMut<'j, u32>,
    /// Which pieces of gates and ups are there.
    pub(crate) there: CudaSliceMut<'j, u32>,
    pub(crate) scores: CudaSliceMut<'j, f64>,
    pub(crate) seeds: CudaSliceMut<'j, u64>,
}

/// What is known of the step's rows.
pub(crate) struct Step<'j> {
    /// The length of each request, as the last step published it.
    pub(crate) published: CudaSliceMut<'j, u32>,
    /// The length that every cycle begins with, of each request, then where the pages of each begin.
    pub(crate) request: CudaSliceMut<'j, u32>,
    pub(crate) spans: CudaSliceMut<'j, u32>,
    /// Each row's offset from its request's length; of a single request also its slot in a block.
    pub(crate) offsets: CudaSliceMut<'j, u32>,
    pub(crate) pages: CudaSliceMut<'j, u32>,
}

impl Step<'_> {
    /// How many requests there are.
    pub(crate) fn requests(&self) -> usize {
        self.request.len() / 2
    }

    pub(crate) fn rows(&self, rows: usize) -> StepRows<'_> {
        let requests = self.requests();
        StepRows {
            lengths: self.published.read().range(0..requests),
            spans: self.spans.read().range(0..rows),
            offsets: self.offsets.read().range(0..rows),
            firsts: self.request.read().range(requests..2 * requests),
            pages: self.pages.read(),
            page_size: PAGE,
        }
    }
}

impl<'j> Work<'j> {
    pub(crate) fn new(
        ((queue, weights), halves, floats, words, (scores, seeds)): Seen<'j>,
    ) -> Work<'j> {
        let (mut half, mut float, mut word) =
            (halves.into_iter(), floats.into_iter(), words.into_iter());
        let mut half = || half.next().expect("a buffer for each field");
        let mut float = || float.next().expect("a buffer for each field");
        let mut word = || word.next().expect("a buffer for each field");
        Work {
            queue,
            weights,
            hidden: half(),
            features: half(),
            q: half(),
            attended: half(),
            gated: half(),
            keys: half(),
            values: half(),
            block_keys: half(),
            block_values: half(),
            x: float(),
            pieces: float(),
            parts: float(),
            angles: float(),
            largest: float(),
            ones: float(),
            frequencies: float(),
            temperatures: float(),
            confidences: float(),
            chunks: float(),
            masks: word(),
            tokens: word(),
            choices: word(),
            positions: word(),
            slots: word(),
            best: word(),
            drawn: word(),
            step: Step {
                published: word(),
                request: word(),
                spans: word(),
                offsets: word(),
                pages: word(),
            },
            tiles: word(),
            tile_of_one: word(),
            there: word(),
            scores,
            seeds,
        }
    }
}
