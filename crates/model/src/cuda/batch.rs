//! What the host says about a pass, as words: where each row stands, and how attention cuts the rows
//! into tiles. Up to [`MOST_FILLED`] rows it is filled up to one of few numbers, so that few graphs serve all
//! passes; what fills it stands for nothing and is written nowhere that anyone reads.

use super::job::Said;
use super::room::Room;
use crate::pass::Pass;
use kernels::attention::cuda::{Attention, SPLIT, TILE, Tiling, tiles};
use kernels::gather::cuda::Unsettled;
use kernels::gemm::cuda;
use kernels::rope::cuda::Heads;
use std::ops::Range;

/// Widest block of a draft pass.
const MOST_BLOCK: usize = SPLIT;

/// Most rows of a pass that is filled up.
const MOST_FILLED: usize = 512;

/// So many rows as a graph has them that is captured once for all passes of its shape, none for passes of more than
/// `most` rows and for those whose shapes hardly come again.
pub(crate) fn filled(rows: usize, most: usize) -> Option<usize> {
    let filled = cuda::stair(rows);
    (filled <= MOST_FILLED.min(most)).then_some(filled)
}

/// Where things lie among the words of a batch of `rows` rows and `tiles` tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Regions {
    pub(crate) rows: usize,
    pub(crate) tiles: usize,
}

impl Regions {
    /// Token of each row.
    pub(crate) fn tokens(self) -> Range<usize> {
        0..self.rows
    }

    /// The request of each row.
    pub(crate) fn spans(self) -> Range<usize> {
        self.rows..2 * self.rows
    }

    /// Each row's offset from its request's length.
    pub(crate) fn offsets(self) -> Range<usize> {
        2 * self.rows..3 * self.rows
    }

    /// Each row's own number: its slot in a block.
    pub(crate) fn own(self) -> Range<usize> {
        3 * self.rows..4 * self.rows
    }

    /// Tokens in KV of each request.
    pub(crate) fn lengths(self) -> Range<usize> {
        4 * self.rows..5 * self.rows + 1
    }

    /// Where each request's page ids begin.
    pub(crate) fn firsts(self) -> Range<usize> {
        5 * self.rows + 1..6 * self.rows + 2
    }

    /// Tiles of attention.
    pub(crate) fn tiles(self) -> Range<usize> {
        let first = 6 * self.rows + 2;
        first..first + TILE * self.tiles
    }

    /// Page ids, to the end.
    pub(crate) fn pages(self) -> usize {
        self.tiles().end
    }

    /// Words for up to `rows` rows and `ids` page ids.
    pub(crate) fn most(rows: usize, ids: usize) -> usize {
        Regions { rows, tiles: rows }.pages() + ids
    }

    /// Page ids behind those of requests: the page that is nowhere, and what a block may reach past
    /// its request's pages.
    pub(crate) fn slack(page_size: usize) -> usize {
        1 + MOST_BLOCK.div_ceil(page_size) + 1
    }
}

/// What a row sees of its own pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The rows behind it, whose keys are in the pages.
    Causal,
    /// The rows of its block.
    Block,
}

/// Rows that are attended to in one launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(crate) rows: Range<usize>,
    /// Its tiles.
    pub(crate) tiles: Range<usize>,
    pub(crate) tiling: Tiling,
}

/// The shape of a batch: what a captured graph is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    pub(crate) regions: Regions,
    pub(crate) splits: usize,
    pub(crate) slices: Vec<Slice>,
}

/// Whether passes of a shape come again, so that a graph is worth its capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Often {
    Yes,
    No,
}

/// What the host says about a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) said: Said,
    pub(crate) cut: Cut,
    pub(crate) often: Often,
}

/// A run of a request's rows.
#[derive(Clone, Copy)]
struct Run {
    /// Its first row in the pass, and rows.
    start: usize,
    len: usize,
    /// Tokens before them.
    context: usize,
    /// Where its request's page ids begin.
    first_page: usize,
    /// The block that it begins behind, if nobody knows yet how much is kept of that.
    behind: Option<usize>,
}

fn word(n: usize) -> u32 {
    u32::try_from(n).expect("counts of a pass fit 32 bits")
}

impl Batch {
    /// Of `pass`, for layers with these heads.
    pub(crate) fn new(pass: &Pass, kind: Kind, room: &Room, heads: Heads) -> Batch {
        let longest = pass.spans.iter().map(|span| match kind {
            Kind::Causal => (span.context + span.len).div_ceil(SPLIT),
            Kind::Block => span.context.div_ceil(SPLIT) + 1,
        });
        let splits = longest.max().unwrap_or(1).max(1);
        let common = splits.next_power_of_two();
        let runs: Vec<Run> = (0..pass.spans.len()).map(|span| Run::whole(pass, span)).collect();
        if let Some(filled) = filled(pass.rows(), room.rows)
            && Attention::parts(heads, filled) <= room.parts
        {
            return Batch::lay(pass, room, heads, &[runs], (Some(filled), common));
        }
        let most = (room.parts / Attention::parts(heads, 1)).max(1);
        let slices = slices(&runs, kind, most);
        Batch::lay(pass, room, heads, &slices, (None, splits))
    }

    /// Lays out `slices`, filled up to some rows where `filled` says so.
    fn lay(
        pass: &Pass,
        room: &Room,
        heads: Heads,
        slices: &[Vec<Run>],
        (filled, splits): (Option<usize>, usize),
    ) -> Batch {
        let rows = filled.unwrap_or(pass.rows());
        let nobody = slices.iter().map(Vec::len).sum::<usize>();
        let (mut cut, mut all_tiles, mut at) = (Vec::new(), Vec::new(), 0);
        for slice in slices {
            let start = slice.first().map_or(0, |run| run.start);
            let end = slice.last().map_or(0, |run| run.start + run.len);
            let parts: Vec<_> = slice
                .iter()
                .enumerate()
                .map(|(i, run)| (run.start - start, run.len, at + i))
                .collect();
            let first = all_tiles.len() / TILE;
            let (own, tiling) = tiles(heads, &parts);
            all_tiles.extend(own);
            at += slice.len();
            cut.push(Slice { rows: start..end, tiles: first..all_tiles.len() / TILE, tiling });
        }
        if filled.is_some() {
            // Tiles of no rows.
            let wanted = (all_tiles.len() / TILE).next_power_of_two();
            while all_tiles.len() < TILE * wanted {
                all_tiles.extend([0, 0, word(nobody), 0, 0]);
            }
            cut = vec![Slice { rows: 0..rows, tiles: 0..wanted, tiling: cut[0].tiling }];
        }
        let regions = Regions { rows, tiles: all_tiles.len() / TILE };
        let mut words = vec![0; regions.pages()];
        let mut marks = Vec::new();
        words[regions.tokens()][..pass.rows()].copy_from_slice(&pass.tokens);
        words[regions.spans()].fill(word(nobody));
        let runs = || slices.iter().flatten();
        for (i, run) in runs().enumerate() {
            for offset in 0..run.len {
                words[regions.spans()][run.start + offset] = word(i);
                words[regions.offsets()][run.start + offset] = word(offset);
            }
            words[regions.lengths()][i] = word(run.context);
            words[regions.firsts()][i] = word(run.first_page);
            if let Some(block) = run.behind {
                let at = regions.lengths().start + i;
                words[at] = Unsettled::Less(run.context).behind(block);
                marks.push(at);
            }
        }
        for behind in &pass.behind {
            let at = regions.tokens().start + pass.spans[behind.span].start;
            words[at] = Unsettled::Anchor.behind(behind.block);
            marks.push(at);
        }
        words[regions.firsts()][nobody] = word(pass.pages.len());
        for (own, to) in words[regions.own()].iter_mut().enumerate() {
            *to = word(own);
        }
        words[regions.tiles()].copy_from_slice(&all_tiles);
        words.extend_from_slice(&pass.pages);
        words.push(room.nowhere());
        let often = if filled.is_some() { Often::Yes } else { Often::No };
        let said = Said { words, marks };
        Batch { said, cut: Cut { regions, splits, slices: cut }, often }
    }
}

impl Run {
    fn whole(pass: &Pass, span: usize) -> Run {
        let kernels::attention::Span { start, len, context, first_page } = pass.spans[span];
        let behind = pass.behind.iter().find(|behind| behind.span == span);
        let behind = behind.map(|behind| behind.block);
        Run { start, len, context, first_page, behind }
    }
}

/// Cuts `runs` into slices of at most `most` rows. A run of a causal pass may be cut: its later rows see
/// the earlier ones in the pages. A block is not.
fn slices(runs: &[Run], kind: Kind, most: usize) -> Vec<Vec<Run>> {
    let (mut slices, mut slice, mut room) = (Vec::new(), Vec::new(), most);
    for &run in runs {
        let mut rest = run;
        while rest.len > 0 {
            let whole = kind == Kind::Block;
            if room == 0 || (whole && rest.len > room && room < most) {
                slices.push(std::mem::take(&mut slice));
                room = most;
            }
            let len = if whole { rest.len } else { rest.len.min(room) };
            slice.push(Run { len, ..rest });
            room = room.saturating_sub(len);
            rest.start += len;
            rest.context += len;
            rest.len -= len;
        }
    }
    slices.push(slice);
    slices
}

#[cfg(test)]
#[path = "batch_test.rs"]
mod tests;
