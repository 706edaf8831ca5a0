//! No drafter: every verify block is the anchor alone.

use super::{Draft, DraftRow, Drafter, Features};

/// Proposes nothing.
pub struct NoDrafter;

impl Drafter for NoDrafter {
    fn block(&self) -> usize {
        1
    }

    fn taps(&self) -> &[usize] {
        &[]
    }

    fn propose(&mut self, _: &[DraftRow<'_>], _: &mut [Draft]) {}

    fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
}
