//! Products on a CUDA card: `y = x · Wᵀ`. Up to [`MOST_ROWS`] rows take about the time in which the
//! weight is read, once; more go by tiles of rows.
//!
//! **Order.** The columns of `y` come in bands of two blocks of 128, k in steps of 32. All (band, step) pairs,
//! bands outermost, are dealt out to the workers in equal runs. A worker is two blocks of threads, each of which
//! has one of the two blocks of columns; what it has of a band is one chain of additions, a piece, and the pieces of
//! the workers that share a band are added in order. Tensor cores sum within a step, 16 elements at a time. None of
//! this depends on the number of rows, so neither do a row's bits: where more rows have another instruction, it
//! sums the same 16 elements in the same way, which the tests hold every card to.

use super::gated::GatedKernels;
use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("gemm");
/// The code of the card for more than [`MOST_ROWS`] rows.
pub const WIDE_SOURCE: Source = source!("gemm", "wide.cuh", "hopper.cuh", "wide.cu");

/// Columns of a block of threads.
pub const BLOCK: usize = 128;
/// Columns whose sums are cut at the same places.
const BAND: usize = 2 * BLOCK;
/// Elements of k that are multiplied at a time.
pub const STEP: usize = 32;
/// Most rows of a launch that reads the weight once.
pub const MOST_ROWS: usize = 32;
/// Rows that a kernel in front of a product is done with soon.
const FEW_ROWS: usize = 8;
/// Most rows of any launch.
pub const MANY_ROWS: usize = 1 << 16;
/// Rows up to which a product always leaves pieces.
const LOW_ROWS: usize = TILE;
/// Bytes of what [`Shape::rows_at_once`] leave, about, at most.
const AT_ONCE_BYTES: usize = 192 << 20;
/// Most of those rows.
const MOST_AT_ONCE: usize = 2048;
/// Rows of a launch that leaves pieces at most. Of more, a band's pieces are added up at once.
const PIECED_ROWS: usize = 512;

/// Threads of a block of a product of few rows: eight warps that multiply, and two that ask for what they do.
const THREADS: u32 = 320;
/// Rows of a tile of the product of many rows.
pub const TILE: usize = 128;
/// Rows that Hopper multiplies together: two tiles.
const HEIGHT: usize = 2 * TILE;
/// Rows between one tile and two that it multiplies as such.
const MIDDLE: usize = TILE + TILE / 2;
/// Fewest steps that make a worker.
const LEAST: usize = 4;
/// Workers, about, that share a band at most: its readers ask for so many pieces at once.
const SHARERS: usize = 6;
/// Workers that share each band of a small weight, which [`super::short`] multiplies too.
pub(super) const PHASES: usize = 4;
/// Bytes of a small weight for each multiprocessor, at most.
const SMALL: usize = 64 << 10;

/// The shape of a weight `[n, k]`, and how its product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Columns of the product.
    pub n: usize,
    /// Elements of a row of x.
    pub k: usize,
    workers: u32,
}

impl Shape {
    /// For a card with so many multiprocessors.
    ///
    /// # Panics
    /// When `k` is not a multiple of [`STEP`], when there is no column, or when the weight has more
    /// than 2³² / `multiprocessors` blocks of steps.
    pub fn new(n: usize, k: usize, multiprocessors: u32) -> Shape {
        assert!(
            n > 0 && k > 0 && k.is_multiple_of(STEP),
            "a weight of {n} × {k} in steps of {STEP}"
        );
        let (bands, steps) = (count(n.div_ceil(BAND)), k / STEP);
        let items = bands as usize * steps;
        let small = n * k * size_of::<u16>() <= SMALL * multiprocessors.max(1) as usize;
        if small && steps >= PHASES {
            return Shape { n, k, workers: bands * count(PHASES) };
        }
        let least = steps.div_ceil(SHARERS).max(LEAST);
        let most = (multiprocessors / 2).max(1).min(count(items.div_ceil(least)));
        // Where as many can share each band, and few are without work, no band's pieces begin in another's.
        let even = most / bands * bands;
        let workers = if even * 20 >= most * 19 { even } else { most };
        assert!((items as u64 + 1) * u64::from(workers) <= 1 << 32, "{n} × {k} is too large");
        Shape { n, k, workers }
    }

    /// Pieces are made by so many.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The same product where its sums are left whole whatever the number of rows.
    #[must_use]
    pub fn whole(&self) -> Shape {
        Shape { workers: 0, ..*self }
    }

    /// Whether each band is shared by [`PHASES`] workers.
    pub(super) fn in_phases(&self) -> bool {
        self.workers as usize == self.bands() * PHASES
    }

    /// Steps of k.
    pub fn steps(&self) -> u32 {
        count(self.k / STEP)
    }

    pub(super) fn blocks(&self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    pub(super) fn bands(&self) -> usize {
        self.n.div_ceil(BAND)
    }

    /// Workers that leave pieces of a product of `rows` rows for others to add up; none where it is left
    /// whole.
    pub(crate) fn workers_of(&self, rows: usize) -> u32 {
        let pieces =
            rows <= LOW_ROWS || rows <= PIECED_ROWS && self.pieces_pay(rows.div_ceil(HEIGHT));
        if pieces { self.workers } else { 0 }
    }

    /// Whether so many heights take less time by workers, whose pieces are written and read once more, than by bands,
    /// of which there may be too few for all workers in the last round. In steps.
    fn pieces_pay(&self, heights: usize) -> bool {
        /// What a worker's piece takes to be written and added up by others.
        const PIECE: usize = 14;
        /// What it takes to be added up at once.
        const HELD: usize = 4;
        let (bands, workers, steps) = (self.bands(), self.workers as usize, self.k / STEP);
        let by_workers = heights * ((bands * steps).div_ceil(workers) + PIECE);
        let rounds = (heights * bands).div_ceil(workers);
        by_workers <= rounds * steps + rounds * HELD * workers / bands
    }

    /// Elements of the packed weight.
    pub fn packed(&self) -> usize {
        self.blocks() * BLOCK * self.k
    }

    /// Elements that a product of `rows` rows leaves: `[piece][half][rows][BLOCK]`, or `[band][half][rows][BLOCK]`.
    pub fn sums(&self, rows: usize) -> usize {
        (self.bands() + self.workers_of(rows) as usize) * rows * BAND
    }

    /// Elements that a product of `rows` rows needs: what it leaves, and its rows once more, in tiles.
    fn room(&self, rows: usize) -> usize {
        let arranged = if rows > MOST_ROWS { rows.next_multiple_of(TILE) * self.k / 2 } else { 0 };
        self.sums(rows).max(self.met(rows)) + arranged
    }

    /// Elements of the buffer of a product of up to `rows` rows: it leaves its sums there, in pieces
    /// that their readers add up or, of many rows, whole, and arranges the rows behind them.
    pub fn pieces(&self, rows: usize) -> usize {
        // Between these a product is left in one way.
        let most = [MOST_ROWS, LOW_ROWS, HEIGHT, PIECED_ROWS, rows];
        most.into_iter().map(|most| self.room(rows.min(most))).max().expect("some sizes")
    }

    /// Rows that a pass multiplies at once at most, so that what they leave has room: of whole tiles, two and two.
    pub fn rows_at_once(&self) -> usize {
        let rows = AT_ONCE_BYTES / (size_of::<f32>() * self.n);
        rows.clamp(HEIGHT, MOST_AT_ONCE) / HEIGHT * HEIGHT
    }

    /// Where element (`row`, `column`) of the weight lies in the packed weight.
    pub fn place(&self, row: usize, column: usize) -> usize {
        let (block, within) = (row / BLOCK, row % BLOCK);
        let (step, e) = (column / STEP, column % STEP);
        let (tile, at, parity) = (within / 16, within % 16 / 2, within % 2);
        // Lane `quad` of a row has elements 8 quad .. 8 quad + 8, four for each half of the step.
        let (quad, half, pair, odd) = (e / 8, e / 4 % 2, e / 2 % 2, e % 2);
        let tiles = (block * (self.k / STEP) + step) * 8 + tile;
        (((tiles * 2 + parity) * 2 + half) * 2 + pair) * 64 + at * 8 + quad * 2 + odd
    }

    /// Packs `weight`, `[n, k]`; rows that fill the last block are zero.
    ///
    /// # Panics
    /// When `weight` has another shape.
    pub fn pack(&self, weight: &[u16]) -> Vec<u16> {
        assert_eq!(weight.len(), self.n * self.k, "the weight is {} × {}", self.n, self.k);
        let mut packed = vec![0; self.packed()];
        for (row, elements) in weight.chunks_exact(self.k).enumerate() {
            for (column, &element) in elements.iter().enumerate() {
                packed[self.place(row, column)] = element;
            }
        }
        packed
    }
}

/// The rows that a pass of `rows` is filled up to, with which its products take hardly longer: powers of two up to
/// [`TILE`], from there on whole tiles, and one and a half, which is Hopper's. (It multiplies the last rows of more in such
/// tiles, too, but to tell so many sizes apart is worth less than to have few graphs.)
pub fn stair(rows: usize) -> usize {
    match rows {
        ..=TILE => rows.next_power_of_two(),
        _ if rows <= MIDDLE => MIDDLE,
        _ => rows.next_multiple_of(TILE),
    }
}

/// How the rows of x lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One behind the other.
    Rows,
    /// In tiles of [`TILE`] rows, the last one whole, as the product of many rows reads them: `[step][half]
    /// [pair][row][8]`. What stands in rows that are too many is of no account.
    Tiles,
}

impl Layout {
    /// Of so many rows that are multiplied together.
    pub fn of(rows: usize) -> Layout {
        if rows > MOST_ROWS { Layout::Tiles } else { Layout::Rows }
    }

    /// Elements of `rows` rows of `width`.
    pub fn elements(self, rows: usize, width: usize) -> usize {
        match self {
            Layout::Rows => rows * width,
            Layout::Tiles => rows.next_multiple_of(TILE) * width,
        }
    }

    /// Where an element of a row of `width` lies.
    pub fn place(self, (row, column): (usize, usize), width: usize) -> usize {
        match self {
            Layout::Rows => row * width + column,
            Layout::Tiles => {
                let step = row / TILE * (width / STEP) + column / STEP;
                let (quad, quarter, odd) = (column % STEP / 8, column % 8 / 2, column % 2);
                (step * 4 + quarter) * TILE * 8 + row % TILE * 8 + quad * 2 + odd
            }
        }
    }
}

/// Rows to multiply.
#[derive(Clone, Copy)]
pub struct Lines<'j> {
    /// Their elements.
    pub x: CudaSlice<'j, u16>,
    /// How many there are.
    pub rows: usize,
    /// How they lie.
    pub layout: Layout,
}

/// A weight on the card.
#[derive(Clone, Copy)]
pub struct Packed<'j> {
    /// Its shape.
    pub shape: Shape,
    /// Its elements, as [`Shape::place`] says.
    pub at: CudaSlice<'j, u16>,
}

impl Packed<'_> {
    /// Panics when there are too few elements.
    pub(super) fn check(&self) {
        let Packed { shape, at } = self;
        assert!(at.len() >= shape.packed(), "a packed weight of {} × {}", shape.n, shape.k);
    }
}

/// What a product stands behind; it already fetches its weight meanwhile. While what is in shared memory of it waits, the
/// card's cache fetches more.
#[derive(Clone, Copy)]
pub enum Behind<'j> {
    /// A norm or the like, which takes as long as its rows need.
    Short,
    /// [Attention](crate::attention::cuda), and the rotation before it, which leave memory idle for so long that
    /// some of a weight comes near, too, that is multiplied after this one.
    Attention(Packed<'j>),
}

impl<'j> Behind<'j> {
    /// Steps of the weight that a block of threads has on their way at a time, until the product may begin. All of its ring
    /// at once is 15 MB, which the kernels in front wait behind; a short one of few rows does so for less time than is lost
    /// when the ring fills late.
    fn window(self, rows: usize) -> u32 {
        match self {
            Behind::Short if rows <= FEW_ROWS => u32::MAX,
            Behind::Attention(_) if rows <= FEW_ROWS => 4,
            Behind::Short | Behind::Attention(_) => 6,
        }
    }

    /// What is multiplied after the product of `weight`, with how many workers: none where it comes near by itself.
    fn next(self, weight: Packed<'j>) -> (Packed<'j>, u32) {
        match self {
            Behind::Short => (weight, 0),
            Behind::Attention(next) => (next, next.shape.workers),
        }
    }
}

type Product = (In<u16>, In<u16>, Writes<f32>, u32, u32, u32, u32, In<u16>, u32, u32, u32);
type Gather = (In<f32>, Writes<f32>, u32, u32, u32, u32);
type Arrange = (In<u16>, Writes<u16>, u32, u32, u32);
type Wide = (In<u16>, In<u16>, Writes<f32>, u32, u32, u32, u32);
type WideBiased = (In<f32>, In<u16>, In<u16>, Writes<f32>, u32, u32, u32, u32);

/// The same without and with biases.
#[derive(Clone)]
struct Both {
    plain: Kernel<Wide>,
    biased: Kernel<WideBiased>,
}

/// The products of many rows.
#[derive(Clone)]
pub(super) struct Tiled {
    arrange: Kernel<Arrange>,
    /// Leaves the pieces of up to [`LOW_ROWS`].
    low: Both,
    pieces: Both,
    whole: Both,
    /// With SwiGLU.
    pub(super) gated: GatedKernels,
    /// Threads of a block: Hopper has warps for copies alone.
    pub(super) threads: u32,
    /// Rows that are multiplied together, and pairs of blocks of threads that run at once.
    pub(super) height: usize,
    pairs: usize,
}

/// The products of a card.
#[derive(Clone)]
pub struct Products {
    /// For at most 8, 16 and 32 rows.
    by_rows: [Kernel<Product>; 3],
    pub(super) tiled: Tiled,
    gather: Kernel<Gather>,
}

impl Products {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Products, CudaError> {
        let (module, wide) = (Module::load(cuda, &SOURCE)?, Module::load(cuda, &WIDE_SOURCE)?);
        let hopper = cuda.target() == "sm_90a";
        // Fourteen steps of a weight and of the rows.
        let few = |rows: u32| 14 * (8192 + rows * 64);
        // Steps of both operands, and where a product is added up its sums.
        let many = if hopper { 229_376 } else { 128 * 128 * 4 + 6 * 2 * 8192 };
        // SAFETY: kernel.cu and wide.cu declare these parameters, stop when a slice is too short for the
        // other arguments, and wait before they read activations or write.
        unsafe {
            let both = |plain, biased| -> Result<Both, CudaError> {
                let (plain, biased) =
                    (wide.early_kernel(plain, many)?, wide.early_kernel(biased, many)?);
                Ok(Both { plain, biased })
            };
            let tiled = Tiled {
                arrange: wide.early_kernel("arrange", 0)?,
                low: both("product_low", "product_low_biased")?,
                pieces: both("product_pieces", "product_pieces_biased")?,
                whole: both("product_whole", "product_whole_biased")?,
                gated: GatedKernels::load(&wide, many)?,
                threads: if hopper { 384 } else { 256 },
                height: if hopper { HEIGHT } else { TILE },
                pairs: (cuda.multiprocessors() as usize / 2).max(1),
            };
            let by_rows = [
                module.early_kernel("product_8", few(8))?,
                module.early_kernel("product_16", few(16))?,
                module.early_kernel("product_32", few(32))?,
            ];
            Ok(Products { by_rows, tiled, gather: module.early_kernel("gather_pieces", 0)? })
        }
    }

    /// The pieces of `x · weightᵀ`: `x` has rows of `k`, `weight` is packed, `pieces` as
    /// [`Shape::pieces`] says. `behind` changes when weights are fetched, and no bits, nor does it matter
    /// how the rows lie.
    ///
    /// # Panics
    /// When there are no rows or more than [`MANY_ROWS`], or when a slice is shorter than its shape.
    pub fn launch(
        &self,
        queue: &Queue,
        (weight, behind): (Packed<'_>, Behind<'_>),
        lines: Lines<'_>,
        pieces: CudaSliceMut<'_, f32>,
    ) {
        Products::check(weight, &lines, pieces.len());
        let Lines { x, rows, layout } = lines;
        if rows > MOST_ROWS || layout == Layout::Tiles {
            return self.tiled.launch(queue, weight, lines, None, pieces);
        }
        let Packed { shape, at } = weight;
        let kernel = [8, 16].iter().filter(|&&most| rows > most).count();
        let grid = Grid { blocks: 2 * shape.workers, threads: THREADS };
        let (blocks, steps, rows) = (count(shape.blocks()), shape.steps(), count(rows));
        let (window, (next, workers)) = (behind.window(lines.rows), behind.next(weight));
        next.check();
        let (next, next_blocks, next_steps) =
            (next.at, count(next.shape.blocks()), next.shape.steps());
        let given =
            (at, x, pieces, blocks, steps, rows, window, next, next_blocks, next_steps, workers);
        queue.launch(&self.by_rows[kernel], grid, given);
    }

    /// As [`Products::launch`], of more than [`MOST_ROWS`] rows or such that lie in tiles, with `bias` (`[n]`)
    /// added to the first piece of each band: what is added up whole takes no bias later.
    ///
    /// # Panics
    /// As [`Products::launch`], and when the rows are few or there is no bias for each column.
    pub fn launch_biased(
        &self,
        queue: &Queue,
        weight: Packed<'_>,
        lines: Lines<'_>,
        bias: CudaSlice<'_, f32>,
        pieces: CudaSliceMut<'_, f32>,
    ) {
        Products::check(weight, &lines, pieces.len());
        let few = lines.rows <= MOST_ROWS && lines.layout == Layout::Rows;
        assert!(!few, "more than {MOST_ROWS} rows, or tiles");
        assert_eq!(bias.len(), weight.shape.n, "a bias for each column");
        self.tiled.launch(queue, weight, lines, Some(bias), pieces);
    }

    pub(super) fn check(weight: Packed<'_>, lines: &Lines<'_>, pieces: usize) {
        let (shape, rows) = (weight.shape, lines.rows);
        let wanted = lines.layout.elements(rows, shape.k);
        assert!((1..=MANY_ROWS).contains(&rows), "{rows} rows of a product of 1 to {MANY_ROWS}");
        weight.check();
        assert!(lines.x.len() >= wanted, "{rows} rows of {}, {:?}", shape.k, lines.layout);
        assert!(pieces >= shape.room(rows), "room for the pieces of {rows} rows");
    }

    /// Adds the pieces up: `to` is `[rows, n]`.
    ///
    /// # Panics
    /// When a slice is shorter than its shape.
    pub fn gather(&self, queue: &Queue, pieces: Pieces<'_>, to: CudaSliceMut<'_, f32>) {
        let Pieces { at, shape, rows } = pieces;
        let all = rows as usize * shape.n;
        pieces.check();
        assert!(to.len() >= all, "{rows} rows of {}", shape.n);
        let given = (at, to, shape.steps(), pieces.workers(), rows, count(shape.n));
        queue.launch(&self.gather, threads_for(all, 256), given);
    }
}

impl Tiled {
    fn launch(
        &self,
        queue: &Queue,
        Packed { shape, at: weight }: Packed<'_>,
        Lines { x, rows, layout }: Lines<'_>,
        bias: Option<CudaSlice<'_, f32>>,
        pieces: CudaSliceMut<'_, f32>,
    ) {
        let (tiles, steps) = (rows.div_ceil(TILE), shape.steps());
        let (out, rest) = pieces.split(shape.sums(rows));
        let mut arranged = rest.numbers::<u16>();
        if layout == Layout::Rows {
            let units = tiles * TILE * shape.k / STEP;
            let given = (x, arranged.all(), steps, count(rows), count(tiles));
            queue.launch(&self.arrange, threads_for(units, self.threads), given);
        }
        let x = match layout {
            Layout::Rows => arranged.read(),
            Layout::Tiles => x,
        };
        let (kernel, pairs) = self.deal((&self.low, &self.pieces, &self.whole), &shape, rows);
        let grid = Grid { blocks: 2 * count(pairs), threads: self.threads };
        let (blocks, workers, rows) = (count(shape.blocks()), shape.workers, count(rows));
        if let Some(bias) = bias {
            let given = (bias, weight, x, out, blocks, steps, workers, rows);
            return queue.launch(&kernel.biased, grid, given);
        }
        queue.launch(&kernel.plain, grid, (weight, x, out, blocks, steps, workers, rows));
    }

    /// The kernel for so many rows, of one that leaves the pieces of few, one that leaves those of more, and one that leaves
    /// bands whole; and its pairs of blocks of threads: no more than run at once, which take one piece of work after another.
    pub(super) fn deal<'k, K>(
        &self,
        (low, pieces, whole): (&'k K, &'k K, &'k K),
        shape: &Shape,
        rows: usize,
    ) -> (&'k K, usize) {
        let heights = rows.div_ceil(self.height);
        let (kernel, places) = match shape.workers_of(rows) as usize {
            0 => (whole, shape.bands()),
            workers if rows <= LOW_ROWS => (low, workers),
            workers => (pieces, workers),
        };
        (kernel, (places * heights).min(self.pairs))
    }
}
