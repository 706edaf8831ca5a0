//! The choice of a token on a CUDA card, from the pieces of the head's product: greedy, or with the
//! noise of the contract; and with the filters and shapes of the contract, which need the logits whole.
//!
//! The filters' weights are whole numbers of 2⁻⁴⁰ of the likeliest token's, so they add up to the same in
//! any order. A token where the sum of weights comes within rounding of `top_p` may fall on the other side
//! than on the CPU.
//!
//! How likely a draft's choice was is another operation, [`Confidences`], which follows the choice.

mod rules;

pub use rules::{Lists, RULE_WORDS, Rules, Written};

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("choose");
/// That of [`Confidences`].
pub const CONFIDENCE_SOURCE: Source = source!("choose", "confidence.cu");

const THREADS: u32 = 256;
/// Threads that look for what the filters leave of a row.
const CUTTERS: u32 = 1024;
/// Tokens that a block of threads looks at: two quads a thread, since one waits for the other.
const CHUNK: usize = 2048;

type Largest = (In<f32>, Writes<f32>, Writes<u32>, u32, u32, u32, u32, u32, u32, u32);
type Draw = (
    In<f32>,
    In<f32>,
    In<u32>,
    In<f32>,
    In<u64>,
    In<u32>,
    Writes<f64>,
    Writes<u32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
);
type Chosen =
    (In<f32>, In<u32>, In<f32>, In<f64>, In<u32>, In<u32>, In<u32>, Writes<u32>, u32, u32, u32);
type ShapeRows = (
    In<f32>,
    In<u32>,
    In<u32>,
    In<u32>,
    In<u32>,
    Writes<f32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
);
type LargestShaped = (In<f32>, Writes<f32>, Writes<u32>, u32, u32, u32, u32);
type CutRows = (In<f32>, In<u32>, In<f32>, In<u32>, In<f32>, Writes<f32>, u32, u32, u32, u32);
type DrawShaped = (
    In<f32>,
    In<f32>,
    In<f32>,
    In<u32>,
    In<f32>,
    In<u64>,
    In<u32>,
    Writes<f64>,
    Writes<u32>,
    u32,
    u32,
    u32,
    u32,
    u32,
);
type Weigh = (In<f32>, In<u32>, Writes<f64>, u32, u32, u32, u32, u32, u32);
type Confidence = (In<f64>, Writes<f32>, u32);

/// Whether any row of a launch is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampled {
    /// All temperatures are 0.
    None,
    /// Some may be above.
    Some,
}

/// How the rows of a launch draw, an entry for each row of the product.
#[derive(Clone, Copy)]
pub struct Draws<'j> {
    /// 0 is greedy.
    pub temperatures: CudaSlice<'j, f32>,
    /// The request's seed.
    pub seeds: CudaSlice<'j, u64>,
    /// The row's position.
    pub positions: CudaSlice<'j, u32>,
    /// From the row's position to that of the token being chosen: 1 for a target, 0 for a drafter.
    pub shift: u32,
    /// What is known of the temperatures.
    pub sampled: Sampled,
}

/// Room for the best of each chunk; each has [`Choices::chunks`] entries a row.
pub struct Room<'j> {
    /// The largest logit.
    pub largest: CudaSliceMut<'j, f32>,
    /// Its token.
    pub ids: CudaSliceMut<'j, u32>,
    /// The best score.
    pub scores: CudaSliceMut<'j, f64>,
    /// Its token.
    pub drawn: CudaSliceMut<'j, u32>,
}

/// Room for choices with rules.
pub struct RuledRoom<'j> {
    /// As without.
    pub best: Room<'j>,
    /// The logits with what rules make of them: [`Choices::shaped`] floats.
    pub logits: CudaSliceMut<'j, f32>,
    /// What filters leave: three floats a row.
    pub cuts: CudaSliceMut<'j, f32>,
}

/// The choices of a card.
#[derive(Clone)]
pub struct Choices {
    largest: Kernel<Largest>,
    /// The same of products that were left whole.
    largest_whole: Kernel<Largest>,
    draw: Kernel<Draw>,
    chosen: Kernel<Chosen>,
    shape: Kernel<ShapeRows>,
    largest_shaped: Kernel<LargestShaped>,
    cut: Kernel<CutRows>,
    draw_shaped: Kernel<DrawShaped>,
}

/// Numbers that all kernels of a launch take.
struct Sizes {
    chunks: usize,
    /// Rows that are chosen for.
    rows: usize,
    grid: Grid,
}

impl Sizes {
    /// Checks what every launch has to hold.
    fn new(
        (logits, allowed): (Pieces<'_>, usize),
        (first, out): (usize, usize),
        draws: Draws<'_>,
        room: &Room<'_>,
    ) -> Sizes {
        let all = logits.rows as usize;
        assert!((1..=logits.shape.n).contains(&allowed), "{allowed} of {} tokens", logits.shape.n);
        assert_eq!(out + first, all, "a place for each choice");
        logits.check();
        let Draws { temperatures, seeds, positions, .. } = draws;
        assert!(
            temperatures.len() >= all && seeds.len() >= all && positions.len() >= all,
            "a draw for each of {all} rows"
        );
        let chunks = Choices::chunks(allowed);
        let wanted = chunks * out;
        assert!(
            [room.largest.len(), room.ids.len(), room.scores.len(), room.drawn.len()]
                .iter()
                .all(|len| *len >= wanted),
            "room for {chunks} chunks of each row"
        );
        Sizes { chunks, rows: out, grid: Grid { blocks: count(wanted), threads: THREADS } }
    }
}

impl Choices {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Choices, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops when a slice is too short for the other
        // arguments, and waits before it reads what kernels write.
        unsafe {
            Ok(Choices {
                largest: module.early_kernel("largest", 0)?,
                largest_whole: module.early_kernel("largest_whole", 0)?,
                draw: module.early_kernel("draw", 0)?,
                chosen: module.early_kernel("chosen", 0)?,
                shape: module.early_kernel("shape", 0)?,
                largest_shaped: module.early_kernel("largest_shaped", 0)?,
                cut: module.early_kernel("cut", 0)?,
                draw_shaped: module.early_kernel("draw_shaped", 0)?,
            })
        }
    }

    /// Chunks of a row.
    pub fn chunks(allowed: usize) -> usize {
        allowed.div_ceil(CHUNK).max(1)
    }

    /// Chooses a token below `allowed` for each row of the product from `first` on: `out` has an entry
    /// for each of them.
    ///
    /// # Panics
    /// When the lengths do not match, or `allowed` is not in `1 ..= n` of the product.
    pub fn launch(
        &self,
        queue: &Queue,
        (logits, allowed): (Pieces<'_>, usize),
        first: usize,
        draws: Draws<'_>,
        mut room: Room<'_>,
        out: CudaSliceMut<'_, u32>,
    ) {
        let Pieces { at, shape, rows } = logits;
        let sizes = Sizes::new((logits, allowed), (first, out.len()), draws, &room);
        let Draws { temperatures, seeds, positions, shift, sampled } = draws;
        let (steps, workers, columns) = (shape.steps(), logits.workers(), count(shape.n));
        let chunks = count(sizes.chunks);
        let (few, begin) = (count(allowed), count(first));
        let cut = (room.largest.all(), room.ids.all());
        let given = (at, cut.0, cut.1, steps, workers, rows, columns, few, begin, chunks);
        let largest = if workers == 0 { &self.largest_whole } else { &self.largest };
        queue.launch(largest, sizes.grid, given);
        let given = (
            at,
            room.largest.read(),
            room.ids.read(),
            temperatures,
            seeds,
            positions,
            room.scores.all(),
            room.drawn.all(),
            steps,
            workers,
            rows,
            columns,
            few,
            begin,
            chunks,
            shift,
        );
        match sampled {
            Sampled::None => {}
            Sampled::Some => queue.launch(&self.draw, sizes.grid, given),
        }
        let none = room.ids.read().range(0..0);
        self.choose(queue, (&sizes, first, allowed), temperatures, &room, (none, none), out);
    }

    /// Floats of the logits of `rows` rows that rules have changed.
    pub fn shaped(allowed: usize, rows: usize) -> usize {
        rows * allowed.next_multiple_of(4)
    }

    /// As [`Choices::launch`], with rules for each row. A rule that names what is not in `rules` ends the
    /// device.
    ///
    /// # Panics
    /// As [`Choices::launch`], and when the rules or the room are too short.
    pub fn launch_ruled(
        &self,
        queue: &Queue,
        (logits, allowed): (Pieces<'_>, usize),
        first: usize,
        (draws, rules): (Draws<'_>, Rules<'_>),
        room: RuledRoom<'_>,
        out: CudaSliceMut<'_, u32>,
    ) {
        let rows = logits.rows;
        let RuledRoom { best: mut room, logits: mut shaped, mut cuts } = room;
        let sizes = Sizes::new((logits, allowed), (first, out.len()), draws, &room);
        assert!(rules.rows.len() >= rows as usize * RULE_WORDS, "a rule for each of {rows} rows");
        let wanted = Choices::shaped(allowed, sizes.rows);
        assert!(shaped.len() >= wanted, "room for the logits of {} rows", sizes.rows);
        assert!(cuts.len() >= 3 * sizes.rows, "room for the cuts of {} rows", sizes.rows);
        let Draws { temperatures, seeds, positions, shift, .. } = draws;
        let (few, begin, chunks) = (count(allowed), count(first), count(sizes.chunks));
        let stride = count(allowed.next_multiple_of(4));
        self.shape(queue, (logits, allowed), (first, &sizes), rules, shaped.all());
        let logits = shaped.read();
        let given = (logits, room.largest.all(), room.ids.all(), stride, few, begin, chunks);
        queue.launch(&self.largest_shaped, sizes.grid, given);
        let (largest, ids) = (room.largest.read(), room.ids.read());
        let given = (
            logits,
            rules.rows,
            largest,
            ids,
            temperatures,
            cuts.all(),
            stride,
            few,
            begin,
            chunks,
        );
        let each = Grid { blocks: count(sizes.rows), threads: CUTTERS };
        queue.launch(&self.cut, each, given);
        let given = (
            logits,
            cuts.read(),
            largest,
            ids,
            temperatures,
            seeds,
            positions,
            room.scores.all(),
            room.drawn.all(),
            stride,
            few,
            begin,
            chunks,
            shift,
        );
        queue.launch(&self.draw_shaped, sizes.grid, given);
        let its = (rules.rows, rules.masks);
        self.choose(queue, (&sizes, first, allowed), temperatures, &room, its, out);
    }

    /// Writes the logits with what penalties, additions and masks make of them.
    fn shape(
        &self,
        queue: &Queue,
        (logits, allowed): (Pieces<'_>, usize),
        (first, sizes): (usize, &Sizes),
        rules: Rules<'_>,
        shaped: CudaSliceMut<'_, f32>,
    ) {
        let Pieces { at, shape, rows } = logits;
        let given = (
            at,
            rules.rows,
            rules.seen,
            rules.additions,
            rules.masks,
            shaped,
            shape.steps(),
            logits.workers(),
            rows,
            count(shape.n),
            count(allowed),
            count(first),
            count(sizes.chunks),
            count(allowed.next_multiple_of(4)),
        );
        queue.launch(&self.shape, sizes.grid, given);
    }

    /// The best chunk of each row.
    fn choose(
        &self,
        queue: &Queue,
        (sizes, first, allowed): (&Sizes, usize, usize),
        temperatures: CudaSlice<'_, f32>,
        room: &Room<'_>,
        (rules, masks): (CudaSlice<'_, u32>, CudaSlice<'_, u32>),
        out: CudaSliceMut<'_, u32>,
    ) {
        let given = (
            room.largest.read(),
            room.ids.read(),
            temperatures,
            room.scores.read(),
            room.drawn.read(),
            rules,
            masks,
            out,
            count(first),
            count(sizes.chunks),
            count(allowed),
        );
        queue.launch(&self.chosen, threads_for(sizes.rows * 32, 128), given);
    }
}

/// How sure a drafter is of its choices, on a card. What chooses for a target has no part in it.
#[derive(Clone)]
pub struct Confidences {
    weigh: Kernel<Weigh>,
    /// The same of products that were left whole.
    weigh_whole: Kernel<Weigh>,
    confidence: Kernel<Confidence>,
}

impl Confidences {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Confidences, CudaError> {
        let module = Module::load(cuda, &CONFIDENCE_SOURCE)?;
        // SAFETY: as in [`Choices::load`], of confidence.cu.
        unsafe {
            Ok(Confidences {
                weigh: module.early_kernel("weigh", 0)?,
                weigh_whole: module.early_kernel("weigh_whole", 0)?,
                confidence: module.early_kernel("confidence", 0)?,
            })
        }
    }

    /// How likely each of `chosen` is by its row of the product, from `first` on, among the ids below
    /// `allowed`: as [`super::confidences`]. `out` has an entry for each of them, and `weights` is room for
    /// [`Choices::chunks`] each. A choice that is not below `allowed` ends the device.
    ///
    /// # Panics
    /// When the lengths do not match, or `allowed` is not in `1 ..= n` of the product.
    pub fn launch(
        &self,
        queue: &Queue,
        (logits, allowed): (Pieces<'_>, usize),
        (first, chosen): (usize, CudaSlice<'_, u32>),
        mut weights: CudaSliceMut<'_, f64>,
        out: CudaSliceMut<'_, f32>,
    ) {
        let Pieces { at, shape, rows } = logits;
        assert!((1..=shape.n).contains(&allowed), "{allowed} of {} tokens", shape.n);
        assert_eq!(out.len() + first, rows as usize, "a place for each confidence");
        assert_eq!(out.len(), chosen.len(), "a choice for each confidence");
        logits.check();
        let (asked, chunks) = (out.len(), Choices::chunks(allowed));
        assert!(weights.len() >= chunks * asked, "room for {chunks} chunks of each row");
        let grid = Grid { blocks: count(chunks * asked), threads: THREADS };
        let given = (
            at,
            chosen,
            weights.all(),
            shape.steps(),
            logits.workers(),
            rows,
            count(shape.n),
            count(allowed),
            count(first),
        );
        let weigh = if logits.workers() == 0 { &self.weigh_whole } else { &self.weigh };
        queue.launch(weigh, grid, given);
        let given = (weights.read(), out, count(chunks));
        queue.launch(&self.confidence, threads_for(asked, 32), given);
    }
}
