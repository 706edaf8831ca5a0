//! A drafter that proposes whatever a function says: perfect, random and wrong drafters for
//! checks that the output does not depend on the proposals.

use super::{Draft, DraftRow, Drafter, Features};

/// Proposes `script(request, position)` for every position it is asked about.
pub struct Scripted<F> {
    block: usize,
    script: F,
}

impl<F: FnMut(u64, usize) -> u32 + Send> Scripted<F> {
    /// A drafter of `block` positions, the anchor included.
    pub fn new(block: usize, script: F) -> Scripted<F> {
        Scripted { block, script }
    }
}

impl<F: FnMut(u64, usize) -> u32 + Send> Drafter for Scripted<F> {
    fn block(&self) -> usize {
        self.block
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        for (row, out) in rows.iter().zip(out) {
            out.extend((1..row.width).map(|j| (self.script)(row.request, row.len + j)));
        }
    }

    fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
}
