//! Products of few rows with small weights on a CUDA card, each with what stands before and behind it: a norm, SwiGLU,
//! or the sum with the residual stream.
//!
//! Such a product takes less than it takes to go from one kernel to the next. A block of threads has some columns and
//! all of k, so that its sums are whole; what it needs of a norm it makes itself, as often as there are blocks.
//!
//! **Order.** That of [`super::cuda`] where each band is shared by four workers: the bits are those of the other
//! products, of [`Norms`](crate::norm::cuda::Norms) and of [`Activations`](crate::activation::cuda::Activations).

use super::cuda::{MOST_ROWS, PHASES, STEP, Shape};
use crate::cuda::{In, count, source};
use crate::norm::cuda::Kept;
use device::Element;
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("gemm", "short.cu");

/// Columns of a tile.
const TILE: usize = 16;
/// Threads of a block, each of which has four columns of a row in the end.
const THREADS: usize = 512;
/// Rows that a kernel is made for.
const ROWS: [usize; 3] = [8, 16, MOST_ROWS];
/// Widest rows that are normed on their way, by kernels for each.
const WIDTHS: [usize; 2] = [640, 1024];

/// What stands before and behind a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// A norm before it: [`Shorts::of_normed`].
    Normed,
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
    /// Its shape.
    pub shape: Shape,
    /// Packed as [`Shape::place`] says.
    pub packed: CudaSlice<'j, u16>,
    /// What is added to each column.
    pub bias: Option<CudaSlice<'j, f32>>,
}

impl<'j> Weight<'j> {
    /// None where there are no biases.
    fn biases(&self) -> CudaSlice<'j, f32> {
        self.bias.unwrap_or_else(|| self.packed.range(0..0).numbers())
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

type Normed<T> = (In<u16>, In<f32>, In<f32>, In<f32>, Writes<T>, u32, u32, u32, f32);
/// By [`WIDTHS`], then by [`ROWS`].
type ByWidth<T> = [[Kernel<Normed<T>>; 3]; 2];
type Added =
    (In<u16>, In<u16>, In<f32>, Writes<f32>, Writes<u16>, u32, u32, u32, u32, u32, u32, u32);

/// How a product is dealt out: `each` of `tiles` to a block of threads, with so many bytes of shared memory.
struct Cut {
    tiles: usize,
    each: usize,
    shared: usize,
}

impl Cut {
    fn grid(&self) -> Grid {
        Grid { blocks: count(self.tiles.div_ceil(self.each)), threads: count(THREADS) }
    }
}

/// These products of a card.
#[derive(Clone)]
pub struct Shorts {
    of_normed: ByWidth<f32>,
    of_gated: ByWidth<u16>,
    /// By [`ROWS`].
    added: [Kernel<Added>; 3],
    multiprocessors: usize,
    /// Bytes of shared memory of a block of threads at most.
    shared: u32,
}

/// Launches a product of normed rows.
fn launch<T: Element>(
    queue: &Queue,
    kernels: &ByWidth<T>,
    (weight, stream, rows): (Weight<'_>, Stream<'_>, usize),
    (cut, out): (&Cut, CudaSliceMut<'_, T>),
) {
    let Stream { rows: x, norm, eps } = stream;
    let (tiles, each) = (count(cut.tiles), count(cut.each));
    let given = (weight.packed, x, norm, weight.biases(), out, count(rows), tiles, each, eps);
    let kernels = &kernels[usize::from(norm.len() > WIDTHS[0])];
    queue.launch(&kernels[sized(rows)].with_shared(count(cut.shared)), cut.grid(), given);
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

    fn cut(&self, shape: &Shape, around: Around, rows: usize) -> Option<Cut> {
        // Tiles whose sums become one tile: a gate's and an up's.
        let parts = if around == Around::Gated { 2 } else { 1 };
        let norm = if around == Around::Added { 0 } else { shape.k };
        if rows > MOST_ROWS || norm > WIDTHS[1] || !shape.n.is_multiple_of(parts * TILE) {
            return None;
        }
        let tiles = shape.n / (parts * TILE);
        let each = tiles.div_ceil(self.multiprocessors);
        let (slots, held) = (parts * each, ROWS[sized(rows)]);
        let weight = slots * TILE * shape.k * 2;
        let sums = PHASES * held * (slots * TILE + 4) * 4;
        let shared = weight + held * shape.k * 2 + sums + norm * 4;
        let suits = shape.in_phases() && rows * each * TILE / 4 <= THREADS;
        (suits && shared <= self.shared as usize).then_some(Cut { tiles, each, shared })
    }

    /// # Panics
    /// When it does not fit.
    fn expected(&self, weight: &Weight<'_>, around: Around, rows: usize) -> Cut {
        let Weight { shape, packed, bias } = weight;
        let cut = self.cut(shape, around, rows);
        let cut = cut.unwrap_or_else(|| panic!("{rows} rows of {shape:?}, {around:?}, do not fit"));
        assert!(packed.len() >= shape.packed(), "a packed weight of {} × {}", shape.n, shape.k);
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
        let rows = Shorts::rows(&stream, &weight.shape);
        let cut = self.expected(&weight, Around::Normed, rows);
        assert!(out.len() >= weight.shape.whole().sums(rows), "room for the sums of {rows} rows");
        launch(queue, &self.of_normed, (weight, stream, rows), (&cut, out));
    }

    /// `silu(gate) · up`, narrowed: rows of half as many columns as `rms_norm(stream) · weightᵀ + bias` has, which are the
    /// gates and then the ups.
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
        let rows = Shorts::rows(&stream, &weight.shape);
        let cut = self.expected(&weight, Around::Gated, rows);
        assert!(out.len() >= rows * weight.shape.n / 2, "{rows} rows of half of the columns");
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
        let (Shape { n, k, .. }, rows) = (weight.shape, stream.len() / weight.shape.n);
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
            weight.packed,
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
        queue.launch(&self.added[sized(rows)].with_shared(count(cut.shared)), cut.grid(), given);
    }
}
