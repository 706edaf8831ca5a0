//! A tokenizer from the `tokenizer.ggml.*` keys of a GGUF file
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#ggml>). Where a key is missing, its
//! default is llama.cpp's.

use super::added::{AddedToken, Kind};
use super::pieces::{Pieces, Spelling};
use super::pretokenize::{self, PreTokenizer};
use super::scored::{ScoredBpe, SpacePrefix};
use super::{BosRule, Encoder, Parts, Prefix, Roles};
use crate::checkpoint::gguf::Metadata;
use crate::error::LoadError;
use std::collections::BTreeSet;
use tokenizers::models::bpe::{BPE, Vocab};

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The vocabulary, checked: `types` is as long as `tokens`.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: &'a [String],
    types: Vec<TokenType>,
}

/// Reads and checks everything.
pub(super) fn read(metadata: &Metadata) -> Result<Parts, LoadError> {
    let vocabulary = Vocabulary::read(metadata)?;
    let roles = Roles {
        bos: vocabulary.id("tokenizer.ggml.bos_token_id")?,
        eos: vocabulary.id("tokenizer.ggml.eos_token_id")?,
        unk: vocabulary.id("tokenizer.ggml.unknown_token_id")?,
        pad: vocabulary.id("tokenizer.ggml.padding_token_id")?,
    };
    let kind = metadata.string("tokenizer.ggml.model")?;
    let (encoder, spelling, prefix, roles, add_bos) = match kind {
        Some("gpt2") => {
            let (encoder, add_bos) = vocabulary.byte_level()?;
            (encoder, Spelling::ByteLevel, Prefix::Never, roles, add_bos)
        }
        Some("llama") => {
            // The ids that SentencePiece gives these tokens unless told otherwise.
            let usual = |role: Option<u32>, id: u32, name: &str| {
                role.or((vocabulary.tokens.get(id as usize)? == name).then_some(id))
            };
            let roles = Roles {
                unk: usual(roles.unk, 0, "<unk>"),
                bos: usual(roles.bos, 1, "<s>"),
                eos: usual(roles.eos, 2, "</s>"),
                pad: roles.pad,
            };
            let (encoder, prefix) = vocabulary.scored(roles.unk)?;
            (encoder, Spelling::SentencePiece, prefix, roles, true)
        }
        Some(other) => {
            return Err(LoadError::new(
                metadata.path(),
                "tokenizer.ggml.model",
                format!(
                    "is `{other}`; the known kinds are gpt2 (byte-level BPE) and llama (SentencePiece)"
                ),
            ));
        }
        None => return Err(missing(metadata, "tokenizer.ggml.model")),
    };
    let add_bos = vocabulary.add_bos(roles.bos, add_bos)?;

    let mut ends = BTreeSet::from_iter(roles.eos);
    ends.extend(vocabulary.id("tokenizer.ggml.eot_token_id")?);
    ends.extend(vocabulary.id("tokenizer.ggml.eom_token_id")?);
    Ok(Parts {
        encoder,
        added: vocabulary.added(),
        found_by_encoder: Vec::new(),
        prefix,
        pieces: vocabulary.pieces(spelling),
        roles,
        bos_rule: if add_bos { BosRule::Add } else { BosRule::Omit },
        ends,
    })
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Vocabulary<'a>, LoadError> {
        const TYPES: &str = "tokenizer.ggml.token_type";
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")?
            .filter(|tokens| !tokens.is_empty())
            .ok_or_else(|| missing(metadata, "tokenizer.ggml.tokens"))?;
        let types = match metadata.i32s(TYPES)? {
            None => vec![TokenType::Normal; tokens.len()],
            Some(types) => {
                check_length(metadata, TYPES, types.len(), tokens.len())?;
                types.into_iter().map(TokenType::from_file).collect()
            }
        };
        Ok(Vocabulary { metadata, tokens, types })
    }

    /// Ids, tokens and types.
    fn entries(&self) -> impl Iterator<Item = (u32, &'a str, TokenType)> {
        (0..)
            .zip(self.tokens)
            .zip(&self.types)
            .map(|((id, token), &kind)| (id, token.as_str(), kind))
    }

    /// A token id, checked to exist.
    fn id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        let Some(id) = self.metadata.u32(key)? else { return Ok(None) };
        if id as usize >= self.tokens.len() {
            let problem = format!("is {id}, but the vocabulary has {} tokens", self.tokens.len());
            return Err(LoadError::new(self.metadata.path(), key, problem));
        }
        Ok(Some(id))
    }

    fn add_bos(&self, bos: Option<u32>, default: bool) -> Result<bool, LoadError> {
        const KEY: &str = "tokenizer.ggml.add_bos_token";
        let asked = self.metadata.bool(KEY)?;
        if asked == Some(true) && bos.is_none() {
            let problem = "is true, but tokenizer.ggml.bos_token_id names no token; convert the \
                           model again";
            return Err(LoadError::new(self.metadata.path(), KEY, problem));
        }
        Ok(asked.unwrap_or(default))
    }

    /// Byte-level BPE, and whether its kind wants BOS.
    fn byte_level(&self) -> Result<(Encoder, bool), LoadError> {
        const PRE: &str = "tokenizer.ggml.pre";
        const MERGES: &str = "tokenizer.ggml.merges";
        let path = self.metadata.path();
        // Files from before the key existed are read as llama.cpp reads them.
        let name = self.metadata.string(PRE)?.unwrap_or("default");
        let pre = PreTokenizer::named(name).ok_or_else(|| {
            let problem =
                format!("is `{name}`; the known pre-tokenizers are {}", pretokenize::KNOWN);
            LoadError::new(path, PRE, problem)
        })?;
        let merges =
            self.metadata.strings(MERGES)?.ok_or_else(|| missing(self.metadata, MERGES))?;
        let merges = merges
            .iter()
            .map(|merge| {
                let parts = merge.split_once(' ').map(|(l, r)| (l.to_owned(), r.to_owned()));
                parts.ok_or_else(|| {
                    let problem = format!("`{merge}` is not two tokens with a space between");
                    LoadError::new(path, MERGES, problem)
                })
            })
            .collect::<Result<Vec<_>, _>>()?;

        // Control tokens stay out: no text may become one.
        let vocabulary: Vocab = self
            .entries()
            .filter(|(_, _, kind)| !kind.is_special())
            .map(|(id, token, _)| (token.to_owned(), id))
            .collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .ignore_merges(pre.ignore_merges)
            .build()
            .map_err(|error| LoadError::new(path, MERGES, error.to_string()))?;
        let mut library = tokenizers::Tokenizer::new(bpe);
        library
            .with_normalizer(pre.normalizer())
            .expect("no added tokens to normalize")
            .with_pre_tokenizer(Some(pre.splitter()));
        Ok((Encoder::Library { first: Box::new(library), later: None }, pre.add_bos))
    }

    /// SentencePiece. Scores decide the merges; a list of merges, which some files have as well,
    /// says the same and is not needed.
    fn scored(&self, unknown: Option<u32>) -> Result<(Encoder, Prefix), LoadError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let scores = self.metadata.f32s(SCORES)?.ok_or_else(|| missing(self.metadata, SCORES))?;
        check_length(self.metadata, SCORES, scores.len(), self.tokens.len())?;
        let (space, prefix) = match self.metadata.bool("tokenizer.ggml.add_space_prefix")? {
            Some(false) => (SpacePrefix::Omit, Prefix::Never),
            Some(true) | None => (SpacePrefix::Add, Prefix::EachText),
        };
        let pieces = self
            .entries()
            .filter(|(_, _, kind)| {
                matches!(kind, TokenType::Normal | TokenType::Byte | TokenType::UserDefined)
            })
            .map(|(id, token, _)| (token, id, scores[id as usize]));
        Ok((Encoder::Scored(Box::new(ScoredBpe::new(pieces, unknown, space))), prefix))
    }

    fn added(&self) -> Vec<AddedToken> {
        let added = self.entries().filter_map(|(id, token, kind)| {
            let kind = match kind {
                TokenType::Control | TokenType::Unknown => Kind::Control,
                TokenType::UserDefined => Kind::Text,
                TokenType::Normal | TokenType::Unused | TokenType::Byte => return None,
            };
            Some(AddedToken::new(id, token.to_owned(), kind))
        });
        added.collect()
    }

    fn pieces(&self, spelling: Spelling) -> Pieces {
        Pieces::new(self.entries().map(|(_, token, kind)| match kind {
            TokenType::Control | TokenType::Unknown => Vec::new(),
            // Not spelled in bytes: found and printed as it is written.
            TokenType::UserDefined if spelling == Spelling::ByteLevel => token.as_bytes().to_vec(),
            _ => spelling.bytes(token),
        }))
    }
}

impl TokenType {
    fn from_file(number: i32) -> TokenType {
        match number {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }

    /// Whether no text may become the token.
    fn is_special(self) -> bool {
        matches!(self, TokenType::Control | TokenType::Unknown)
    }
}

fn check_length(
    metadata: &Metadata,
    key: &str,
    found: usize,
    tokens: usize,
) -> Result<(), LoadError> {
    if found == tokens {
        return Ok(());
    }
    let problem = format!("has {found} elements for {tokens} tokens; the file is damaged");
    Err(LoadError::new(metadata.path(), key, problem))
}

fn missing(metadata: &Metadata, key: &str) -> LoadError {
    LoadError::new(metadata.path(), key, "is missing; convert the model with its tokenizer")
}
