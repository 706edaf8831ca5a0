//! A tokenizer from the files of a Hugging Face folder: `tokenizer.json` encodes,
//! `tokenizer_config.json` and `special_tokens_map.json` give roles, `generation_config.json` and
//! `config.json` name further ends.

use super::added::{AddedToken, Kind};
use super::pieces::{Pieces, Spelling};
use super::{BosRule, Encoder, Parts, Prefix, Roles};
use crate::error::LoadError;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

/// Reads and checks everything.
pub(super) fn read(folder: &Path) -> Result<Parts, LoadError> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|error| {
        let remedy = "save the tokenizer with `save_pretrained` of a fast tokenizer";
        LoadError::new(&path, "file", format!("{error}; {remedy}"))
    })?;
    let mut library = tokenizers::Tokenizer::from_bytes(bytes)
        .map_err(|error| LoadError::new(&path, "file", error.to_string()))?;
    // Files often keep the settings of their training; a prompt is neither cut nor filled up.
    library.with_padding(None).with_truncation(None).expect("no truncation is no error");

    let files = Files::read(folder)?;
    files.mark_special(&mut library).map_err(|e| LoadError::new(&path, "added_tokens", e))?;
    // From here on the library leaves control tokens alone: they are found before it.
    library.set_encode_special_tokens(true);
    // A vocabulary without an unknown token fails on characters that it lacks: better now.
    library
        .encode_fast("a \u{10fffd}\u{378}", false)
        .map_err(|error| LoadError::new(&path, "model", error.to_string()))?;

    let role = |name: &str| files.role(name).and_then(|token| library.token_to_id(token));
    let roles = Roles {
        bos: role("bos_token"),
        eos: role("eos_token"),
        unk: role("unk_token"),
        pad: role("pad_token"),
    };
    let spelling = spelling(&library)
        .ok_or_else(|| LoadError::new(&path, "decoder", UNKNOWN_DECODER.to_owned()))?;
    let mut ends = files.end_ids()?;
    ends.extend(roles.eos);
    let prefix = prefix(&library, spelling);
    Ok(Parts {
        added: added(&library),
        found_by_encoder: found_by_encoder(&library),
        prefix,
        pieces: pieces(&library, spelling),
        bos_rule: files.bos_rule(&library, roles.bos),
        roles,
        ends,
        encoder: encoder(library, prefix),
    })
}

const UNKNOWN_DECODER: &str = "is of an unknown kind; the known ones are ByteLevel and SentencePiece's (ByteFallback, \
     Metaspace, or Replace of `▁`)";

/// The JSON files beside `tokenizer.json`; null where a file is missing.
struct Files {
    tokenizer: Value,
    special: Value,
    /// `generation_config.json` and `config.json`.
    configs: [(PathBuf, Value); 2],
}

impl Files {
    fn read(folder: &Path) -> Result<Files, LoadError> {
        let config = |name: &str| Ok((folder.join(name), read_json(&folder.join(name))?));
        Ok(Files {
            tokenizer: read_json(&folder.join("tokenizer_config.json"))?,
            special: read_json(&folder.join("special_tokens_map.json"))?,
            configs: [config("generation_config.json")?, config("config.json")?],
        })
    }

    /// The token that plays `role` (`bos_token`): a string, or an object with its `content`.
    fn role(&self, role: &str) -> Option<&str> {
        [&self.tokenizer, &self.special].into_iter().find_map(|file| {
            let token = file.get(role)?;
            token.get("content").unwrap_or(token).as_str()
        })
    }

    /// Marks as special what only these files call special.
    fn mark_special(&self, library: &mut tokenizers::Tokenizer) -> Result<(), String> {
        let decoder = self.tokenizer.get("added_tokens_decoder").and_then(Value::as_object);
        let listed = decoder.into_iter().flat_map(|tokens| tokens.values());
        let listed = listed
            .filter(|token| token.get("special").and_then(Value::as_bool) == Some(true))
            .filter_map(|token| token.get("content")?.as_str());
        let roles = ["bos_token", "eos_token", "unk_token", "pad_token"];
        let special: Vec<_> = listed
            .chain(roles.into_iter().filter_map(|role| self.role(role)))
            .filter(|token| library.token_to_id(token).is_some())
            .filter(|token| !library.get_added_vocabulary().is_special_token(token))
            .map(|token| tokenizers::AddedToken::from(token, true))
            .collect();
        library.add_special_tokens(special).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// `add_bos_token` where it is written, else what the post-processor puts around a text.
    fn bos_rule(&self, library: &tokenizers::Tokenizer, bos: Option<u32>) -> BosRule {
        let processed = || {
            let around = library.encode_fast("", true).ok();
            bos.is_some() && around.is_some_and(|ids| ids.get_ids().first().copied() == bos)
        };
        let written = self.tokenizer.get("add_bos_token").and_then(Value::as_bool);
        if written.unwrap_or_else(processed) { BosRule::Add } else { BosRule::Omit }
    }

    /// `eos_token_id` of the configurations: a number or a list.
    fn end_ids(&self) -> Result<BTreeSet<u32>, LoadError> {
        let mut ids = BTreeSet::new();
        for (path, config) in &self.configs {
            let listed = match config.get("eos_token_id") {
                None | Some(Value::Null) => continue,
                Some(Value::Array(list)) => list.as_slice(),
                Some(number) => std::slice::from_ref(number),
            };
            for id in listed {
                let number =
                    id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                        let problem = format!("{id} is not a token id");
                        LoadError::new(path, "eos_token_id", problem)
                    })?;
                ids.insert(number);
            }
        }
        Ok(ids)
    }
}

/// A JSON file; null when it does not exist.
fn read_json(path: &Path) -> Result<Value, LoadError> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| LoadError::new(path, "file", format!("is not JSON: {error}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(LoadError::new(path, "file", error.to_string())),
    }
}

/// Control tokens; tokens that were added as text stay with the library.
fn added(library: &tokenizers::Tokenizer) -> Vec<AddedToken> {
    let tokens = library.get_added_tokens_decoder();
    let special = tokens.iter().filter(|(_, token)| token.special);
    special
        .map(|(&id, token)| AddedToken {
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
            ..AddedToken::new(id, token.content.clone(), Kind::Control)
        })
        .collect()
}

/// Tokens that were added as text.
fn found_by_encoder(library: &tokenizers::Tokenizer) -> Vec<u32> {
    let tokens = library.get_added_tokens_decoder();
    tokens.into_iter().filter(|(_, token)| !token.special).map(|(id, _)| id).collect()
}

/// Where the normalizer or the pre-tokenizer puts a space, seen on a letter.
fn prefix(library: &tokenizers::Tokenizer, spelling: Spelling) -> Prefix {
    let letter = library.encode_fast("a", false).ok();
    let first = letter.and_then(|ids| library.id_to_token(*ids.get_ids().first()?));
    if !first.is_some_and(|token| spelling.bytes(&token).starts_with(b" ")) {
        return Prefix::Never;
    }
    match library.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::Metaspace(metaspace))
            if metaspace.get_prepend_scheme() == PrependScheme::First =>
        {
            Prefix::FirstText
        }
        _ => Prefix::EachText,
    }
}

fn pieces(library: &tokenizers::Tokenizer, spelling: Spelling) -> Pieces {
    let added = library.get_added_tokens_decoder();
    let vocabulary = library.get_vocab(true);
    let len = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
    let mut table = vec![Vec::new(); len];
    for (token, id) in vocabulary {
        table[id as usize] = match added.get(&id) {
            Some(added) if added.special => Vec::new(),
            Some(added) => added.content.clone().into_bytes(),
            None => spelling.bytes(&token),
        };
    }
    Pieces::new(table.into_iter())
}

/// What the decoder undoes.
fn spelling(library: &tokenizers::Tokenizer) -> Option<Spelling> {
    let decoder = serde_json::to_value(library.get_decoder()?).ok()?;
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(&decoder),
    };
    steps.iter().find_map(|step| match step.get("type")?.as_str()? {
        "ByteLevel" => Some(Spelling::ByteLevel),
        "ByteFallback" | "Metaspace" | "Replace" => Some(Spelling::SentencePiece),
        _ => None,
    })
}

/// Metaspace's `prepend_scheme` `first` puts a space before a text, but not before the rest of it
/// behind an added token. The library sees those rests as texts of their own, so it needs a twin.
fn encoder(library: tokenizers::Tokenizer, prefix: Prefix) -> Encoder {
    let later = match library.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::Metaspace(metaspace)) if prefix == Prefix::FirstText => {
            let mut metaspace = metaspace.clone();
            metaspace.set_prepend_scheme(PrependScheme::Never);
            let mut twin = library.clone();
            twin.with_pre_tokenizer(Some(metaspace));
            Some(Box::new(twin))
        }
        _ => None,
    };
    Encoder::Library { first: Box::new(library), later }
}
