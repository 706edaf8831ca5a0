//! The rows of one pass over a model: ragged, any mix of prompt chunks and verify blocks.

use kernels::attention::Span;
use kernels::gemm::Weight;
use std::ops::Range;

/// Token rows of one launch, grouped by request.
#[derive(Debug, Default)]
pub struct Pass {
    /// Token id of every row.
    pub tokens: Vec<u32>,
    /// Absolute position of every row.
    pub positions: Vec<u32>,
    /// KV slot of every row: `page · page_size + offset`.
    pub slots: Vec<u32>,
    /// One entry a request.
    pub spans: Vec<Span>,
    /// Spans that begin behind a block of which nobody knows yet how much is kept, as [`Start::Behind`] says.
    pub behind: Vec<Behind>,
    /// Page ids of all requests, span after span.
    pub pages: Vec<u32>,
    /// Rows whose tapped outputs nobody will look at: they need not be kept.
    pub untapped: Vec<Range<usize>>,
}

/// Where a request's rows begin in its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Behind so many tokens.
    At(usize),
    /// Behind what is kept of a block of the target's last pass, which accepts its drafts itself: positions, slots and
    /// draws are those of a block that is kept whole, and whoever runs the pass takes off what was not. The first
    /// token is the block's anchor, whatever is said.
    Behind {
        /// The block's place among the spans of that pass.
        block: usize,
        /// Tokens when all of it is kept.
        most: usize,
    },
}

impl Start {
    /// Tokens before it at most.
    pub fn most(self) -> usize {
        match self {
            Start::At(tokens) | Start::Behind { most: tokens, .. } => tokens,
        }
    }
}

impl From<usize> for Start {
    fn from(tokens: usize) -> Start {
        Start::At(tokens)
    }
}

/// A span that begins behind a block: their places among the spans of this pass and of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Of this pass.
    pub span: usize,
    /// Of the target's last pass.
    pub block: usize,
}

/// What the products of a pass take at least, whatever runs them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, read once a pass.
    pub bytes: usize,
    /// Weights, each multiplied once a row.
    pub weights: usize,
}

impl Work {
    /// Of products with these.
    pub(crate) fn of<'w>(weights: impl IntoIterator<Item = &'w Weight>) -> Work {
        weights.into_iter().fold(Work::default(), |work, weight| Work {
            bytes: work.bytes + weight.bytes(),
            weights: work.weights + weight.n() * weight.k(),
        })
    }
}

impl Pass {
    /// Empties the pass, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.spans.clear();
        self.behind.clear();
        self.pages.clear();
        self.untapped.clear();
    }

    /// Rows in the pass.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The block that `row` stands behind, of which nobody knows yet how much is kept.
    pub fn behind(&self, row: usize) -> Option<usize> {
        let span = self.spans.iter().rposition(|span| span.start <= row)?;
        let behind = self.behind.iter().find(|behind| behind.span == span)?;
        Some(behind.block)
    }

    /// The rows whose tapped outputs are kept, in runs.
    pub(crate) fn tapped(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.untapped.iter().map(|rows| rows.end));
        let ends = self.untapped.iter().map(|rows| rows.start).chain([self.rows()]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// Adds a request's rows: `tokens` at positions from `start` on, in a sequence whose pages are
    /// `pages`. Rows past the pages get no slot of their own; see [`Pass::push_block`].
    ///
    /// # Panics
    /// When the pages do not cover the rows.
    pub fn push(
        &mut self,
        tokens: &[u32],
        start: impl Into<Start>,
        pages: &[u32],
        page_size: usize,
    ) {
        let start = start.into();
        self.push_block(tokens, start, pages);
        let positions = start.most()..start.most() + tokens.len();
        self.slots.extend(positions.map(|t| slot(t, pages, page_size)));
    }

    /// As [`Pass::push`], for rows whose keys never enter the pool: they have no slots.
    pub fn push_block(&mut self, tokens: &[u32], start: impl Into<Start>, pages: &[u32]) {
        let start = start.into();
        if let Start::Behind { block, .. } = start {
            self.behind.push(Behind { span: self.spans.len(), block });
        }
        let context = start.most();
        self.spans.push(Span {
            start: self.tokens.len(),
            len: tokens.len(),
            context,
            first_page: self.pages.len(),
        });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((context..context + tokens.len()).map(position));
        self.pages.extend_from_slice(pages);
    }
}

/// The slot of token `t` in a sequence with these pages.
///
/// # Panics
/// When the pages do not cover `t`.
pub fn slot(t: usize, pages: &[u32], page_size: usize) -> u32 {
    let page = pages[t / page_size] as usize;
    u32::try_from(page * page_size + t % page_size).expect("slots fit 32 bits")
}

fn position(t: usize) -> u32 {
    u32::try_from(t).expect("positions fit 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_behind_the_blocks_of_their_spans() {
        let mut pass = Pass::default();
        pass.push(&[1; 2], 5, &[0], 16);
        pass.push(&[1; 3], Start::Behind { block: 4, most: 9 }, &[1], 16);
        pass.push_block(&[1], Start::Behind { block: 0, most: 2 }, &[2]);
        let behind: Vec<_> = (0..6).map(|row| pass.behind(row)).collect();
        assert_eq!(behind, [None, None, Some(4), Some(4), Some(4), Some(0)]);
        assert_eq!(pass.positions[2..5], [9, 10, 11], "as if all of the block were kept");
        pass.clear();
        pass.push(&[1], 5, &[0], 16);
        assert_eq!(pass.behind(0), None);
    }

    #[test]
    fn rows_are_tapped_unless_nobody_will_look() {
        let mut pass = Pass::default();
        pass.push(&[1; 9], 0, &[0], 16);
        let tapped = |pass: &Pass| pass.tapped().flatten().collect::<Vec<_>>();
        assert_eq!(tapped(&pass), (0..9).collect::<Vec<_>>());
        pass.untapped.extend([0..2, 2..3, 5..8]);
        assert_eq!(tapped(&pass), [3, 4, 8]);
        pass.clear();
        assert!(pass.untapped.is_empty());
    }
}
