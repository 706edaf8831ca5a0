//! Places and rotations on a CUDA card: where a step's rows stand, with which a pass begins and so its residual
//! stream, and what becomes of the projections of q, k and v.

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("rope", "head.cuh", "kernel.cu", "places.cu");

/// Lanes of a head at most.
const WARP: usize = 32;
/// Threads at most that begin a row.
const BEGINNERS: usize = 1024;

type Places = (
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<f32>,
    Writes<u32>,
    Writes<u32>,
    Writes<f32>,
    u32,
    f32,
);
type Begin = (
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<f32>,
    Writes<u32>,
    Writes<u32>,
    Writes<f32>,
    In<u16>,
    In<u32>,
    Writes<f32>,
    u32,
    f32,
    u32,
);
type RopeStore = (
    In<f32>,
    In<f32>,
    In<f32>,
    In<u32>,
    Writes<u16>,
    Writes<u16>,
    Writes<u16>,
    u64,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    f32,
);

/// What is known of a step's rows and requests.
#[derive(Clone, Copy)]
pub struct StepRows<'j> {
    /// Tokens in KV of each request.
    pub lengths: CudaSlice<'j, u32>,
    /// The request of each row.
    pub spans: CudaSlice<'j, u32>,
    /// Each row's offset from its request's length.
    pub offsets: CudaSlice<'j, u32>,
    /// Where each request's page ids begin in `pages`.
    pub firsts: CudaSlice<'j, u32>,
    /// Page ids.
    pub pages: CudaSlice<'j, u32>,
    /// Tokens a page holds.
    pub page_size: usize,
}

/// Where rows stand, for all layers.
pub struct Placed<'j> {
    /// Position of each row.
    pub positions: CudaSliceMut<'j, u32>,
    /// Slot of each row.
    pub slots: CudaSliceMut<'j, u32>,
    /// Cosines and sines, `[rows, 2, head_dim / 2]`.
    pub angles: CudaSliceMut<'j, f32>,
}

impl Placed<'_> {
    /// # Panics
    /// When the rows of a step, with so many frequencies, do not fit.
    fn check(&self, step: &StepRows<'_>, frequencies: usize) {
        let rows = step.spans.len();
        let own = [step.offsets.len(), self.positions.len(), self.slots.len()];
        assert!(own.iter().all(|&len| len >= rows), "{rows} rows");
        assert!(self.angles.len() >= rows * 2 * frequencies, "the angles of {rows} rows");
        assert!(step.page_size > 0, "a page holds a token");
    }
}

/// How the residual stream starts: `x[row] = table[ids[row]]`.
pub struct Embedded<'j> {
    /// `[tokens, width]`, not packed.
    pub table: CudaSlice<'j, u16>,
    /// Elements of a row.
    pub width: usize,
    /// The token of each row.
    pub ids: CudaSlice<'j, u32>,
    /// `[rows, width]`.
    pub x: CudaSliceMut<'j, f32>,
}

/// Elements of a head that the kernels know, ascending.
pub const DIMS: [usize; 3] = [64, 128, 256];

/// What is there for heads of `dim` elements, of what is there for each of [`DIMS`].
///
/// # Panics
/// When they are of none of these.
pub(crate) fn of_dim<T>(each: &[T; DIMS.len()], dim: usize) -> &T {
    let at = DIMS.iter().position(|&known| known == dim);
    &each[at.unwrap_or_else(|| panic!("heads of {dim} elements; {DIMS:?} are known"))]
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Of q; may be none where only k and v are made.
    pub q: usize,
    /// Of k, and of v.
    pub kv: usize,
    /// Elements of one: one of [`DIMS`].
    pub dim: usize,
}

/// What rows were turned into, and where it goes.
pub struct Stored<'j> {
    /// `[rows, heads, dim]`.
    pub q: CudaSliceMut<'j, u16>,
    /// `[pages, kv_heads, page_size, dim]`.
    pub keys: CudaSliceMut<'j, u16>,
    /// As `keys`.
    pub values: CudaSliceMut<'j, u16>,
    /// Tokens a page holds; 1 where slots are rows.
    pub page_size: usize,
    /// Whose heads they are.
    pub layers: Layers,
}

/// Layers whose keys and values are the columns of one product, k and v of each behind those of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// How many there are.
    pub count: usize,
    /// Elements from the pages of one to those of the next.
    pub pages_apart: usize,
    /// Elements from the head norms of one to those of the next.
    pub norms_apart: usize,
}

impl Layers {
    /// A single one, which may have heads of q, too.
    pub const ONE: Layers = Layers { count: 1, pages_apart: 0, norms_apart: 0 };
}

/// What heads are made with.
#[derive(Clone, Copy)]
pub struct Turns<'j> {
    /// The norms of q's heads and of k's, `[2, dim]`; none when empty.
    pub norms: CudaSlice<'j, f32>,
    /// Added to their mean squares.
    pub eps: f32,
    /// Of each row, as [`Rotations::places`] makes them.
    pub angles: CudaSlice<'j, f32>,
    /// Of each row.
    pub slots: CudaSlice<'j, u32>,
}

impl Turns<'_> {
    /// # Panics
    /// When `rows` rows of `heads` are not what this and `to` are for.
    pub(crate) fn check(&self, heads: Heads, rows: usize, to: &Stored<'_>) {
        let (Heads { q, dim, .. }, Layers { count, norms_apart, .. }) = (heads, to.layers);
        assert!(count == 1 || (q == 0 && count > 0), "{count} layers of {heads:?}");
        assert!(to.q.len() >= rows * q * dim, "{rows} rows");
        let (angles, slots) = (self.angles.len(), self.slots.len());
        assert!(angles >= rows * dim && slots >= rows, "the places of {rows} rows");
        let norms = (count - 1) * norms_apart + 2 * dim;
        assert!(self.norms.is_empty() || self.norms.len() >= norms, "the norms of q and k");
        assert!(to.page_size > 0, "a page holds a token");
    }
}

/// The rotations of a card.
#[derive(Clone)]
pub struct Rotations {
    places: Kernel<Places>,
    begin: Kernel<Begin>,
    /// One for each of [`DIMS`].
    store: [Kernel<RopeStore>; DIMS.len()],
    /// The same of products that were left whole.
    store_whole: [Kernel<RopeStore>; DIMS.len()],
}

impl Rotations {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Rotations, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu and places.cu declare these parameters, stop when a slice is too short for the
        // other arguments, for a slot or for an id, and wait before they read what kernels write.
        unsafe {
            Ok(Rotations {
                places: module.early_kernel("places", 0)?,
                begin: module.early_kernel("begin", 0)?,
                store: [
                    module.early_kernel("rope_store_64", 0)?,
                    module.early_kernel("rope_store_128", 0)?,
                    module.early_kernel("rope_store_256", 0)?,
                ],
                store_whole: [
                    module.early_kernel("rope_store_64_whole", 0)?,
                    module.early_kernel("rope_store_128_whole", 0)?,
                    module.early_kernel("rope_store_256_whole", 0)?,
                ],
            })
        }
    }

    /// The position, slot and angles of every row; angles are times `scale`, as [`super::Angles`]
    /// says. A row whose page is not in `pages` ends the device.
    ///
    /// # Panics
    /// When the lengths do not match.
    pub fn places(
        &self,
        queue: &Queue,
        step: StepRows<'_>,
        (frequencies, scale): (CudaSlice<'_, f32>, f32),
        to: Placed<'_>,
    ) {
        to.check(&step, frequencies.len());
        let StepRows { lengths, spans, offsets, firsts, pages, page_size } = step;
        let grid = Grid { blocks: count(spans.len().max(1)), threads: 64 };
        let given = (
            lengths,
            spans,
            offsets,
            firsts,
            pages,
            frequencies,
            to.positions,
            to.slots,
            to.angles,
            count(page_size),
            scale,
        );
        queue.launch(&self.places, grid, given);
    }

    /// [`Rotations::places`], and how the residual stream starts: the begin of a pass. An id outside the table
    /// ends the device.
    ///
    /// # Panics
    /// As [`Rotations::places`], when rows and ids are not as many, or the width is not a multiple of 4.
    pub fn begin(
        &self,
        queue: &Queue,
        step: StepRows<'_>,
        (frequencies, scale): (CudaSlice<'_, f32>, f32),
        to: Placed<'_>,
        Embedded { table, width, ids, x }: Embedded<'_>,
    ) {
        to.check(&step, frequencies.len());
        let StepRows { lengths, spans, offsets, firsts, pages, page_size } = step;
        let rows = spans.len();
        assert_eq!(ids.len(), rows, "an id for each row");
        assert!(x.len() >= rows * width, "a row of {width} for each id");
        assert!(width.is_multiple_of(4), "rows of {width} are read in fours");
        let threads = (width / 4).next_multiple_of(32).clamp(64, BEGINNERS);
        let grid = Grid { blocks: count((2 * rows).max(1)), threads: count(threads) };
        let given = (
            lengths,
            spans,
            offsets,
            firsts,
            pages,
            frequencies,
            to.positions,
            to.slots,
            to.angles,
            table,
            ids,
            x,
            count(page_size),
            scale,
            count(width),
        );
        queue.launch(&self.begin, grid, given);
    }

    /// Norms, rotates and stores the heads of a product whose columns are those of q, k and v, of each layer.
    ///
    /// # Panics
    /// When the shapes do not match, or heads are of none of [`DIMS`].
    pub fn store(
        &self,
        queue: &Queue,
        (heads, projected): (Heads, Pieces<'_>),
        turns: Turns<'_>,
        to: Stored<'_>,
    ) {
        let (Pieces { at, shape, rows }, Heads { q, kv, dim }) = (projected, heads);
        let (layers, all) = (to.layers, rows as usize);
        let columns = layers.count * (q + 2 * kv);
        let workers = projected.workers();
        let kernels = if workers == 0 { &self.store_whole } else { &self.store };
        let kernel = of_dim(kernels, dim);
        assert_eq!(shape.n, columns * dim, "columns of {heads:?} of {} layers", layers.count);
        projected.check();
        turns.check(heads, all, &to);
        let given = (
            at,
            turns.norms,
            turns.angles,
            turns.slots,
            to.q,
            to.keys,
            to.values,
            layers.pages_apart as u64,
            shape.steps(),
            workers,
            rows,
            count(q),
            count(kv),
            count(to.page_size),
            count(layers.count),
            count(layers.norms_apart),
            turns.eps,
        );
        let lanes = (dim / 4).min(WARP);
        queue.launch(kernel, threads_for(all * columns * lanes, 128), given);
    }
}
