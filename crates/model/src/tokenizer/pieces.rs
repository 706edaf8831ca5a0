//! What each token adds to a text, as bytes: one table, made when the tokenizer is loaded.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The bytes of every token, by id.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where token `id` ends in `bytes`; it starts where the one before ends.
    ends: Vec<u32>,
}

impl Pieces {
    /// The table with `pieces` in the order of their ids.
    pub(super) fn new(pieces: impl Iterator<Item = Vec<u8>>) -> Pieces {
        let mut table = Pieces { bytes: Vec::new(), ends: Vec::new() };
        for piece in pieces {
            table.bytes.extend(piece);
            table.ends.push(table.bytes.len().try_into().expect("a vocabulary below 4 GiB"));
        }
        table
    }

    /// The same table, but for the tokens in `texts`.
    pub(super) fn with(self, texts: &HashMap<u32, String>) -> Pieces {
        if texts.is_empty() {
            return self;
        }
        Pieces::new((0..self.ends.len() as u32).map(|id| match texts.get(&id) {
            Some(text) => text.clone().into_bytes(),
            None => self.get(id).to_vec(),
        }))
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of `id`; empty for an id that does not exist.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

/// How a vocabulary writes bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one character for each byte (`Ġ` is a space).
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0x0A>` a byte, the rest is itself.
    SentencePiece,
}

impl Spelling {
    /// The bytes that a token spelled `token` stands for.
    pub(super) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            // A token with a character outside the alphabet was added as plain text.
            Spelling::ByteLevel => token
                .chars()
                .map(byte_of)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Spelling::SentencePiece => match byte_token(token) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
        }
    }
}

/// The byte that `<0x0A>` stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).expect("two hexadecimal digits"))
}

/// The byte that GPT-2 writes as `c`: printable Latin-1 stands for itself, the other bytes for
/// U+0100 and up, in order.
fn byte_of(c: char) -> Option<u8> {
    static SHIFTED: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..=255).filter(|&byte| !printable(byte)).collect());
    match u32::from(c) {
        code @ 0..=255 => printable(code as u8).then_some(code as u8),
        code => SHIFTED.get(code as usize - 256).copied(),
    }
}

fn printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_spelling_is_gpt2s() {
        assert_eq!(Spelling::ByteLevel.bytes("ĠtheĊ"), b" the\n");
        assert_eq!(Spelling::ByteLevel.bytes("ðŁĺĢ"), "😀".as_bytes());
        assert_eq!(Spelling::ByteLevel.bytes("ŃĀ"), [0xad, 0x00]);
        assert_eq!(Spelling::ByteLevel.bytes("two words"), b"two words");
    }

    #[test]
    fn sentencepiece_spelling_knows_spaces_and_bytes() {
        assert_eq!(Spelling::SentencePiece.bytes("▁▁the"), b"  the");
        assert_eq!(Spelling::SentencePiece.bytes("<0xF0>"), [0xf0]);
        assert_eq!(Spelling::SentencePiece.bytes("<0xF>"), b"<0xF>");
        assert_eq!(Spelling::SentencePiece.bytes("<0x+F>"), b"<0x+F>");
    }

    #[test]
    fn ids_outside_the_table_add_nothing() {
        let pieces = Pieces::new([b"a".to_vec(), vec![], b"bc".to_vec()].into_iter());
        assert_eq!(
            (pieces.get(0), pieces.get(1), pieces.get(2), pieces.get(3)),
            (&b"a"[..], &b""[..], &b"bc"[..], &b""[..])
        );
    }
}
