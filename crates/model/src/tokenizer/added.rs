//! Tokens that are found in a text as they are written, before the rest of it is encoded: control
//! tokens such as `<|im_end|>`, and the pieces that GGUF files call user defined.

use super::Specials;
use aho_corasick::{AhoCorasick, Input, MatchKind};

/// A token that stands in a text as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) text: String,
    pub(super) kind: Kind,
    /// Takes the whitespace before it along.
    pub(super) lstrip: bool,
    /// Takes the whitespace behind it along.
    pub(super) rstrip: bool,
    /// Counts only where neither neighbour is a letter, digit or underscore.
    pub(super) single_word: bool,
}

impl AddedToken {
    /// A token without stripping or word bounds.
    pub(super) fn new(id: u32, text: String, kind: Kind) -> AddedToken {
        AddedToken { id, text, kind, lstrip: false, rstrip: false, single_word: false }
    }
}

/// Whether an added token steers the model or is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Found only with [`Specials::Parse`]; adds nothing to a text.
    Control,
    /// Found always; adds its own text.
    Text,
}

/// A stretch of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'t> {
    /// Text to encode, never empty.
    Text(&'t str),
    /// An added token.
    Token(u32),
}

/// All added tokens of a tokenizer, ready for search.
pub(super) struct AddedTokens {
    /// Every token.
    all: Matcher,
    /// Those of [`Kind::Text`].
    text: Matcher,
    /// Those of [`Kind::Control`].
    control: Matcher,
}

struct Matcher {
    /// `None` when there are no tokens.
    automaton: Option<AhoCorasick>,
    /// By pattern number.
    tokens: Vec<AddedToken>,
}

impl Matcher {
    fn new(tokens: Vec<AddedToken>) -> Matcher {
        let automaton = (!tokens.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|token| &token.text))
                .expect("a vocabulary's added tokens fit an automaton")
        });
        Matcher { automaton, tokens }
    }

    /// The first token at or after byte `from`, the longest of those that start together.
    fn find(&self, text: &str, from: usize) -> Option<(&AddedToken, usize, usize)> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(from..))?;
        Some((&self.tokens[found.pattern().as_usize()], found.start(), found.end()))
    }
}

impl AddedTokens {
    pub(super) fn new(mut tokens: Vec<AddedToken>) -> AddedTokens {
        tokens.retain(|token| !token.text.is_empty());
        let of = |kind| tokens.iter().filter(|token| token.kind == kind).cloned().collect();
        AddedTokens {
            text: Matcher::new(of(Kind::Text)),
            control: Matcher::new(of(Kind::Control)),
            all: Matcher::new(tokens),
        }
    }

    /// Where control tokens start in `text`: byte offsets, ascending; they may overlap.
    pub(super) fn control_starts(&self, text: &str) -> Vec<usize> {
        let mut starts = Vec::new();
        let mut from = 0;
        while let Some((_, start, _)) = self.control.find(text, from) {
            starts.push(start);
            from = next_char(text, start);
        }
        starts
    }

    /// Cuts `text` at its added tokens. A token that covers one of the `literal` byte offsets
    /// (ascending) is text.
    pub(super) fn split<'t>(
        &self,
        text: &'t str,
        specials: Specials,
        literal: &[usize],
    ) -> Vec<Segment<'t>> {
        let matcher = match specials {
            Specials::Parse => &self.all,
            Specials::AsText => &self.text,
        };
        let mut segments = Vec::new();
        // Text before `done` is in `segments`; the search goes on at `from`.
        let (mut done, mut from) = (0, 0);
        while let Some((token, start, end)) = matcher.find(text, from) {
            let covered = literal.partition_point(|&offset| offset < start);
            let forbidden = literal.get(covered).is_some_and(|&offset| offset < end);
            if forbidden || (token.single_word && !stands_alone(text, start, end)) {
                from = next_char(text, start);
                continue;
            }
            let start = if token.lstrip { text[..start].trim_end().len().max(done) } else { start };
            let end = if token.rstrip { text.len() - text[end..].trim_start().len() } else { end };
            if done < start {
                segments.push(Segment::Text(&text[done..start]));
            }
            segments.push(Segment::Token(token.id));
            (done, from) = (end, end);
        }
        if done < text.len() {
            segments.push(Segment::Text(&text[done..]));
        }
        segments
    }
}

/// The offset behind the character that starts at `offset`.
fn next_char(text: &str, offset: usize) -> usize {
    offset + text[offset..].chars().next().map_or(1, char::len_utf8)
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].ends_with(word) && !text[end..].starts_with(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> AddedTokens {
        let mut strip = AddedToken::new(3, "<mask>".into(), Kind::Control);
        (strip.lstrip, strip.rstrip) = (true, true);
        let mut word = AddedToken::new(4, "word".into(), Kind::Text);
        word.single_word = true;
        AddedTokens::new(vec![
            AddedToken::new(0, "<s>".into(), Kind::Control),
            AddedToken::new(1, "<s>>".into(), Kind::Control),
            AddedToken::new(2, "<tool>".into(), Kind::Text),
            strip,
            word,
        ])
    }

    use Segment::{Text, Token};

    #[test]
    fn longest_token_wins_and_text_between_is_kept() {
        let split = tokens().split("a<s>><s><tool>b", Specials::Parse, &[]);
        assert_eq!(split, [Text("a"), Token(1), Token(0), Token(2), Text("b")]);
    }

    #[test]
    fn control_tokens_stay_text_on_request_but_user_defined_ones_do_not() {
        let split = tokens().split("<s><tool>", Specials::AsText, &[]);
        assert_eq!(split, [Text("<s>"), Token(2)]);
    }

    #[test]
    fn a_token_over_a_literal_offset_is_text() {
        let split = tokens().split("<s>é<s><s>", Specials::Parse, &[5]);
        assert_eq!(split, [Token(0), Text("é<s>"), Token(0)]);
    }

    #[test]
    fn stripping_takes_whitespace_and_words_need_bounds() {
        let split = tokens().split("a \t<mask> \nwords word", Specials::Parse, &[]);
        assert_eq!(split, [Text("a"), Token(3), Text("words "), Token(4)]);
    }

    #[test]
    fn starts_are_found_one_by_one() {
        assert_eq!(tokens().control_starts("x<s>><s>"), [1, 5]);
        assert_eq!(AddedTokens::new(Vec::new()).control_starts("x<s>"), [0usize; 0]);
    }
}
