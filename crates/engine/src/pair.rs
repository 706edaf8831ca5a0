//! A target, its tokenizer and template, and perhaps a drafter: everything an engine serves.

use crate::EngineOptions;
#[cfg(feature = "cuda")]
use crate::cuda::OnCard;
use crate::draft::{DflashDrafter, Drafter, NoDrafter};
use crate::memory::Geometry;
use crate::target::{LanguageModel, Target};
use device::Cpu;
use kernels::kv_store::KvFormat;
use model::chat::ChatTemplate;
use model::checkpoint::Checkpoint;
use model::config::ModelConfig;
use model::decoder::Decoder;
use model::dflash::Dflash;
use model::dflash_config::DflashConfig;
use model::tokenizer::Tokenizer;
use model::{LoadError, Precision};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How to load a pair.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// How the target's weights are held.
    pub precision: Precision,
    /// Draft width instead of the drafter's own `block_size`; not above it.
    pub block: Option<usize>,
    /// How the drafter's weights are held.
    pub draft_precision: Precision,
    /// How keys and values are stored on the CPU; cards store them as bf16.
    pub kv: KvFormat,
}

impl Default for PairOptions {
    fn default() -> PairOptions {
        PairOptions {
            precision: Precision::AsStored,
            block: None,
            draft_precision: Precision::Int8,
            kv: KvFormat::default(),
        }
    }
}

/// A loaded target and drafter.
pub struct Pair {
    /// The target's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The target's chat template, if its files have one.
    pub template: Option<Arc<ChatTemplate>>,
    pub(crate) models: Models,
    pub(crate) unused: Vec<String>,
}

/// Reads how long a card has worked so far.
pub type Meter = Box<dyn Fn() -> Duration + Send>;

/// Models where they run.
pub(crate) enum Models {
    Host(Box<OnHost>),
    #[cfg(feature = "cuda")]
    Card(Box<OnCard>),
}

/// A target and drafter that run on the CPU.
pub struct OnHost {
    pub(crate) cpu: Cpu,
    /// The target.
    pub target: Decoder,
    /// The drafter, if there is one.
    pub draft: Option<Dflash>,
    /// How the keys and values of both are stored.
    pub kv: KvFormat,
}

/// What a pair's models become once they have memory.
pub(crate) type Faces = (Box<dyn Target>, Box<dyn Drafter>);

/// A target's files, and what is read of them whatever runs it.
pub(crate) struct TargetFiles {
    pub(crate) files: Checkpoint,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<Arc<ChatTemplate>>,
}

impl TargetFiles {
    /// Opens a GGUF file or folder.
    ///
    /// # Errors
    /// Anything wrong with it, naming the file, the field and the remedy.
    pub(crate) fn open(target: &Path) -> Result<TargetFiles, LoadError> {
        let files = Checkpoint::open(target)?;
        let tokenizer = Tokenizer::load(&files)?;
        let vocab = files.config().vocab;
        if tokenizer.len() > vocab {
            return Err(LoadError::new(
                target,
                "tokenizer",
                format!(
                    "has {} tokens, the embedding only {vocab} rows; use the tokenizer that \
                     belongs to these weights",
                    tokenizer.len()
                ),
            ));
        }
        let template = ChatTemplate::load(&files, &tokenizer)?.map(Arc::new);
        Ok(TargetFiles { files, tokenizer: Arc::new(tokenizer), template })
    }
}

impl Pair {
    /// Loads `target` (GGUF file or folder) and, if given, the drafter folder `draft`, checking
    /// that they belong together.
    ///
    /// # Errors
    /// Anything wrong with either, naming the file, the field and the remedy.
    pub fn load(
        cpu: &Cpu,
        target: &Path,
        draft: Option<&Path>,
        options: &PairOptions,
    ) -> Result<Pair, LoadError> {
        let TargetFiles { files, tokenizer, template } = TargetFiles::open(target)?;
        let draft = draft
            .map(|path| {
                Dflash::load(cpu, path, files.config(), options.block, options.draft_precision)
            })
            .transpose()?;
        let target = Decoder::load(cpu, &files, options.precision)?;
        let mut unused = files.unused();
        unused.extend(draft.iter().flat_map(|d| d.unused().iter().cloned()));
        let kv = options.kv;
        let models = Models::Host(Box::new(OnHost { cpu: cpu.clone(), target, draft, kv }));
        Ok(Pair { tokenizer, template, models, unused })
    }

    /// The tensors of the checkpoints that nothing used, for a warning.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// The target's configuration.
    pub fn config(&self) -> &ModelConfig {
        match &self.models {
            Models::Host(models) => models.target.config(),
            #[cfg(feature = "cuda")]
            Models::Card(models) => models.config(),
        }
    }

    /// The drafter's configuration; `None` without one.
    pub fn draft_config(&self) -> Option<&DflashConfig> {
        match &self.models {
            Models::Host(models) => models.draft.as_ref().map(Dflash::config),
            #[cfg(feature = "cuda")]
            Models::Card(models) => models.drafter(),
        }
    }

    /// Whether the device on which the pair runs has memory for an engine with `options`. The CPU is
    /// taken at its word.
    ///
    /// # Errors
    /// It has not: how much is asked for, and which option to change.
    pub fn fits(&self, options: &EngineOptions) -> Result<(), LoadError> {
        match (&self.models, Geometry::plan(self, options)) {
            (Models::Host(_), _) => Ok(()),
            #[cfg(feature = "cuda")]
            (Models::Card(models), geometry) => {
                models.fits(&geometry, options, self.tokenizer.len())
            }
        }
    }

    /// Bytes of the card's memory that nobody has, where the pair runs on one.
    pub fn free_on_card(&self) -> Option<usize> {
        match &self.models {
            Models::Host(_) => None,
            #[cfg(feature = "cuda")]
            Models::Card(models) => Some(models.free()),
        }
    }

    /// Reads how long the card has worked so far, where the pair runs on one that times its jobs. What it
    /// works on at the moment is not counted.
    pub fn meter(&self) -> Option<Meter> {
        match &self.models {
            Models::Host(_) => None,
            #[cfg(feature = "cuda")]
            Models::Card(models) => models.meter().map(|meter| Box::new(meter) as Meter),
        }
    }

    /// The models, where they run on the CPU.
    pub fn on_host(&self) -> Option<&OnHost> {
        match &self.models {
            Models::Host(models) => Some(models),
            #[cfg(feature = "cuda")]
            Models::Card(_) => None,
        }
    }
}

impl OnHost {
    pub(crate) fn kv_token_bytes(&self) -> usize {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.kv_token_bytes(self.kv));
        self.target.kv_token_bytes(self.kv) + draft
    }

    /// Target and drafter with memory; ids below `allowed` may be chosen.
    pub(crate) fn with_memory(self, geometry: &Geometry, allowed: usize) -> Faces {
        let OnHost { cpu, target, draft, kv: format } = self;
        let &Geometry { pages, page_size, .. } = geometry;
        let target = Arc::new(target);
        let drafter: Box<dyn Drafter> = match draft {
            Some(model) => {
                let (cpu, target) = (cpu.clone(), target.clone());
                let kv = model.kv_pool(format, pages, page_size);
                Box::new(DflashDrafter::new(cpu, model, target, kv, allowed))
            }
            None => Box::new(NoDrafter),
        };
        let kv = target.kv_pool(format, pages, page_size);
        (Box::new(LanguageModel::new(cpu, target, kv, allowed)), drafter)
    }
}
