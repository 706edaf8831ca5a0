//! Bytes of tokens to text, a token at a time: only whole characters come out.

/// A streaming UTF-8 decoder. What it gave out for some bytes is the text of those bytes without
/// the character that the end cuts, so a stream that stops anywhere and a text that is decoded at
/// once agree.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    /// The start of a character whose rest has not come: 0 to 3 bytes.
    tail: Vec<u8>,
}

impl Detokenizer {
    /// At the start of a text.
    pub fn new() -> Detokenizer {
        Detokenizer::default()
    }

    /// Takes the bytes of the next token ([`super::Tokenizer::piece`]) and appends to `text` what
    /// is complete. Bytes that can never become a character come out as U+FFFD, one for each
    /// maximal invalid part, as in [`String::from_utf8_lossy`].
    pub fn push(&mut self, piece: &[u8], text: &mut String) {
        self.tail.extend_from_slice(piece);
        let mut done = 0;
        while done < self.tail.len() {
            match std::str::from_utf8(&self.tail[done..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    done = self.tail.len();
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    let whole = std::str::from_utf8(&self.tail[done..valid]);
                    text.push_str(whole.expect("checked up to here"));
                    done = valid;
                    // Without a length the rest is the start of a character.
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += invalid;
                }
            }
        }
        self.tail.drain(..done);
    }

    /// Whether a character is begun and not complete.
    pub fn is_inside_character(&self) -> bool {
        !self.tail.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut detokenizer = Detokenizer::new();
        let deltas = pieces.iter().map(|piece| {
            let mut text = String::new();
            detokenizer.push(piece, &mut text);
            text
        });
        (deltas.collect(), detokenizer.is_inside_character())
    }

    #[test]
    fn characters_split_over_tokens_come_out_whole() {
        let (deltas, inside) =
            run(&[b"\xf0\x9f", b"\x98\x80", b"\xe4", b"\xb8", b"\xad", b"a\xc3", b"\xa9b"]);
        assert_eq!(deltas, ["", "😀", "", "", "中", "a", "éb"]);
        assert!(!inside);
    }

    #[test]
    fn a_character_cut_by_the_end_is_dropped() {
        let (deltas, inside) = run(&[b"ok\xf0\x9f"]);
        assert_eq!(deltas, ["ok"]);
        assert!(inside);
    }

    #[test]
    fn bytes_that_cannot_be_text_are_replaced_at_once() {
        let (deltas, _) = run(&[b"a\xffb", b"\xf0\x9f", b"c", b"\x80"]);
        assert_eq!(deltas, ["a\u{fffd}b", "", "\u{fffd}c", "\u{fffd}"]);
    }

    #[test]
    fn any_cut_gives_the_same_text() {
        let bytes = b"x\xf0\x9f\x98\x80\xff\xe4\xb8\xadz\xe4\xb8";
        let mut whole = String::new();
        Detokenizer::new().push(bytes, &mut whole);
        for cut in 0..=bytes.len() {
            let (deltas, _) = run(&[&bytes[..cut], &bytes[cut..]]);
            assert_eq!(deltas.concat(), whole, "cut at {cut}");
        }
        assert_eq!(whole, "x😀\u{fffd}中z");
    }
}
