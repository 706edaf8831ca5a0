//! SentencePiece's BPE over pieces with scores: of all neighbours that join to a piece, the pair
//! with the highest score joins first, the leftmost among equals
//! (<https://github.com/google/sentencepiece>, `bpe_model.cc`). The merges that Hugging Face files
//! list are these scores, spelled out; GGUF files carry the scores alone.

use super::pieces::byte_token;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// What stands in front of a text that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpacePrefix {
    /// A space, so that a word is the same piece at the start as in the middle.
    Add,
    /// Nothing.
    Omit,
}

/// A vocabulary of pieces with scores.
pub(super) struct ScoredBpe {
    pieces: HashMap<Box<str>, (u32, f32)>,
    /// The token of each byte (`<0x0A>`), for characters that are no piece.
    bytes: [Option<u32>; 256],
    /// For bytes that have no token.
    unknown: Option<u32>,
    prefix: SpacePrefix,
}

/// A stretch of the text between two neighbours, as a linked list; `len` 0 once joined to the left.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that join to a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; another sum means that one of them has joined elsewhere since.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl ScoredBpe {
    /// `pieces` are the ones that text may become (token, id, score); byte tokens among them are
    /// kept for what no piece covers.
    pub(super) fn new<'a>(
        pieces: impl Iterator<Item = (&'a str, u32, f32)>,
        unknown: Option<u32>,
        prefix: SpacePrefix,
    ) -> ScoredBpe {
        let mut bpe = ScoredBpe { pieces: HashMap::new(), bytes: [None; 256], unknown, prefix };
        for (token, id, score) in pieces {
            match byte_token(token) {
                Some(byte) => bpe.bytes[usize::from(byte)] = Some(id),
                None => _ = bpe.pieces.entry(token.into()).or_insert((id, score)),
            }
        }
        bpe
    }

    /// Appends the ids of `text` to `ids`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut spelled = String::with_capacity(text.len() + 3);
        if self.prefix == SpacePrefix::Add && !text.is_empty() {
            spelled.push('▁');
        }
        spelled.extend(text.chars().map(|c| if c == ' ' { '▁' } else { c }));

        for symbol in self.join(&spelled).iter().filter(|symbol| symbol.len > 0) {
            let piece = &spelled[symbol.start..symbol.start + symbol.len];
            match self.pieces.get(piece) {
                Some(&(id, _)) => ids.push(id),
                None => ids.extend(
                    piece.bytes().filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)),
                ),
            }
        }
    }

    /// The characters of `text`, joined as far as pieces go.
    fn join(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1).filter(|_| start + c.len_utf8() < text.len()),
            })
            .collect();
        let mut pairs = BinaryHeap::new();
        for left in 0..symbols.len() {
            pairs.extend(self.pair(text, &symbols, Some(left), symbols[left].next));
        }
        while let Some(Pair { left, right, len, .. }) = pairs.pop() {
            let both = symbols[left].len + symbols[right].len;
            if symbols[left].len == 0 || symbols[right].len == 0 || both != len {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            pairs.extend(self.pair(text, &symbols, symbols[left].previous, Some(left)));
            pairs.extend(self.pair(text, &symbols, Some(left), next));
        }
        symbols
    }

    fn pair(
        &self,
        text: &str,
        symbols: &[Symbol],
        left: Option<usize>,
        right: Option<usize>,
    ) -> Option<Pair> {
        let (left, right) = (left?, right?);
        let len = symbols[left].len + symbols[right].len;
        let start = symbols[left].start;
        let &(_, score) = self.pieces.get(&text[start..start + len])?;
        Some(Pair { score, left, right, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(prefix: SpacePrefix, text: &str) -> Vec<u32> {
        let pieces = [
            ("<0xC3>", 1, 0.0),
            ("<0xA9>", 2, 0.0),
            ("a", 3, -10.0),
            ("b", 4, -11.0),
            ("▁", 5, -12.0),
            ("ab", 6, -1.0),
            ("aa", 7, -2.0),
            ("▁a", 8, -3.0),
            ("aab", 9, -4.0),
        ];
        let mut ids = Vec::new();
        ScoredBpe::new(pieces.into_iter(), Some(0), prefix).encode(text, &mut ids);
        ids
    }

    #[test]
    fn the_highest_score_joins_first_and_the_leftmost_among_equals() {
        assert_eq!(encode(SpacePrefix::Omit, "aab"), [9]);
        assert_eq!(encode(SpacePrefix::Omit, "aaa"), [7, 3]);
        assert_eq!(encode(SpacePrefix::Omit, "aaaab"), [7, 9]);
    }

    #[test]
    fn a_space_goes_in_front_where_the_file_asks() {
        assert_eq!(encode(SpacePrefix::Add, "a"), [8]);
        assert_eq!(encode(SpacePrefix::Add, " a"), [5, 8]);
        assert_eq!(encode(SpacePrefix::Add, ""), [0u32; 0]);
    }

    #[test]
    fn characters_without_a_piece_become_bytes_or_unknown() {
        assert_eq!(encode(SpacePrefix::Omit, "aé"), [3, 1, 2]);
        assert_eq!(encode(SpacePrefix::Omit, "z"), [0]);
    }
}
