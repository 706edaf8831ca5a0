//! The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`: which stretches of a text BPE
//! merges within. The patterns are those of the models' own `tokenizer.json`; for `default` they
//! are llama.cpp's.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

/// The names that [`PreTokenizer::named`] knows, for messages.
pub(super) const KNOWN: &str = "default, gpt-2, phi-2, olmo, smollm, starcoder, refact, codeshell, \
     qwen2, llama-bpe, llama-v3, llama3, tekken";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a text is prepared for byte-level BPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizer {
    /// Each cuts further what those before it left whole.
    patterns: &'static [&'static str],
    normal_form: NormalForm,
    /// Whether a stretch that is a token is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether BOS goes in front when the file does not say.
    pub(super) add_bos: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NormalForm {
    /// As it is written.
    Any,
    /// Unicode's NFC, which Qwen's tokenizer applies (GGUF files do not say so).
    Composed,
}

impl PreTokenizer {
    /// The one that `tokenizer.ggml.pre` names; `None` for an unknown name.
    pub(super) fn named(name: &str) -> Option<PreTokenizer> {
        let plain = PreTokenizer {
            patterns: &[],
            normal_form: NormalForm::Any,
            ignore_merges: false,
            add_bos: false,
        };
        Some(match name {
            "default" => PreTokenizer {
                patterns: &[r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
                ..plain
            },
            "gpt-2" | "phi-2" | "olmo" => PreTokenizer { patterns: &[GPT2], ..plain },
            "smollm" | "starcoder" | "refact" | "codeshell" => {
                PreTokenizer { patterns: &[r"\p{N}", GPT2], ..plain }
            }
            "qwen2" => {
                PreTokenizer { patterns: &[QWEN2], normal_form: NormalForm::Composed, ..plain }
            }
            "llama-bpe" | "llama-v3" | "llama3" => {
                PreTokenizer { patterns: &[LLAMA3], ignore_merges: true, add_bos: true, ..plain }
            }
            "tekken" => {
                PreTokenizer { patterns: &[TEKKEN], ignore_merges: true, add_bos: true, ..plain }
            }
            _ => return None,
        })
    }

    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        match self.normal_form {
            NormalForm::Any => None,
            NormalForm::Composed => Some(NFC.into()),
        }
    }

    /// The patterns one after the other, then bytes spelled in GPT-2's alphabet.
    pub(super) fn splitter(&self) -> PreTokenizerWrapper {
        let splits = self.patterns.iter().map(|&pattern| {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .expect("the patterns above are well formed")
                .into()
        });
        let spell = ByteLevel::new(false, true, false).into();
        Sequence::new(splits.chain([spell]).collect()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    fn cut(name: &str, text: &str) -> Vec<String> {
        let mut string = PreTokenizedString::from(text);
        let pre = PreTokenizer::named(name).expect("a known name");
        pre.splitter().pre_tokenize(&mut string).expect("a text splits");
        let splits = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (start, end), _)| text[start..end].to_owned()).collect()
    }

    #[test]
    fn every_listed_name_is_known() {
        for name in KNOWN.split(", ").map(str::trim) {
            assert!(PreTokenizer::named(name).is_some(), "{name}");
        }
        assert_eq!(PreTokenizer::named("no-such"), None);
    }

    #[test]
    fn kinds_differ_in_digits_words_and_newlines() {
        let text = "It'S 12345\n\n  x";
        assert_eq!(cut("gpt-2", text), ["It", "'", "S", " 12345", "\n\n ", " x"]);
        assert_eq!(
            cut("smollm", text),
            ["It", "'", "S", " ", "1", "2", "3", "4", "5", "\n\n ", " x"]
        );
        assert_eq!(
            cut("qwen2", text),
            ["It", "'S", " ", "1", "2", "3", "4", "5", "\n\n", " ", " x"]
        );
        assert_eq!(cut("llama-bpe", text), ["It", "'S", " ", "123", "45", "\n\n", " ", " x"]);
        assert_eq!(
            cut("tekken", "HTMLParser a/b"),
            ["HTMLParser", " a", "/b"],
            "upper case, then lower case"
        );
        assert_eq!(cut("default", "a 12345 !?"), ["a", " ", "123", "45", " ", "!?"]);
    }
}
