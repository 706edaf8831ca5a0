//! The launches.

use crate::cuda::{In, count, source, threads_for};
use device::cuda::{
    Cuda, CudaError, CudaSlice, CudaSliceMut, Grid, Kernel, Module, Queue, Source, Writes,
};

/// The code of the card.
pub const SOURCE: Source = source!("gather");

type RowsOf = (In<u16>, In<u32>, Writes<u16>, u32);
type WordsTo = (In<u32>, In<u32>, In<u32>, In<u32>, Writes<u32>, Writes<u32>);
type Resolve = (In<u32>, Writes<u32>);

/// What stands for a word that is not known yet: see [`Gather::resolve`].
///
/// # Panics
/// When there are not so many words.
pub fn promise(number: usize) -> u32 {
    let number = u32::try_from(number).ok().filter(|number| number >> 31 == 0);
    number.expect("few words are promised") | 1 << 31
}

/// Whether a word stands for another.
pub fn is_promised(word: u32) -> bool {
    word >> 31 == 1
}

/// Blocks that words may depend on, and what a length or a position may be at most.
pub const MOST_BLOCKS: usize = 1 << 7;
const MOST_WORD: usize = 1 << 24;

/// A word that depends on what became of a block: see [`Settling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// So much, less the rows of the block that were refused.
    Less(usize),
    /// The block's anchor.
    Anchor,
}

impl Unsettled {
    /// What stands for it.
    ///
    /// # Panics
    /// When there are not so many blocks, or the number has more than 24 bits.
    pub fn behind(self, block: usize) -> u32 {
        assert!(block < MOST_BLOCKS, "few blocks are left open, not {block}");
        let (high, low) = match self {
            Unsettled::Less(most) => (0, most),
            Unsettled::Anchor => (1, 0),
        };
        assert!(low < MOST_WORD, "sequences are shorter than {low}");
        high << 31 | (block as u32) << 24 | low as u32
    }
}

/// What words that were marked become.
#[derive(Clone, Copy)]
pub struct Settling<'j> {
    /// A bit a word, in words of 32: those with a bit are [`Unsettled`]. Empty when none is.
    pub marks: CudaSlice<'j, u32>,
    /// As [`crate::accept::cuda::Accepted`] has them.
    pub refused: CudaSlice<'j, u32>,
    /// As `refused`.
    pub anchors: CudaSlice<'j, u32>,
}

/// What brings rows and words on a card.
#[derive(Clone)]
pub struct Gather {
    rows_of: Kernel<RowsOf>,
    words_to: Kernel<WordsTo>,
    resolve: Kernel<Resolve>,
}

impl Gather {
    /// Compiles and loads it.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(cuda: &Cuda) -> Result<Gather, CudaError> {
        let module = Module::load(cuda, &SOURCE)?;
        // SAFETY: kernel.cu declares these parameters, stops at a row outside its matrix and when a slice is
        // too short, and waits before it reads or writes.
        unsafe {
            let rows_of = module.early_kernel("rows_of", 0)?;
            let words_to = module.early_kernel("words_to", 0)?;
            Ok(Gather { rows_of, words_to, resolve: module.early_kernel("resolve", 0)? })
        }
    }

    /// `out[i] = from[numbers[i]]`: rows of `width` elements, a multiple of 8. A number outside of `from` ends the
    /// device.
    ///
    /// # Panics
    /// When the shapes do not match, or there is no row.
    pub fn rows(
        &self,
        queue: &Queue,
        (from, width): (CudaSlice<'_, u16>, usize),
        numbers: CudaSlice<'_, u32>,
        out: CudaSliceMut<'_, u16>,
    ) {
        assert!(width.is_multiple_of(8) && !numbers.is_empty(), "rows of {width}");
        assert!(out.len() >= numbers.len() * width, "a row of {width} for each number");
        let grid = Grid { blocks: count(numbers.len()), threads: 128 };
        queue.launch(&self.rows_of, grid, (from, numbers, out, count(width)));
    }

    /// The first words to `first`, as many as it holds, and the others to `rest`; each of the three on the card or
    /// pinned. A marked word becomes what `settling` says.
    ///
    /// # Panics
    /// When there are more or fewer words than places, or fewer marks.
    pub fn words(
        &self,
        queue: &Queue,
        (from, settling): (CudaSlice<'_, u32>, Settling<'_>),
        first: CudaSliceMut<'_, u32>,
        rest: CudaSliceMut<'_, u32>,
    ) {
        assert_eq!(from.len(), first.len() + rest.len(), "a place for each word");
        let Settling { marks, refused, anchors } = settling;
        assert!(marks.is_empty() || 32 * marks.len() >= from.len(), "a mark for each word");
        if !from.is_empty() {
            let given = (from, marks, refused, anchors, first, rest);
            queue.launch(&self.words_to, threads_for(from.len(), 128), given);
        }
    }

    /// Every one of `words` that is the [`promise`] of a number becomes the word of `from` with that number; one
    /// outside of `from` ends the device.
    pub fn resolve(&self, queue: &Queue, from: CudaSlice<'_, u32>, words: CudaSliceMut<'_, u32>) {
        if !words.is_empty() {
            queue.launch(&self.resolve, threads_for(words.len(), 128), (from, words));
        }
    }
}
