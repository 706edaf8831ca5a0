//! The choice of a token on a CUDA card, from the pieces of the head's product: greedy, or with the
//! noise of the contract; and with the filters and shapes of the contract, which need the logits whole.
//!
//! The filters' weights are whole numbers of 2⁻⁴⁰ of the likeliest token's, so they add up to the same in
//! any order. A token where the sum of weights comes within rounding of `top_p` may fall on the other side
//! than on the CPU.
//!
//! How likely a draft's choice is, its [`Confidences`], is found while it is made, where it is asked for.

mod rules;

pub use rules::{Lists, RULE_WORDS, Rules, Written};

use crate::cuda::{In, Pieces, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("choose", "kernel.cu", "confidence.cu");

const THREADS: u32 = 256;
/// Threads that look for what the filters leave of a row.
const CUTTERS: u32 = 1024;
/// Tokens that a block of threads looks at: two quads a thread, since one waits for the other.
const CHUNK: usize = 2048;

type Largest = (In<f32>, Writes<f32>, Writes<u32>, u32, u32, u32, u32, u32, u32, u32);
type Weigh = (In<f32>, Writes<f32>, Writes<u32>, Writes<f32>, u32, u32, u32, u32, u32, u32, u32);
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
type ChosenWeighed = (
    In<f32>,
    In<u32>,
    In<f32>,
    In<f64>,
    In<u32>,
    In<u32>,
    In<u32>,
    Writes<u32>,
    In<f32>,
    In<f32>,
    Writes<f32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
);
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

/// How likely each choice is by its row of the product, among the ids below `allowed` and whatever its rules:
/// as [`super::confidences`].
pub struct Confidences<'j> {
    /// Room for the weights of each chunk: two floats for each of [`Choices::chunks`] a row.
    pub weights: CudaSliceMut<'j, f32>,
    /// Where they go, an entry for each choice.
    pub out: CudaSliceMut<'j, f32>,
}

/// The choices of a card.
#[derive(Clone)]
pub struct Choices {
    largest: Kernel<Largest>,
    /// The same of products that were left whole.
    largest_whole: Kernel<Largest>,
    /// As `largest`, where it is asked how likely choices are.
    weigh: Kernel<Weigh>,
    weigh_whole: Kernel<Weigh>,
    draw: Kernel<Draw>,
    chosen: Kernel<Chosen>,
    chosen_weighed: Kernel<ChosenWeighed>,
    shape: Kernel<ShapeRows>,
    largest_shaped: Kernel<LargestShaped>,
    cut: Kernel<CutRows>,
    draw_shaped: Kernel<DrawShaped>,
}

/// Numbers that all kernels of a launch take.
struct Sizes {
    allowed: usize,
    first: usize,
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
        (room, confidences): (&Room<'_>, Option<&Confidences<'_>>),
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
        if let Some(Confidences { weights, out: sure }) = confidences {
            assert_eq!(sure.len(), out, "a place for each confidence");
            assert!(weights.len() >= 2 * wanted, "room for the weights of {chunks} chunks a row");
        }
        let grid = Grid { blocks: count(wanted), threads: THREADS };
        Sizes { allowed, first, chunks, rows: out, grid }
    }
}

impl Choices {
    /// Compiles and loads them.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Choices, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu and confidence.cu declare these parameters, stop when a slice is too short for
        // the other arguments, and wait before they read what kernels write.
        unsafe {
            Ok(Choices {
                largest: module.early_kernel("largest", 0)?,
                largest_whole: module.early_kernel("largest_whole", 0)?,
                weigh: module.early_kernel("weigh", 0)?,
                weigh_whole: module.early_kernel("weigh_whole", 0)?,
                draw: module.early_kernel("draw", 0)?,
                chosen: module.early_kernel("chosen", 0)?,
                chosen_weighed: module.early_kernel("chosen_weighed", 0)?,
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
    /// for each of them. Where it is asked how likely they are, that is found beside.
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
        (out, mut confidences): (CudaSliceMut<'_, u32>, Option<Confidences<'_>>),
    ) {
        let Pieces { at, shape, rows } = logits;
        let asked = (&room, confidences.as_ref());
        let sizes = Sizes::new((logits, allowed), (first, out.len()), draws, asked);
        let Draws { temperatures, seeds, positions, shift, sampled } = draws;
        match &mut confidences {
            None => self.look(queue, (logits, &sizes), &mut room),
            Some(sure) => self.weigh(queue, (logits, &sizes), &mut room, sure.weights.all()),
        }
        let given = (
            at,
            room.largest.read(),
            room.ids.read(),
            temperatures,
            seeds,
            positions,
            room.scores.all(),
            room.drawn.all(),
            shape.steps(),
            logits.workers(),
            rows,
            count(shape.n),
            count(allowed),
            count(first),
            count(sizes.chunks),
            shift,
        );
        match sampled {
            Sampled::None => {}
            Sampled::Some => queue.launch(&self.draw, sizes.grid, given),
        }
        let none = room.ids.read().range(0..0);
        let its = (temperatures, none, none);
        self.choose(queue, (logits, &sizes), its, &room, (out, confidences));
    }

    /// The largest logit of each chunk.
    fn look(&self, queue: &Queue, (logits, sizes): (Pieces<'_>, &Sizes), room: &mut Room<'_>) {
        let workers = logits.workers();
        let given = (
            logits.at,
            room.largest.all(),
            room.ids.all(),
            logits.shape.steps(),
            workers,
            logits.rows,
            count(logits.shape.n),
            count(sizes.allowed),
            count(sizes.first),
            count(sizes.chunks),
        );
        let largest = if workers == 0 { &self.largest_whole } else { &self.largest };
        queue.launch(largest, sizes.grid, given);
    }

    /// The same, and the weight of each chunk.
    fn weigh(
        &self,
        queue: &Queue,
        (logits, sizes): (Pieces<'_>, &Sizes),
        room: &mut Room<'_>,
        weights: CudaSliceMut<'_, f32>,
    ) {
        let workers = logits.workers();
        let given = (
            logits.at,
            room.largest.all(),
            room.ids.all(),
            weights,
            logits.shape.steps(),
            workers,
            logits.rows,
            count(logits.shape.n),
            count(sizes.allowed),
            count(sizes.first),
            count(sizes.chunks),
        );
        let weigh = if workers == 0 { &self.weigh_whole } else { &self.weigh };
        queue.launch(weigh, sizes.grid, given);
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
        (out, mut confidences): (CudaSliceMut<'_, u32>, Option<Confidences<'_>>),
    ) {
        let (product, rows) = (logits, logits.rows);
        let RuledRoom { best: mut room, logits: mut shaped, mut cuts } = room;
        let asked = (&room, confidences.as_ref());
        let sizes = Sizes::new((logits, allowed), (first, out.len()), draws, asked);
        assert!(rules.rows.len() >= rows as usize * RULE_WORDS, "a rule for each of {rows} rows");
        let wanted = Choices::shaped(allowed, sizes.rows);
        assert!(shaped.len() >= wanted, "room for the logits of {} rows", sizes.rows);
        assert!(cuts.len() >= 3 * sizes.rows, "room for the cuts of {} rows", sizes.rows);
        let Draws { temperatures, seeds, positions, shift, .. } = draws;
        let (few, begin, chunks) = (count(allowed), count(first), count(sizes.chunks));
        let stride = count(allowed.next_multiple_of(4));
        // Logits are weighed as they are; what they become is looked at below.
        if let Some(sure) = &mut confidences {
            self.weigh(queue, (product, &sizes), &mut room, sure.weights.all());
        }
        self.shape(queue, (product, &sizes), rules, shaped.all());
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
        let its = (temperatures, rules.rows, rules.masks);
        self.choose(queue, (product, &sizes), its, &room, (out, confidences));
    }

    /// Writes the logits with what penalties, additions and masks make of them.
    fn shape(
        &self,
        queue: &Queue,
        (logits, sizes): (Pieces<'_>, &Sizes),
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
            count(sizes.allowed),
            count(sizes.first),
            count(sizes.chunks),
            count(sizes.allowed.next_multiple_of(4)),
        );
        queue.launch(&self.shape, sizes.grid, given);
    }

    /// The best chunk of each row, and how likely its token is, where the chunks were weighed.
    fn choose(
        &self,
        queue: &Queue,
        (logits, sizes): (Pieces<'_>, &Sizes),
        (temperatures, rules, masks): (CudaSlice<'_, f32>, CudaSlice<'_, u32>, CudaSlice<'_, u32>),
        room: &Room<'_>,
        (out, confidences): (CudaSliceMut<'_, u32>, Option<Confidences<'_>>),
    ) {
        let (largest, ids) = (room.largest.read(), room.ids.read());
        let (scores, drawn) = (room.scores.read(), room.drawn.read());
        let (first, chunks, allowed) =
            (count(sizes.first), count(sizes.chunks), count(sizes.allowed));
        let grid = threads_for(sizes.rows * 32, 128);
        let Some(Confidences { weights, out: sure }) = confidences else {
            let given = (
                largest,
                ids,
                temperatures,
                scores,
                drawn,
                rules,
                masks,
                out,
                first,
                chunks,
                allowed,
            );
            return queue.launch(&self.chosen, grid, given);
        };
        let given = (
            largest,
            ids,
            temperatures,
            scores,
            drawn,
            rules,
            masks,
            out,
            logits.at,
            weights.read(),
            sure,
            first,
            chunks,
            allowed,
            logits.shape.steps(),
            logits.workers(),
            logits.rows,
            count(logits.shape.n),
        );
        queue.launch(&self.chosen_weighed, grid, given);
    }
}
