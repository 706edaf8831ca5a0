//! Pairs on CUDA cards. The engine stays on the host's lanes: its forward lane is a thread that drives
//! the card, so the host that plans waits for neither. Target and drafter are two faces of one
//! [`CardPair`], whose features and caches never leave the card.
//!
//! Rows choose on the card: greedily, with the contract's noise, with filters, and with what their shapes say.
//! Shapes of very many additions are the host's, which reads the logits back and chooses by the CPU's own code.
//! Which of these ways a row takes follows from its request and its position alone, so drafting does not change
//! it.

mod drafter;

use self::drafter::CardDrafter;
use crate::draft::{Drafter, Features, NoDrafter};
use crate::memory::Geometry;
use crate::pair::{Faces, Models, Pair, PairOptions, TargetFiles};
use crate::target::{Choosing, Leaves, Left, Target};
use crate::{EngineOptions, LogProbs};
use device::Cpu;
use kernels::accept::cuda::MOST_ROWS as MOST_ACCEPTED;
use kernels::choose::{Draw, Shape, choose, confidences, log_probs};
use model::LoadError;
use model::checkpoint::{Checkpoint, read_config};
use model::config::ModelConfig;
use model::cuda::{
    Capacity, CardModels, CardPair, Found, Ids, MOST_ADDITIONS, MOST_LEFT, Origin, SLAB, TOGETHER,
    Taps,
};
use model::dflash_config::DflashConfig;
use model::pass::Pass;
use model::proposals::PROPOSED;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use model::cuda::{Card, CudaError, JobTiming};

/// Bytes of the card that are left to the driver and to others.
const RESERVE: usize = 256 << 20;

/// A pair's models on a card.
pub(crate) struct OnCard {
    models: CardModels,
    /// For what the host does.
    cpu: Cpu,
    path: std::path::PathBuf,
}

impl Pair {
    /// As [`Pair::load`], on `card`, whatever the files' formats as `bf16`: `options` says nothing but
    /// the draft width.
    ///
    /// # Errors
    /// As [`Pair::load`]; a size that no kernel takes, a card that is too small or that failed.
    pub fn load_on(
        card: Card,
        cpu: &Cpu,
        target: &Path,
        draft: Option<&Path>,
        options: &PairOptions,
    ) -> Result<Pair, LoadError> {
        let TargetFiles { files, tokenizer, template } = TargetFiles::open(target)?;
        let drafter = draft.map(Checkpoint::open_drafter).transpose()?;
        let read =
            |files_of: &Checkpoint| DflashConfig::read(files_of, files.config(), options.block);
        let configs = (files.config().clone(), drafter.as_ref().map(read).transpose()?);
        let paths = [target, draft.unwrap_or(target)];
        let origin = Origin::Files(&files, drafter.as_ref());
        let models = CardModels::load(cpu, card, configs, paths, &origin)?;
        let mut unused = files.unused();
        unused.extend(drafter.iter().flat_map(Checkpoint::unused));
        let models = OnCard { models, cpu: cpu.clone(), path: target.into() };
        Ok(Pair { tokenizer, template, models: Models::Card(Box::new(models)), unused })
    }
}

/// Layers of the drafters that random pairs get: what published ones have.
const RANDOM_LAYERS: usize = 5;

impl Pair {
    /// A pair of random weights on `card`, of the shape that the `config.json` at `config` describes,
    /// with a drafter of as many layers as published ones have, for `blocks` of so many positions, which ascend;
    /// `tokenizer` is the model whose tokenizer and template serve
    /// it. Its text means nothing: it is for measuring what models take that are not at hand.
    ///
    /// # Errors
    /// As [`Pair::load_on`]; a vocabulary with fewer ids than the tokenizer.
    ///
    /// # Panics
    /// When there is no block, or one of fewer than 2 positions.
    pub fn random_on(
        card: Card,
        cpu: &Cpu,
        (config, blocks): (&Path, &[usize]),
        tokenizer: &Path,
    ) -> Result<Pair, LoadError> {
        let TargetFiles { tokenizer, template, .. } = TargetFiles::open(tokenizer)?;
        let path = config;
        let config = read_config(path)?;
        if tokenizer.len() > config.vocab {
            let (has, rows) = (tokenizer.len(), config.vocab);
            let problem = format!("is {rows}, and the tokenizer of --model has {has} tokens");
            return Err(LoadError::new(path, "vocab_size", problem));
        }
        let drafter = DflashConfig::like(&config, RANDOM_LAYERS, blocks);
        let configs = (config, Some(drafter));
        let models = CardModels::load(cpu, card, configs, [path, path], &Origin::Random(1))?;
        let models = OnCard { models, cpu: cpu.clone(), path: path.into() };
        let models = Models::Card(Box::new(models));
        Ok(Pair { tokenizer, template, models, unused: Vec::new() })
    }
}

impl OnCard {
    pub(crate) fn config(&self) -> &ModelConfig {
        self.models.config()
    }

    pub(crate) fn drafter(&self) -> Option<&DflashConfig> {
        self.models.drafter()
    }

    pub(crate) fn kv_token_bytes(&self) -> usize {
        self.models.kv_token_bytes()
    }

    /// Reads how long jobs have taken on the card so far, where it times them.
    pub(crate) fn meter(&self) -> Option<impl Fn() -> Duration + Send + use<>> {
        self.models.card().meter()
    }

    /// Bytes of the card that nobody has.
    pub(crate) fn free(&self) -> usize {
        // A card that does not say has failed, which the first pass will tell.
        self.models.card().free().unwrap_or(0).saturating_sub(RESERVE)
    }

    fn capacity(&self, geometry: &Geometry, options: &EngineOptions, allowed: usize) -> Capacity {
        let &Geometry { pages, page_size, context } = geometry;
        let block = self.drafter().map_or(1, |drafter| drafter.block);
        // A step's own rows, or a block of every request that drafts.
        let requests = options.max_running.max(1);
        let rows = options.chunk.max(2).max(requests * block);
        Capacity {
            pages,
            page_size,
            rows,
            requests,
            context,
            block,
            allowed,
            proposed: allowed.div_ceil(PROPOSED),
        }
    }

    /// Whether the card has room for what `geometry` asks.
    ///
    /// # Errors
    /// It has not: how much is asked for, and which option to change.
    pub(crate) fn fits(
        &self,
        geometry: &Geometry,
        options: &EngineOptions,
        allowed: usize,
    ) -> Result<(), LoadError> {
        let (kv, scratch) = self.models.bytes(&self.capacity(geometry, options, allowed));
        let (free, mib) = (self.free(), |bytes: usize| bytes.div_ceil(1 << 20));
        if kv + scratch <= free {
            return Ok(());
        }
        Err(LoadError::new(
            &self.path,
            "device",
            format!(
                "{} MiB of KV memory for {} tokens and {} MiB of working memory are asked of the GPU \
                 {}, which has {} MiB free beside the weights; ask for fewer tokens (--kv-tokens) or \
                 fewer requests at once (--max-running)",
                mib(kv),
                geometry.pages * geometry.page_size,
                mib(scratch),
                self.models.card().name(),
                mib(free)
            ),
        ))
    }

    /// Target and drafter with memory; ids below `allowed` may be chosen.
    pub(crate) fn with_memory(
        self,
        geometry: &Geometry,
        options: &EngineOptions,
        allowed: usize,
    ) -> Faces {
        let capacity = self.capacity(geometry, options, allowed);
        let OnCard { models, cpu, .. } = self;
        let (vocab, drafter) = (models.config().vocab, models.drafter().cloned());
        let card = Shared(Arc::new(Mutex::new(models.with_memory(&capacity))));
        let drafter: Box<dyn Drafter> = match drafter {
            Some(config) => Box::new(CardDrafter {
                card: card.clone(),
                cpu: cpu.clone(),
                config,
                proposed: capacity.proposed,
                pass: Pass::default(),
                started: None,
            }),
            None => Box::new(NoDrafter),
        };
        let target = CardTarget {
            card,
            cpu,
            vocab,
            allowed,
            left: 0..0,
            asked: Vec::new(),
            slab: Mutex::default(),
        };
        (Box::new(target), drafter)
    }
}

/// The card, which target and drafter take turns with, on one lane.
#[derive(Clone)]
struct Shared(Arc<Mutex<CardPair>>);

impl Shared {
    fn get(&self) -> MutexGuard<'_, CardPair> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who chooses for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The card, with the others.
    Card,
    /// The card, with filters.
    Filters,
    /// The card, with a shape and filters.
    Shape,
    /// The host.
    Host,
}

impl By {
    fn of(draw: &Draw, shape: &Shape<'_>) -> By {
        match (shape.is_plain(), draw.filters()) {
            (true, true) => By::Filters,
            (true, false) => By::Card,
            (false, _) if shape.additions.len() > MOST_ADDITIONS => By::Host,
            (false, _) => By::Shape,
        }
    }
}

/// Rows of a pass that choose, each in its own way.
struct Chooser<'c> {
    card: &'c Shared,
    cpu: &'c Cpu,
    ids: Ids,
    /// Logits of a row, and those that may be chosen.
    width: (usize, usize),
}

impl Chooser<'_> {
    /// Chooses for each of `rows`: `on_card` does it without filters and shapes, for all of them.
    fn choose(
        &self,
        rows: &[usize],
        draws: &[Draw],
        shapes: &[Shape<'_>],
        on_card: impl FnOnce() -> Found,
    ) -> Found {
        let plain = Shape::default();
        let shape = |i: usize| shapes.get(i).copied().unwrap_or(plain);
        let by = |way: By| -> Vec<usize> {
            (0..rows.len()).filter(|&i| By::of(&draws[i], &shape(i)) == way).collect()
        };
        let mut found = if by(By::Card).is_empty() { self.nothing(rows.len()) } else { on_card() };
        let filtered = by(By::Filters);
        if !filtered.is_empty() {
            let places: Vec<usize> = filtered.iter().map(|&i| rows[i]).collect();
            let draws: Vec<Draw> = filtered.iter().map(|&i| draws[i]).collect();
            let some = self.card.get().filter(&places, &draws, self.ids);
            put(&mut found, &filtered, &some);
        }
        let shaped = by(By::Shape);
        if !shaped.is_empty() {
            let places: Vec<usize> = shaped.iter().map(|&i| rows[i]).collect();
            let draws: Vec<Draw> = shaped.iter().map(|&i| draws[i]).collect();
            let shapes: Vec<Shape<'_>> = shaped.iter().map(|&i| shape(i)).collect();
            let some = self.card.get().shape(&places, &draws, &shapes, self.ids);
            put(&mut found, &shaped, &some);
        }
        for some in by(By::Host).chunks(SLAB) {
            let places: Vec<usize> = some.iter().map(|&i| rows[i]).collect();
            let logits = self.card.get().logits(&places, self.ids);
            let draws: Vec<Draw> = some.iter().map(|&i| draws[i]).collect();
            let shapes: Vec<Shape<'_>> = some.iter().map(|&i| shape(i)).collect();
            let mut chosen = self.nothing(some.len());
            let (vocab, allowed) = self.width;
            choose(self.cpu, &logits, vocab, allowed, &draws, &shapes, &mut chosen.tokens);
            let Found { tokens, confidences: sure } = &mut chosen;
            match self.ids {
                Ids::All => {}
                Ids::Proposed => confidences(self.cpu, &logits, vocab, tokens, sure),
            }
            put(&mut found, some, &chosen);
        }
        found
    }

    /// Room for the choices of so many rows.
    fn nothing(&self, rows: usize) -> Found {
        let confidences = match self.ids {
            Ids::All => Vec::new(),
            Ids::Proposed => vec![0.0; rows],
        };
        Found { tokens: vec![0; rows], confidences }
    }
}

/// Puts what was found for some rows in their places.
fn put(all: &mut Found, places: &[usize], some: &Found) {
    places.iter().zip(&some.tokens).for_each(|(&i, &token)| all.tokens[i] = token);
    let confidences = places.iter().zip(&some.confidences);
    confidences.for_each(|(&i, &confidence)| all.confidences[i] = confidence);
}

/// The target of a pair on a card.
struct CardTarget {
    card: Shared,
    cpu: Cpu,
    vocab: usize,
    allowed: usize,
    /// Rows of the last pass whose features are on the card.
    left: Range<usize>,
    /// The rows that were asked about last.
    asked: Vec<usize>,
    slab: Mutex<Slab>,
}

/// Logits of some of the rows that were asked about, for log-probabilities.
#[derive(Default)]
struct Slab {
    which: Range<usize>,
    logits: Vec<f32>,
}

/// Choices on their way from the card.
struct OnItsWay(model::cuda::Left);

impl Left for OnItsWay {
    fn read(self: Box<Self>) -> Vec<u32> {
        self.0.read()
    }
}

impl CardTarget {
    /// Notes what `pass` will leave for the drafter, which wants the outputs of these layers.
    fn taps(&mut self, pass: &Pass, layers: &[usize]) -> Taps {
        let taps = if layers.is_empty() { Taps::Drop } else { Taps::Keep };
        self.left = match taps {
            Taps::Drop => 0..0,
            Taps::Keep => 0..pass.rows(),
        };
        taps
    }
}

impl Target for CardTarget {
    fn forward(&mut self, pass: &Pass, taps: &[usize]) {
        let taps = self.taps(pass, taps);
        self.card.get().forward(pass, taps);
    }

    fn stairs(&self) -> Vec<usize> {
        self.card.get().stairs()
    }

    fn ahead(&self) -> usize {
        TOGETHER
    }

    fn leaves(&self) -> Leaves {
        Leaves { blocks: MOST_LEFT, rows: MOST_ACCEPTED }
    }

    fn leave(&mut self, pass: &Pass, taps: &[usize], draws: &[Draw]) -> Box<dyn Left> {
        let taps = self.taps(pass, taps);
        Box::new(OnItsWay(self.card.get().leave(pass, taps, draws)))
    }

    fn finish(&mut self) {
        self.card.get().finish();
    }

    fn features(&self) -> Features<'_> {
        Features::Left(self.left.clone())
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        let Choosing { rows, draws, shapes, .. } = *rows;
        self.asked = rows.to_vec();
        self.slab = Mutex::default();
        let (card, cpu, width) = (&self.card, &self.cpu, (self.vocab, self.allowed));
        let chooser = Chooser { card, cpu, ids: Ids::All, width };
        let found = chooser.choose(rows, draws, shapes, || card.get().choose(rows, draws));
        out.copy_from_slice(&found.tokens);
    }

    fn log_probs(&self, index: usize, token: u32, top: usize) -> LogProbs {
        let mut slab = self.slab.lock().unwrap_or_else(PoisonError::into_inner);
        if !slab.which.contains(&index) {
            // A block's rows are asked about one after the other.
            let which = index..(index + SLAB).min(self.asked.len());
            let logits = self.card.get().logits(&self.asked[which.clone()], Ids::All);
            *slab = Slab { which, logits };
        }
        let at = (index - slab.which.start) * self.vocab;
        log_probs(&slab.logits[at..at + self.vocab], self.allowed, token, top)
    }

    fn score(&mut self, rows: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        let mut found = Vec::with_capacity(rows.len());
        for (rows, tokens) in rows.chunks(SLAB).zip(tokens.chunks(SLAB)) {
            let logits = self.card.get().logits(rows, Ids::All);
            let rows = logits.chunks_exact(self.vocab).zip(tokens);
            found.extend(rows.map(|(row, &token)| log_probs(row, self.allowed, token, top)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::choose::{Counts, Penalties};

    /// Greedy choices, noise, filters and shapes are the card's; very many additions are the host's.
    #[test]
    fn what_a_card_does_not_do_is_the_hosts() {
        let plain =
            Draw { temperature: 0.7, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1, position: 2 };
        let nothing = Shape::default();
        assert_eq!(By::of(&plain, &nothing), By::Card);
        assert_eq!(By::of(&Draw { temperature: 0.0, ..plain }, &nothing), By::Card);
        for filtered in
            [Draw { top_k: 1, ..plain }, Draw { top_p: 0.9, ..plain }, Draw { min_p: 0.1, ..plain }]
        {
            assert_eq!(By::of(&filtered, &nothing), By::Filters);
        }
        let counts = Counts::default();
        let penalties = Some(Penalties {
            repetition: 1.0,
            frequency: 0.0,
            presence: 0.0,
            counts: &counts,
            after: &[],
        });
        for shape in [
            Shape { penalties, ..nothing },
            Shape { additions: &[(3, 1.0)], ..nothing },
            Shape { allowed: Some(&[1]), ..nothing },
        ] {
            assert_eq!(By::of(&plain, &shape), By::Shape);
            assert_eq!(By::of(&Draw { top_k: 1, ..plain }, &shape), By::Shape);
        }
        let many = vec![(3, 1.0); MOST_ADDITIONS + 1];
        assert_eq!(By::of(&plain, &Shape { additions: &many[1..], ..nothing }), By::Shape);
        assert_eq!(By::of(&plain, &Shape { additions: &many, ..nothing }), By::Host);
    }
}
