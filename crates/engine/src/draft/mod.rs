//! Drafters behind one face. Nothing outside this folder names an algorithm.

mod dflash;
mod judge;
mod none;
mod scripted;
mod simulated;
mod spread;
mod units;

pub use crate::shaper::Shaper;
pub use crate::target::Features;
pub use dflash::DflashDrafter;
#[cfg(feature = "cuda")]
pub(crate) use dflash::{in_reach, shape};
pub(crate) use judge::Calibration;
pub use judge::Judge;
pub use none::NoDrafter;
pub use scripted::Scripted;
pub use simulated::{Chances, Fate, Simulated};
pub use spread::Spread;

use kernels::choose::Draw;
use model::pass::Start;

/// Proposes tokens for verify blocks. Owned by the forward lane.
pub trait Drafter: Send {
    /// Positions drafted in one pass at most, the anchor included: the widest verify block.
    fn block(&self) -> usize;

    /// All numbers of positions that may be drafted in one pass, ascending, up to [`Drafter::block`]: the least of
    /// them is drafted that has room for [`DraftRow::likely`] drafts.
    fn blocks(&self) -> Vec<usize> {
        vec![self.block()]
    }

    /// Positions that are drafted where there is to be room for `likely` drafts.
    fn positions(&self, likely: usize) -> usize {
        self.blocks().into_iter().find(|&block| block > likely).unwrap_or(self.block())
    }

    /// Target layers whose outputs [`Drafter::absorb`] wants, ascending.
    fn taps(&self) -> &[usize];

    /// What it has to know of where a row begins to promise something.
    fn follows(&self) -> Follows {
        Follows::Tokens
    }

    /// Appends at most `row.width - 1` proposals for each row to `out`, row by row. Fewer are
    /// fine: the row then verifies a narrower block, as it does where `row.judge` finds that not all
    /// are worth it.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]);

    /// Starts what [`Drafter::propose`] is asked for next, of the same rows, which may begin here behind a block of
    /// which nobody knows yet how much is kept. They draw by temperature alone, without filters and shapes.
    fn start(&mut self, _rows: &[DraftRow<'_>]) {}

    /// Promises proposals for each row instead of making them, where the target of the same place takes them as they
    /// come and nobody has to wait for them in between: its next pass has what stands for them. Every proposal is
    /// verified then. None where that is not so: they are to be proposed. Rows may begin behind a block of which nobody
    /// knows yet how much is kept where [`Drafter::follows`] says so.
    fn promise(&mut self, _rows: &[DraftRow<'_>]) -> Option<Promise> {
        None
    }

    /// Takes in tokens: the `features` of rows of the last pass, which stand at `positions` and whose KV slots are
    /// `slots`. They are committed, or of a step that was left: then some may turn out to be refused, and their slots
    /// come again with others before they are read. May leave the work to [`Drafter::settle`]; a slot that comes twice ends
    /// up with what came last.
    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]);

    /// Does what [`Drafter::absorb`] left. [`Drafter::propose`] sees all that was absorbed in any
    /// case; the engine calls this before it, so that the time of the two is told apart.
    fn settle(&mut self) {}
}

/// What a drafter has to know of where a row begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The tokens before it.
    Tokens,
    /// The block of the target's last pass before it, however much of that is kept.
    Blocks,
}

/// Proposals that are to be made before the target comes to them.
#[must_use = "what was promised is to be kept, or the next promise is refused"]
pub struct Promise {
    /// What stands for those of each row among the tokens of the target's next pass.
    pub stand_ins: Vec<Vec<u32>>,
    drafts: Box<dyn FnOnce() -> Vec<Draft> + Send>,
}

impl Promise {
    /// `drafts` says what the stand-ins stood for, row by row, when the target has chosen: on any lane.
    pub fn new(
        stand_ins: Vec<Vec<u32>>,
        drafts: impl FnOnce() -> Vec<Draft> + Send + 'static,
    ) -> Promise {
        Promise { stand_ins, drafts: Box::new(drafts) }
    }

    /// What was promised, row by row: as many proposals as something stood for. The target has chosen meanwhile.
    ///
    /// # Panics
    /// When it has not.
    pub fn redeem(self) -> Vec<Draft> {
        let Promise { stand_ins, drafts } = self;
        let drafts = drafts();
        let counts = |draft: &Draft| draft.tokens.len();
        let promised = stand_ins.iter().map(Vec::len);
        assert!(drafts.iter().map(counts).eq(promised), "as many drafts as were promised");
        drafts
    }
}

/// What is proposed for a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The tokens behind the anchor.
    pub tokens: Vec<u32>,
    /// For each, how likely the drafter thinks that the target chooses it when it chose those before:
    /// from 0 to 1.
    pub confidences: Vec<f32>,
}

impl Draft {
    /// Appends a proposal.
    pub fn push(&mut self, token: u32, confidence: f32) {
        self.tokens.push(token);
        self.confidences.push(confidence);
    }
}

impl Extend<u32> for Draft {
    /// Appends tokens that the drafter is sure of.
    fn extend<T: IntoIterator<Item = u32>>(&mut self, tokens: T) {
        tokens.into_iter().for_each(|token| self.push(token, 1.0));
    }
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
    /// The block of the target's last pass that it begins behind, where nobody knows yet how much is kept of that:
    /// `anchor` says nothing then, and `len` and `draw` are what they are when all of it is, as
    /// [`model::pass::Start::Behind`] says.
    pub behind: Option<usize>,
    /// Verify width, the anchor included; at least 2.
    pub width: usize,
    /// What drafts have to promise to be verified.
    pub judge: Judge<'a>,
    /// How many drafts there should be room for.
    pub likely: usize,
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

impl DraftRow<'_> {
    /// Where its block begins.
    pub fn start(&self) -> Start {
        match self.behind {
            None => Start::At(self.len),
            Some(block) => Start::Behind { block, most: self.len },
        }
    }
}
