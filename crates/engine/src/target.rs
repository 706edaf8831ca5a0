//! The model whose text comes out, as a step sees it.

use device::Cpu;
use kernels::choose::{Asked, Choices, Confidence, Draw, Kept, LogProbs, Shape, log_probs};
use kernels::kv_store::KvPool;
use model::decoder::{Decoder, Workspace};
use model::pass::Pass;
use std::ops::Range;
use std::sync::Arc;

/// Verifies blocks. Owned by the forward lane, with its KV memory.
pub trait Target: Send {
    /// Runs the model over `pass`, storing the keys and values of its rows at their slots, and
    /// keeps the outputs of the layers in `taps` for [`Target::features`]. May return while the work
    /// goes on: whoever asks for its results waits for them.
    fn forward(&mut self, pass: &Pass, taps: &[usize]);

    /// Numbers of rows, ascending: a pass costs what one with the next of them does. None where each row costs
    /// something, and beyond the last.
    fn stairs(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Most rows of a pass with drafts that nobody waited for: what verifying so many costs beyond verifying few is less
    /// than the wait to see which are worth it. None where tokens have to be told.
    fn ahead(&self) -> usize {
        0
    }

    /// What a step may have at most that is left, with [`Target::leave`]. Nothing where somebody has to wait for every
    /// step.
    fn leaves(&self) -> Leaves {
        Leaves::default()
    }

    /// Runs the model over `pass` as [`Target::forward`] does, chooses behind each of its rows as `draws` say, which
    /// have no filters, and accepts what was chosen of its blocks, while nobody waits: the next pass of this target
    /// and of its drafter may begin behind those, as [`model::pass::Start::Behind`] says.
    ///
    /// # Panics
    /// With more than [`Target::leaves`] says.
    fn leave(&mut self, pass: &Pass, _taps: &[usize], _draws: &[Draw]) -> Box<dyn Left> {
        panic!("this target leaves no step, of {} blocks neither", pass.spans.len())
    }

    /// Waits for what [`Target::forward`] left running. The engine calls this where nothing is chosen,
    /// so that a step has ended when it says so.
    fn finish(&mut self) {}

    /// The tapped outputs of all rows of the last pass.
    fn features(&self) -> Features<'_>;

    /// Chooses the next token after each of the given rows of the last pass.
    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]);

    /// Log-probabilities of `token` and of the `top` most likely ones at the `index`-th row that
    /// [`Target::choose`] was last asked about, which keeps its logits: as the model has them, unshaped.
    fn log_probs(&self, index: usize, token: u32, top: usize) -> LogProbs;

    /// Log-probabilities of `tokens`, each as the one after its row of the last pass, and of the `top`
    /// most likely ones there, as the model has them; `rows.len()` in all. What [`Target::choose`] was
    /// last asked about stays that.
    fn score(&mut self, rows: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs>;
}

/// What a step may have at most that is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaves {
    /// Blocks.
    pub blocks: usize,
    /// Rows of all blocks.
    pub rows: usize,
}

/// What a step that was left will have chosen.
pub trait Left: Send {
    /// Waits for it, on any lane: a token for each row of its pass. What a drafter had promised to it is known from
    /// then on, too.
    fn read(self: Box<Self>) -> Vec<u32>;
}

/// Rows of a pass that choose.
pub struct Choosing<'a> {
    /// Which.
    pub rows: &'a [usize],
    /// How each is drawn.
    pub draws: &'a [Draw],
    /// One for each row, or none at all; a row's own changes its logits first.
    pub shapes: &'a [Shape<'a>],
    /// One for each row, or none at all: choices are kept, then.
    pub kept: &'a [Kept],
}

/// The tapped outputs of rows of a target's last pass, wherever they lie: a target and its drafter share
/// a place, and need not bring them to the host.
#[derive(Clone, Debug)]
pub enum Features<'p> {
    /// On the host, `[rows, taps · hidden]`.
    Host(&'p [f32]),
    /// Where the target left them: these rows of the pass. Only a drafter that was made with the target
    /// finds them there.
    Left(Range<usize>),
}

impl<'p> Features<'p> {
    /// Of a pass that kept none.
    pub fn none() -> Features<'p> {
        Features::Host(&[])
    }

    /// Whether none were kept.
    pub fn is_empty(&self) -> bool {
        match self {
            Features::Host(features) => features.is_empty(),
            Features::Left(rows) => rows.is_empty(),
        }
    }

    /// Those of some rows, of features of `all` rows.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn rows(&self, rows: Range<usize>, all: usize) -> Features<'p> {
        match self {
            Features::Host(features) => {
                let width = features.len() / all;
                Features::Host(&features[rows.start * width..rows.end * width])
            }
            Features::Left(left) => {
                assert!(rows.end <= left.len(), "{rows:?} of {} rows", left.len());
                Features::Left(left.start + rows.start..left.start + rows.end)
            }
        }
    }

    /// Features on the host.
    ///
    /// # Panics
    /// When they lie elsewhere: the drafter was made for another target.
    pub fn host(&self) -> &'p [f32] {
        match self {
            Features::Host(features) => features,
            Features::Left(rows) => panic!("the features of rows {rows:?} are not on the host"),
        }
    }
}

/// Rows that are scored at once: a prompt's chunk may have many, and the logits of each take a
/// vocabulary's room.
const SLAB: usize = 32;

/// Text of tokens, as far as the engine cares.
pub trait Vocabulary: Send + Sync {
    /// Ids below this exist.
    fn size(&self) -> usize;

    /// The bytes that a token adds to a text.
    fn piece(&self, id: u32) -> &[u8];
}

impl Vocabulary for model::tokenizer::Tokenizer {
    fn size(&self) -> usize {
        self.len()
    }

    fn piece(&self, id: u32) -> &[u8] {
        model::tokenizer::Tokenizer::piece(self, id)
    }
}

/// A loaded decoder and its KV memory.
pub(crate) struct LanguageModel {
    cpu: Cpu,
    decoder: Arc<Decoder>,
    kv: KvPool,
    workspace: Workspace,
    /// Of the rows asked about.
    choices: Choices,
    /// `[up to SLAB, vocab]`: the logits of rows that are scored.
    scored: Vec<f32>,
    /// Ids below this may be chosen.
    allowed: usize,
}

impl LanguageModel {
    pub(crate) fn new(
        cpu: Cpu,
        decoder: Arc<Decoder>,
        kv: KvPool,
        allowed: usize,
    ) -> LanguageModel {
        let (workspace, choices, scored) = (Workspace::default(), Choices::default(), Vec::new());
        LanguageModel { cpu, decoder, kv, workspace, choices, scored, allowed }
    }
}

impl Target for LanguageModel {
    fn forward(&mut self, pass: &Pass, taps: &[usize]) {
        self.decoder.forward(&self.cpu, &mut self.workspace, &mut self.kv, pass, taps);
    }

    fn features(&self) -> Features<'_> {
        Features::Host(self.workspace.features())
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        let Choosing { rows, draws, shapes, kept } = *rows;
        let asked = Asked { draws, shapes, kept, confidence: Confidence::Untold };
        let (cpu, w, choices) = (&self.cpu, &mut self.workspace, &mut self.choices);
        self.decoder.choose(cpu, w, (rows, &asked), self.allowed, choices);
        out.copy_from_slice(choices.ids());
    }

    fn log_probs(&self, index: usize, token: u32, top: usize) -> LogProbs {
        log_probs(self.choices.logits(index), self.allowed, token, top)
    }

    fn score(&mut self, rows: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        let vocab = self.decoder.config().vocab;
        let mut found = Vec::with_capacity(rows.len());
        for (rows, tokens) in rows.chunks(SLAB).zip(tokens.chunks(SLAB)) {
            self.decoder.logits(&self.cpu, &mut self.workspace, rows, &mut self.scored);
            let logits = self.scored.chunks_exact(vocab).zip(tokens);
            found.extend(logits.map(|(row, &token)| log_probs(row, self.allowed, token, top)));
        }
        found
    }
}
