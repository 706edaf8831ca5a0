//! A target, its tokenizer and template, and perhaps a drafter: everything an engine serves.

use device::Cpu;
use model::LoadError;
use model::chat::ChatTemplate;
use model::tokenizer::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// How to load a pair.
#[derive(Clone, Debug, Default)]
pub struct PairOptions {
    /// Draft width instead of the drafter's own `block_size`; not above it.
    pub block: Option<usize>,
}

/// A loaded target and drafter.
pub struct Pair {
    /// The target's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The target's chat template, if its files have one.
    pub template: Option<Arc<ChatTemplate>>,
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
        let _ = (cpu, target, draft, options);
        unimplemented!()
    }

    /// The tensors of the checkpoints that nothing used, for a warning.
    pub fn unused(&self) -> &[String] {
        unimplemented!()
    }
}
