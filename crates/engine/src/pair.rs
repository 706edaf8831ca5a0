//! A target, its tokenizer and template, and perhaps a drafter: everything an engine serves.

use device::Cpu;
use model::chat::ChatTemplate;
use model::checkpoint::Checkpoint;
use model::decoder::Decoder;
use model::dflash::Dflash;
use model::tokenizer::Tokenizer;
use model::{LoadError, Precision};
use std::path::Path;
use std::sync::Arc;

/// How to load a pair.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// How the target's weights are held.
    pub precision: Precision,
    /// Draft width instead of the drafter's own `block_size`; not above it.
    pub block: Option<usize>,
    /// How the drafter's weights are held.
    pub draft_precision: Precision,
}

impl Default for PairOptions {
    fn default() -> PairOptions {
        PairOptions {
            precision: Precision::AsStored,
            block: None,
            draft_precision: Precision::Int8,
        }
    }
}

/// A loaded target and drafter.
pub struct Pair {
    /// The target's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The target's chat template, if its files have one.
    pub template: Option<Arc<ChatTemplate>>,
    pub(crate) cpu: Cpu,
    /// The target.
    pub target: Decoder,
    /// The drafter, if there is one.
    pub draft: Option<Dflash>,
    unused: Vec<String>,
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
        let draft = draft
            .map(|path| {
                Dflash::load(cpu, path, files.config(), options.block, options.draft_precision)
            })
            .transpose()?;
        let target = Decoder::load(cpu, &files, options.precision)?;
        let mut unused = files.unused();
        unused.extend(draft.iter().flat_map(|d| d.unused().iter().cloned()));
        let tokenizer = Arc::new(tokenizer);
        Ok(Pair { tokenizer, template, cpu: cpu.clone(), target, draft, unused })
    }

    /// The tensors of the checkpoints that nothing used, for a warning.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }
}
