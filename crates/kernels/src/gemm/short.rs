//! Products of few rows with small weights on a CUDA card, each with what stands before and behind it: a norm, SwiGLU,
//! the rotation and store of heads, or the sum with the residual stream.
//!
//! Such a product takes less than it takes to go from one kernel to the next. A block of threads has some columns and
//! all of k, so that its sums are whole; what it needs of a norm it makes itself, as often as there are blocks.
//!
//! **Order.** That of [`super::cuda`] where each band is shared by four workers: the bits are those of the other
//! products, of [`Norms`](crate::norm::cuda::Norms), of [`Activations`](crate::activation::cuda::Activations) and of
//! [`Rotations`](crate::rope::cuda::Rotations).

use super::cuda::{MOST_ROWS, PHASES, Packed, STEP, Shape};
use super::gated::WOVEN;
use crate::cuda::{In, count, source};
use crate::norm::cuda::Kept;
use crate::rope::cuda::{Heads, Stored, Turns};
use device::Element;
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("gemm", "../rope/head.cuh", "short.cu");

/// Columns of a tile.
const TILE: usize = 16;
/// Threads of a block, each of which has four columns of a row in the end.
const THREADS: usize = 512;
/// Rows that a block of threads has at most, by kernel.
const ROWS: [usize; 3] = [8, 16, MOST_ROWS];
/// Bytes that a thread turns its columns of heads by.
const TURNS: usize = 32;
/// Widest rows that are normed on their way, by kernels for each.
const WIDTHS: [usize; 2] = [640, 1024];

/// What stands before and behind a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// A norm before it: [`Shorts::of_normed`].
    Normed,
    /// A norm before it, and heads of so many elements behind it, without norms: [`Shorts::of_heads`].
    Heads(usize),
    /// A norm before it, SwiGLU behind it: [`Shorts::of_gated`].
    Gated,
    /// The residual stream behind it: [`Shorts::added`].
    Added,
}

/// What becomes of the stream.
#[derive(Clone, Copy)]
enum Sum {
    /// It is forgotten.
    Alone = 0,
    /// It is one of the two that are added.
    Added = 1,
}

/// A weight on the card.
#[derive(Clone, Copy)]
pub struct Weight<'j> {
    /// Its shape and elements.
    pub packed: Packed<'j>,
    /// What is added to each column.
    pub bias: Option<CudaSlice<'j, f32>>,
}

impl<'j> Weight<'j> {
    /// None where there are no biases.
    fn biases(&self) -> CudaSlice<'j, f32> {
        self.bias.unwrap_or_else(|| self.packed.at.range(0..0).numbers())
    }
}

/// The residual stream on its way through a norm.
#[derive(Clone, Copy)]
pub struct Stream<'j> {
    /// Rows as wide as the norm.
    pub rows: CudaSlice<'j, f32>,
    /// The weights of the norm.
    pub norm: CudaSlice<'j, f32>,
    /// Added to the mean square.
    pub eps: f32,
}

type OfHeads = (
    In<u16>,
    In<f32>,
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
    f32,
);
type Normed<T> = (In<u16>, In<f32>, In<f32>, In<f32>, Writes<T>, u32, u32, u32, f32);
/// By [`WIDTHS`], then by [`ROWS`].
type ByWidth<P> = [[Kernel<P>; 3]; 2];
type Added =
    (In<u16>, In<u16>, In<f32>, Writes<f32>, Writes<u16>, u32, u32, u32, u32, u32, u32, u32);

/// How a product is dealt out: `each` of `tiles` to a block of threads, with so many bytes of shared memory, as often
/// as there are `groups` of rows, by the kernel of some of [`ROWS`].
struct Cut {
    tiles: usize,
    each: usize,
    groups: usize,
    kernel: usize,
    shared: usize,
}

impl Cut {
    fn blocks(&self) -> usize {
        self.tiles.div_ceil(self.each) * self.groups
    }

    fn grid(&self) -> Grid {
        Grid { blocks: count(self.blocks()), threads: count(THREADS) }
    }
}

/// These products of a card.
#[derive(Clone)]
pub struct Shorts {
    of_normed: ByWidth<Normed<f32>>,
    of_heads: ByWidth<OfHeads>,
    of_gated: ByWidth<Normed<u16>>,
    /// By [`ROWS`].
    added: [Kernel<Added>; 3],
    multiprocessors: usize,
    /// Bytes of shared memory of a block of threads at most.
    shared: u32,
}

/// The kernel for rows of a width.
fn chosen<P>(kernels: &ByWidth<P>, width: usize, cut: &Cut) -> Kernel<P> {
    kernels[usize::from(width > WIDTHS[0])][cut.kernel].with_shared(count(cut.shared))
}

/// Launches a product of normed rows.
fn launch<T: Element>(
    queue: &Queue,
    kernels: &ByWidth<Normed<T>>,
    (weight, stream, rows): (Weight<'_>, Stream<'_>, usize),
    (cut, out): (&Cut, CudaSliceMut<'_, T>),
) {
    let Stream { rows: x, norm, eps } = stream;
    let (tiles, each) = (count(cut.tiles), count(cut.each));
    let kernel = chosen(kernels, norm.len(), cut);
    let given = (weight.packed.at, x, norm, weight.biases(), out, count(rows), tiles, each, eps);
    queue.launch(&kernel, cut.grid(), given);
}

/// Which of [`ROWS`] is for so many.
fn sized(rows: usize) -> usize {
    ROWS.iter().filter(|&&most| rows > most).count()
}

impl Shorts {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Shorts, CudaError> {
        let (module, shared) = (Module::load(cuda, &SOURCE)?, cuda.shared());
        // SAFETY: short.cu declares these parameters, stops when a slice or its shared memory is too short for the other
        // arguments, and waits before it reads what kernels write, or writes.
        unsafe {
            Ok(Shorts {
                of_normed: [
                    [
                        module.early_kernel("of_normed_8", shared)?,
                        module.early_kernel("of_normed_16", shared)?,
                        module.early_kernel("of_normed_32", shared)?,
                    ],
                    [
                        module.early_kernel("of_normed_8_wide", shared)?,
                        module.early_kernel("of_normed_16_wide", shared)?,
                        module.early_kernel("of_normed_32_wide", shared)?,
                    ],
                ],
                of_heads: [
                    [
                        module.early_kernel("of_heads_8", shared)?,
                        module.early_kernel("of_heads_16", shared)?,
                        module.early_kernel("of_heads_32", shared)?,
                    ],
                    [
                        module.early_kernel("of_heads_8_wide", shared)?,
                        module.early_kernel("of_heads_16_wide", shared)?,
                        module.early_kernel("of_heads_32_wide", shared)?,
                    ],
                ],
                of_gated: [
                    [
                        module.early_kernel("of_gated_8", shared)?,
                        module.early_kernel("of_gated_16", shared)?,
                        module.early_kernel("of_gated_32", shared)?,
                    ],
                    [
                        module.early_kernel("of_gated_8_wide", shared)?,
                        module.early_kernel("of_gated_16_wide", shared)?,
                        module.early_kernel("of_gated_32_wide", shared)?,
                    ],
                ],
                added: [
                    module.early_kernel("added_8", shared)?,
                    module.early_kernel("added_16", shared)?,
                    module.early_kernel("added_32", shared)?,
                ],
                multiprocessors: cuda.multiprocessors() as usize,
                shared,
            })
        }
    }

    /// Whether a product of so many rows can be made here.
    pub fn fits(&self, shape: &Shape, around: Around, rows: usize) -> bool {
        self.cut(shape, around, rows).is_some()
    }

    /// Where a block of threads norms its rows it has few, and more of the columns instead, if that leaves room for the
    /// next kernel's blocks; else there are as few blocks as rows allow.
    fn cut(&self, shape: &Shape, around: Around, rows: usize) -> Option<Cut> {
        // Tiles that are pairs: of woven gates and ups, or those of both halves of a head.
        let (parts, apart) = match around {
            Around::Normed | Around::Added => (1, TILE),
            Around::Heads(dim) => (2, dim),
            Around::Gated => (2, 2 * WOVEN),
        };
        let norm = if around == Around::Added { 0 } else { shape.k };
        let turns = usize::from(matches!(around, Around::Heads(_)));
        let suits = shape.in_phases() && norm <= WIDTHS[1] && shape.n.is_multiple_of(apart);
        if rows > MOST_ROWS || !suits {
            return None;
        }
        let tiles = shape.n / (parts * TILE);
        let dealt = |kernel: usize| {
            let held = ROWS[kernel];
            let groups = rows.div_ceil(held).max(1);
            let each = (tiles * groups).div_ceil(self.multiprocessors);
            let (slots, quads) = (parts * each, rows.min(held) * each * TILE / 4);
            let weight_and_rows = (slots * TILE + held) * shape.k * 2;
            let sums = PHASES * held * (slots * TILE + 4) * 4;
            let shared = weight_and_rows + sums + norm * 4 + turns * quads * TURNS;
            (quads <= THREADS).then_some(Cut { tiles, each, groups, kernel, shared })
        };
        let (last, shared) = (sized(rows), self.shared as usize);
        let fits = |cut: &Cut, most| cut.blocks() <= self.multiprocessors && cut.shared <= most;
        let fewest = dealt(last).filter(|cut| fits(cut, shared));
        if norm == 0 {
            return fewest;
        }
        let few = (0..last).filter_map(dealt).find(|cut| fits(cut, shared / 2));
        few.or(fewest)
    }

    /// # Panics
    /// When it does not fit.
    fn expected(&self, weight: &Weight<'_>, around: Around, rows: usize) -> Cut {
        let Weight { packed, bias } = weight;
        let shape = &packed.shape;
        let cut = self.cut(shape, around, rows);
        let cut = cut.unwrap_or_else(|| panic!("{rows} rows of {shape:?}, {around:?}, do not fit"));
        packed.check();
        assert!(bias.is_none_or(|bias| bias.len() == shape.n), "a bias for each column");
        cut
    }

    /// # Panics
    /// When the rows are not whole.
    fn rows(stream: &Stream<'_>, shape: &Shape) -> usize {
        let (rows, width) = (stream.rows.len(), stream.norm.len());
        assert!(
            width == shape.k && rows.is_multiple_of(width),
            "{rows} elements of rows of {}",
            shape.k
        );
        rows / width
    }

    /// `rms_norm(stream) · weightᵀ + bias`, left whole: the pieces of [`Shape::whole`].
    ///
    /// # Panics
    /// When it does not [fit](Shorts::fits), or when a slice is shorter than its shape.
    pub fn of_normed(
        &self,
        queue: &Queue,
        weight: Weight<'_>,
        stream: Stream<'_>,
        out: CudaSliceMut<'_, f32>,
    ) {
        let rows = Shorts::rows(&stream, &weight.packed.shape);
        let cut = self.expected(&weight, Around::Normed, rows);
        assert!(
            out.len() >= weight.packed.shape.whole().sums(rows),
            "room for the sums of {rows} rows"
        );
        launch(queue, &self.of_normed, (weight, stream, rows), (&cut, out));
    }

    /// What [`Rotations::store`](crate::rope::cuda::Rotations::store) makes of `rms_norm(stream) · weightᵀ + bias`, of
    /// heads without norms.
    ///
    /// # Panics
    /// As [`Shorts::of_normed`], or when there are norms of heads.
    pub fn of_heads(
        &self,
        queue: &Queue,
        (weight, heads): (Weight<'_>, Heads),
        stream: Stream<'_>,
        (turns, to): (Turns<'_>, Stored<'_>),
    ) {
        let (rows, layers) = (Shorts::rows(&stream, &weight.packed.shape), to.layers);
        let cut = self.expected(&weight, Around::Heads(heads.dim), rows);
        let columns = layers.count * (heads.q + 2 * heads.kv) * heads.dim;
        assert_eq!(
            weight.packed.shape.n, columns,
            "columns of {heads:?} of {} layers",
            layers.count
        );
        assert!(turns.norms.is_empty(), "a norm is of a whole head");
        turns.check(heads, rows, &to);
        let Stream { rows: x, norm, eps } = stream;
        let kernel = chosen(&self.of_heads, norm.len(), &cut);
        let given = (
            weight.packed.at,
            x,
            norm,
            weight.biases(),
            turns.angles,
            turns.slots,
            to.q,
            to.keys,
            to.values,
            layers.pages_apart as u64,
            count(heads.q),
            count(heads.kv),
            count(heads.dim),
            count(to.page_size),
            count(rows),
            count(cut.tiles),
            count(cut.each),
            eps,
        );
        queue.launch(&kernel, cut.grid(), given);
    }

    /// `silu(gate) · up`, narrowed: rows of half as many columns as `rms_norm(stream) · weightᵀ + bias` has, which are
    /// [`woven`](super::gated::woven) gates and ups.
    ///
    /// # Panics
    /// As [`Shorts::of_normed`].
    pub fn of_gated(
        &self,
        queue: &Queue,
        weight: Weight<'_>,
        stream: Stream<'_>,
        out: CudaSliceMut<'_, u16>,
    ) {
        let rows = Shorts::rows(&stream, &weight.packed.shape);
        let cut = self.expected(&weight, Around::Gated, rows);
        assert!(
            out.len() >= rows * weight.packed.shape.n / 2,
            "{rows} rows of half of the columns"
        );
        launch(queue, &self.of_gated, (weight, stream, rows), (&cut, out));
    }

    /// `stream += x · weightᵀ + bias`; `x` are rows one behind the other, the stream has as many. `kept`, where it is
    /// wanted, becomes a copy.
    ///
    /// # Panics
    /// As [`Shorts::of_normed`].
    pub fn added(
        &self,
        queue: &Queue,
        weight: Weight<'_>,
        x: CudaSlice<'_, u16>,
        (stream, kept): (CudaSliceMut<'_, f32>, Option<Kept<'_>>),
    ) {
        self.put_sum(queue, (weight, Sum::Added), x, (stream, kept));
    }

    /// `stream = x · weightᵀ + bias`, as [`Shorts::added`] to a stream of zeros.
    ///
    /// # Panics
    /// As [`Shorts::of_normed`].
    pub fn begun(
        &self,
        queue: &Queue,
        weight: Weight<'_>,
        x: CudaSlice<'_, u16>,
        stream: CudaSliceMut<'_, f32>,
    ) {
        self.put_sum(queue, (weight, Sum::Alone), x, (stream, None));
    }

    fn put_sum(
        &self,
        queue: &Queue,
        (weight, sum): (Weight<'_>, Sum),
        x: CudaSlice<'_, u16>,
        (stream, kept): (CudaSliceMut<'_, f32>, Option<Kept<'_>>),
    ) {
        let (Shape { n, k, .. }, rows) =
            (weight.packed.shape, stream.len() / weight.packed.shape.n);
        assert!(
            stream.len().is_multiple_of(n) && x.len() >= rows * k,
            "{rows} rows of {k} and {n}"
        );
        let cut = self.expected(&weight, Around::Added, rows);
        let (none, stream) = stream.split(0);
        let kept = kept.unwrap_or(Kept { to: none.numbers(), first: 0, stride: 0 });
        kept.check(rows, n);
        let Kept { to, first, stride } = kept;
        let given = (
            weight.packed.at,
            x,
            weight.biases(),
            stream,
            to,
            count(k / STEP),
            count(rows),
            count(cut.tiles),
            count(cut.each),
            count(first),
            count(stride),
            sum as u32,
        );
        let kernel = self.added[cut.kernel].with_shared(count(cut.shared));
        queue.launch(&kernel, cut.grid(), given);
    }
}
