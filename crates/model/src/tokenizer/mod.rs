//! Text to token ids and back.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;

/// A tokenizer with its special tokens and end rules.
pub struct Tokenizer {}

/// What text that looks like a control token becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The control token (rendered templates, raw prompts).
    Parse,
    /// Plain text (what a user wrote).
    AsText,
}

impl Tokenizer {
    /// From `tokenizer.json` beside the weights, or from GGUF metadata.
    ///
    /// # Errors
    /// A tokenizer that is missing, damaged, or of an unknown kind.
    pub fn load(checkpoint: &Checkpoint) -> Result<Tokenizer, LoadError> {
        let _ = checkpoint;
        unimplemented!()
    }

    /// Ids below this exist.
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether there are no tokens (never, once loaded).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes, without adding BOS or EOS.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        let _ = (text, specials);
        unimplemented!()
    }

    /// Encodes a raw prompt: as [`Tokenizer::encode`] with [`Specials::Parse`], with BOS in front
    /// when the files ask for it and the text does not begin with it already.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let _ = text;
        unimplemented!()
    }

    /// The bytes that token `id` adds to a text (empty for control tokens and unknown ids). The
    /// text of a sequence is the concatenation, read as UTF-8.
    pub fn piece(&self, id: u32) -> &[u8] {
        let _ = id;
        unimplemented!()
    }

    /// The token as people write it (`<|im_end|>`), control tokens too.
    pub fn name(&self, id: u32) -> String {
        let _ = id;
        unimplemented!()
    }

    /// Decodes; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let _ = ids;
        unimplemented!()
    }

    /// Every id that ends a generation: the union of what the configuration, the generation
    /// configuration, the tokenizer's files, and the chat format say.
    pub fn end_ids(&self) -> &[u32] {
        unimplemented!()
    }

    /// BOS, if the files name one.
    pub fn bos(&self) -> Option<u32> {
        unimplemented!()
    }
}
