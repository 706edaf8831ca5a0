//! No drafter: every verify block is the anchor alone.

use super::{DraftRow, Drafter, Features};

/// Proposes nothing.
pub struct NoDrafter;

impl Drafter for NoDrafter {
    fn block(&self) -> usize {
        1
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn propose(&mut self, _: &[DraftRow<'_>], _: &mut [Vec<u32>]) {}

    fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
}
