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
    /// Page ids of all requests, span after span.
    pub pages: Vec<u32>,
    /// Rows whose tapped outputs nobody will look at: they need not be kept.
    pub untapped: Vec<Range<usize>>,
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
        self.pages.clear();
        self.untapped.clear();
    }

    /// Rows in the pass.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The rows whose tapped outputs are kept, in runs.
    pub(crate) fn tapped(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.untapped.iter().map(|rows| rows.end));
        let ends = self.untapped.iter().map(|rows| rows.start).chain([self.rows()]);
        starts.zip(ends).map(|(start, end)| start..end)
    }

    /// Adds a request's rows: `tokens` at positions `context …`, in a sequence whose pages are
    /// `pages`. Rows past the pages get no slot of their own; see [`Pass::push_block`].
    ///
    /// # Panics
    /// When the pages do not cover the rows.
    pub fn push(&mut self, tokens: &[u32], context: usize, pages: &[u32], page_size: usize) {
        self.push_block(tokens, context, pages);
        self.slots.extend((context..context + tokens.len()).map(|t| slot(t, pages, page_size)));
    }

    /// As [`Pass::push`], for rows whose keys never enter the pool: they have no slots.
    pub fn push_block(&mut self, tokens: &[u32], context: usize, pages: &[u32]) {
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
