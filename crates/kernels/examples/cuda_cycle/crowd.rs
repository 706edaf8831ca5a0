//! The requests of a pass, and what a host says about their rows.

use crate::buffers::PAGE;
use kernels::attention::cuda::{SPLIT, TILE, Tiling, tiles};
use kernels::choose::cuda::Sampled;
use kernels::rope::cuda::Heads;
use std::fmt::{Display, Formatter};

/// Most rows of a pass.
const MOST_ROWS: usize = 512;

/// Requests of one pass, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    requests: usize,
    /// Rows of each.
    each: usize,
    /// Tokens that each has in KV.
    context: usize,
    /// Whether any row is sampled.
    pub(crate) sampled: Sampled,
}

/// What a host says about the rows of a pass, as words.
pub(crate) struct Said {
    /// The request of each row, `[rows]`.
    pub(crate) spans: Vec<u32>,
    /// Each row's offset from its request's length, `[rows]`.
    pub(crate) offsets: Vec<u32>,
    /// Tokens in KV of each request, then where its page ids begin: `[2, requests]`.
    pub(crate) requests: Vec<u32>,
    /// Page ids, `[pages]`.
    pub(crate) pages: Vec<u32>,
    /// Tiles of attention, `[tiles, 5]`.
    pub(crate) tiles: Vec<u32>,
}

impl Crowd {
    /// One request, whose rows may be sampled.
    pub(crate) const fn one(rows: usize, context: usize) -> Crowd {
        Crowd { requests: 1, each: rows, context, sampled: Sampled::Some }
    }

    /// Crowds that choose greedily, of texts like `32x4,32x8` and, for the context of each, `128,640`.
    ///
    /// # Errors
    /// Says which text is something else, or is of no rows or too many.
    pub(crate) fn parse(crowds: &str, contexts: &str) -> Result<Vec<Crowd>, String> {
        let number = |text: &str| {
            text.parse::<usize>().map_err(|error| format!("`{text}` is not a number: {error}"))
        };
        let contexts = contexts.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
        let mut all = Vec::new();
        for text in crowds.split(',') {
            let (requests, each) = text
                .split_once('x')
                .ok_or_else(|| format!("`{text}` is not REQUESTSxROWS, like 32x8"))?;
            let (requests, each) = (number(requests)?, number(each)?);
            if !requests.checked_mul(each).is_some_and(|rows| (1..=MOST_ROWS).contains(&rows)) {
                return Err(format!("`{text}` is not 1 to {MOST_ROWS} rows"));
            }
            let of = |&context| Crowd { requests, each, context, sampled: Sampled::None };
            all.extend(contexts.iter().map(of));
        }
        Ok(all)
    }

    /// Rows of the pass.
    pub(crate) fn rows(&self) -> usize {
        self.requests * self.each
    }

    /// Tokens in KV of all requests.
    pub(crate) fn tokens(&self) -> usize {
        self.requests * self.context
    }

    /// A bound on the context: so many times [`SPLIT`] tokens.
    pub(crate) fn splits(&self) -> usize {
        self.context.div_ceil(SPLIT) + self.each.div_ceil(SPLIT)
    }

    /// How attention's tiles were cut.
    pub(crate) fn tiling(&self, heads: Heads) -> Tiling {
        self.tiles(heads).1
    }

    fn tiles(&self, heads: Heads) -> (Vec<u32>, Tiling) {
        let each = self.each;
        let spans: Vec<_> = (0..self.requests).map(|i| (i * each, each, i)).collect();
        tiles(heads, &spans)
    }

    pub(crate) fn said(&self, heads: Heads) -> Said {
        let Crowd { requests, each, context, .. } = *self;
        let (spans, offsets) =
            (0..self.rows()).map(|row| ((row / each) as u32, (row % each) as u32)).unzip();
        let own = (context + each).div_ceil(PAGE);
        let lengths = (0..requests).map(|_| context as u32);
        let firsts = (0..requests).map(|request| (request * own) as u32);
        let mut tiles = self.tiles(heads).0;
        // Tiles of no rows, up to a power of two as in the engine.
        tiles.resize((tiles.len() / TILE).next_power_of_two() * TILE, 0);
        Said {
            spans,
            offsets,
            requests: lengths.chain(firsts).collect(),
            pages: (0..(requests * own) as u32).rev().collect(),
            tiles,
        }
    }
}

impl Display for Crowd {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Crowd { requests, each, context, .. } = self;
        write!(f, "{requests}x{each} at {context}")
    }
}
