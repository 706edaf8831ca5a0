//! Text to token ids and back.
//!
//! Control tokens are found here, not in the encoder underneath: that way a caller says for each
//! stretch of a text whether `<|im_end|>` in it is the token or eight letters and some signs.

mod added;
mod detokenize;
mod folder;
mod gguf;
mod pieces;
mod pretokenize;
mod scored;

pub use detokenize::Detokenizer;

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use added::{AddedToken, AddedTokens, Kind, Segment};
use pieces::Pieces;
use scored::ScoredBpe;
use std::collections::{BTreeSet, HashMap, HashSet};

/// A tokenizer with its special tokens and end rules.
pub struct Tokenizer {
    encoder: Encoder,
    added: AddedTokens,
    added_ids: HashSet<u32>,
    prefix: Prefix,
    pieces: Pieces,
    /// How control tokens are written; they have no piece, unless they are spoken.
    control: HashMap<u32, String>,
    roles: Roles,
    bos_rule: BosRule,
    end_ids: Vec<u32>,
}

/// What text that looks like a control token becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The control token (rendered templates, raw prompts).
    Parse,
    /// Plain text (what a user wrote).
    AsText,
}

/// What encodes the text between added tokens.
enum Encoder {
    /// The Hugging Face library.
    Library {
        /// For text at the start of a sequence.
        first: Box<tokenizers::Tokenizer>,
        /// For text behind an added token, where that is prepared otherwise (Metaspace with
        /// `prepend_scheme` `first`).
        later: Option<Box<tokenizers::Tokenizer>>,
    },
    /// Pieces with scores.
    Scored(Box<ScoredBpe>),
}

/// The tokens that the files give a role; templates know them by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) pad: Option<u32>,
}

/// Whether a raw prompt begins with BOS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BosRule {
    Add,
    Omit,
}

/// Where a word is encoded as if a space stood before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prefix {
    Never,
    /// At the start of a sequence.
    FirstText,
    /// There, and behind every added token.
    EachText,
}

/// What the two kinds of files are read into.
struct Parts {
    encoder: Encoder,
    /// The tokens to find before the encoder runs.
    added: Vec<AddedToken>,
    /// The tokens that the encoder itself finds as they are written.
    found_by_encoder: Vec<u32>,
    prefix: Prefix,
    pieces: Pieces,
    roles: Roles,
    bos_rule: BosRule,
    /// Ids that the files call ends.
    ends: BTreeSet<u32>,
}

/// Control tokens that end a turn or a document wherever a vocabulary has them; models emit them
/// although many files name only one of theirs as the end.
const TURN_ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_sentence|>",
];

/// Control tokens that are part of what a model says: they open and close tool calls and reasoning,
/// which whoever reads its text must see.
const SPOKEN: [&str; 10] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
];

impl Tokenizer {
    /// From `tokenizer.json` beside the weights, or from GGUF metadata.
    ///
    /// # Errors
    /// A tokenizer that is missing, damaged, or of an unknown kind.
    pub fn load(checkpoint: &Checkpoint) -> Result<Tokenizer, LoadError> {
        match (checkpoint.gguf(), checkpoint.folder()) {
            (Some(metadata), _) => Tokenizer::from_gguf(metadata),
            (None, Some(folder)) => Tokenizer::from_folder(folder),
            (None, None) => panic!("a checkpoint is a GGUF file or a folder"),
        }
    }

    /// From the Hugging Face files in `folder`: `tokenizer.json`, and where they exist
    /// `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json` and
    /// `config.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::load`].
    pub fn from_folder(folder: &std::path::Path) -> Result<Tokenizer, LoadError> {
        folder::read(folder).map(Tokenizer::new)
    }

    /// From the `tokenizer.ggml.*` keys of a GGUF file.
    ///
    /// # Errors
    /// As [`Tokenizer::load`].
    pub fn from_gguf(metadata: &crate::checkpoint::gguf::Metadata) -> Result<Tokenizer, LoadError> {
        gguf::read(metadata).map(Tokenizer::new)
    }

    fn new(parts: Parts) -> Tokenizer {
        let mut ends = parts.ends;
        let (mut control, mut spoken) = (HashMap::new(), HashMap::new());
        for token in parts.added.iter().filter(|token| token.kind == Kind::Control) {
            if TURN_ENDS.contains(&token.text.as_str()) {
                ends.insert(token.id);
            }
            if SPOKEN.contains(&token.text.as_str()) {
                spoken.insert(token.id, token.text.clone());
            }
            control.insert(token.id, token.text.clone());
        }
        Tokenizer {
            encoder: parts.encoder,
            added_ids: parts.added.iter().map(|t| t.id).chain(parts.found_by_encoder).collect(),
            added: AddedTokens::new(parts.added),
            prefix: parts.prefix,
            pieces: parts.pieces.with(&spoken),
            control,
            roles: parts.roles,
            bos_rule: parts.bos_rule,
            end_ids: ends.into_iter().collect(),
        }
    }

    /// Ids below this exist.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there are no tokens (never, once loaded).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Encodes, without adding BOS or EOS.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<u32> {
        self.encode_segments(text, specials, &[])
    }

    /// As [`Tokenizer::encode`] with [`Specials::Parse`], but a control token that covers one of
    /// the `literal` byte offsets (ascending) is plain text. The text is otherwise encoded as a
    /// whole: offsets do not cut words.
    pub(crate) fn encode_with_literals(&self, text: &str, literal: &[usize]) -> Vec<u32> {
        self.encode_segments(text, Specials::Parse, literal)
    }

    /// The byte offsets, ascending, where `text` has the text of a control token.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        self.added.control_starts(text)
    }

    fn encode_segments(&self, text: &str, specials: Specials, literal: &[usize]) -> Vec<u32> {
        let mut ids = Vec::new();
        for (index, segment) in self.added.split(text, specials, literal).into_iter().enumerate() {
            match (segment, &self.encoder) {
                (Segment::Token(id), _) => ids.push(id),
                (Segment::Text(text), Encoder::Scored(bpe)) => bpe.encode(text, &mut ids),
                (Segment::Text(text), Encoder::Library { first, later }) => {
                    let encoder = later.as_ref().filter(|_| index > 0).unwrap_or(first);
                    let encoding = encoder.encode_fast(text, false);
                    let encoding = encoding.expect("characters outside the vocabulary were tried");
                    ids.extend_from_slice(encoding.get_ids());
                }
            }
        }
        ids
    }

    /// Encodes a raw prompt: as [`Tokenizer::encode`] with [`Specials::Parse`], with BOS in front
    /// when the files ask for it and the text does not begin with it already. EOS is never added,
    /// whatever the files say: a prompt is there to be continued.
    pub fn encode_prompt(&self, text: &str) -> Vec<u32> {
        let mut ids = self.encode(text, Specials::Parse);
        if let (BosRule::Add, Some(bos)) = (self.bos_rule, self.roles.bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// The bytes that token `id` adds to a text: none for unknown ids and for control tokens, but
    /// for those that mark tool calls and reasoning, which add themselves. The
    /// text of a sequence is the concatenation, read as UTF-8. A word that SentencePiece writes
    /// with a leading space has it here too.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    /// The token as people write it (`<|im_end|>`), control tokens too.
    pub fn name(&self, id: u32) -> String {
        match self.control.get(&id) {
            Some(name) => name.clone(),
            None => String::from_utf8_lossy(self.piece(id)).into_owned(),
        }
    }

    /// Decodes what a model wrote: the concatenation of the pieces; bytes that are not UTF-8
    /// become U+FFFD, and a character that the end cuts is dropped, as [`Detokenizer`] does.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new();
        for &id in ids {
            detokenizer.push(self.piece(id), &mut text);
        }
        text
    }

    /// Decodes a text from its start: the inverse of [`Tokenizer::encode`] and
    /// [`Tokenizer::encode_prompt`]. As [`Tokenizer::decode`], without the spaces that
    /// SentencePiece puts in front of texts.
    pub fn decode_prompt(&self, ids: &[u32]) -> String {
        let mut text = String::new();
        let mut pieces = PromptPieces::new(self);
        ids.iter().for_each(|&id| pieces.push(id, &mut text));
        text
    }

    /// Where each token of a prompt begins in its text, in characters. `text` is what
    /// [`Tokenizer::encode_prompt`] made `ids` of, or [`Tokenizer::decode_prompt`] of them. Control
    /// tokens have the place that the text spells them in, and none where it does not.
    pub fn prompt_offsets(&self, ids: &[u32], text: &str) -> Vec<usize> {
        let (mut rest, mut at) = (text, 0);
        let mut pieces = PromptPieces::new(self);
        let place = |&id: &u32| {
            let begin = at;
            let mut decoded = String::new();
            pieces.push(id, &mut decoded);
            let spelled = self.control.get(&id).filter(|name| rest.starts_with(name.as_str()));
            let said = spelled.map_or(decoded.as_str(), String::as_str).chars().count();
            let mut left = rest.chars();
            at += left.by_ref().take(said).count();
            rest = left.as_str();
            begin
        };
        ids.iter().map(place).collect()
    }

    /// Every id that ends a generation, ascending: the union of what the configuration, the
    /// generation configuration and the tokenizer's files say, and of the control tokens that end
    /// a turn in the known chat formats.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// BOS, if the files name one.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The tokens with a role.
    pub(crate) fn roles(&self) -> Roles {
        self.roles
    }
}

/// Decodes a text from its start, a token at a time.
struct PromptPieces<'t> {
    tokenizer: &'t Tokenizer,
    detokenizer: Detokenizer,
    /// The next token may have a space in front that is none of the text's.
    prefixed: bool,
}

impl<'t> PromptPieces<'t> {
    fn new(tokenizer: &'t Tokenizer) -> PromptPieces<'t> {
        let prefixed = tokenizer.prefix != Prefix::Never;
        PromptPieces { tokenizer, detokenizer: Detokenizer::new(), prefixed }
    }

    /// Appends to `text` what the next token makes whole.
    fn push(&mut self, id: u32, text: &mut String) {
        let PromptPieces { tokenizer, detokenizer, prefixed } = self;
        let piece = tokenizer.piece(id);
        let drop = usize::from(*prefixed && piece.starts_with(b" "));
        detokenizer.push(&piece[drop..], text);
        *prefixed = tokenizer.prefix == Prefix::EachText && tokenizer.added_ids.contains(&id)
            || *prefixed && piece.is_empty();
    }
}
