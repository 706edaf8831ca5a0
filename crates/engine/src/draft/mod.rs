//! Drafters behind one face. Nothing outside this folder names an algorithm.

mod dflash;
mod none;
mod scripted;
mod simulated;

pub use crate::shaper::Shaper;
pub use crate::target::Features;
pub use dflash::DflashDrafter;
#[cfg(feature = "cuda")]
pub(crate) use dflash::{PROPOSED, in_reach, shape};
pub use none::NoDrafter;
pub use scripted::Scripted;
pub use simulated::{Chances, Simulated};

use kernels::choose::Draw;

/// Proposes tokens for verify blocks. Owned by the forward lane.
pub trait Drafter: Send {
    /// Positions drafted in one pass, the anchor included: the widest verify block.
    fn block(&self) -> usize;

    /// Target layers whose outputs [`Drafter::absorb`] wants, ascending.
    fn taps(&self) -> &[usize];

    /// Appends at most `row.width - 1` proposals for each row to `out`, row by row. Fewer are
    /// fine: the row then verifies a narrower block.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Vec<u32>]);

    /// Takes in committed tokens: the `features` of rows of the last pass, which stand at `positions`
    /// and whose KV slots are `slots`. May leave the work to [`Drafter::settle`]; a slot that comes twice ends
    /// up with what came last.
    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]);

    /// Does what [`Drafter::absorb`] left. [`Drafter::propose`] sees all that was absorbed in any
    /// case; the engine calls this before it, so that the time of the two is told apart.
    fn settle(&mut self) {}
}

/// A row that wants proposals.
#[derive(Clone, Debug)]
pub struct DraftRow<'a> {
    /// The request.
    pub request: u64,
    /// Its last known token, at position `len`.
    pub anchor: u32,
    /// Committed tokens: positions `0 .. len` have context.
    pub len: usize,
    /// Verify width, the anchor included; at least 2.
    pub width: usize,
    /// The request's pages.
    pub pages: &'a [u32],
    /// How the target will choose the token of position `len + 1`; the same noise serves the
    /// proposals.
    pub draw: Draw,
    /// What is done to the target's logits first, if anything.
    pub shaper: Option<&'a Shaper>,
    /// What may be chosen there, as in [`kernels::choose::Shape::allowed`]; further proposals may be
    /// anything.
    pub allowed: Option<&'a [u32]>,
}
