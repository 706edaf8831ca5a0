//! A vocabulary of all bytes and of some longer pieces, and texts followed over it.

use constrain::{Compiled, End, Grammar, Grammars, Matcher, Vocabulary};
use std::sync::Arc;

/// Pieces of more than one byte, as tokenizers have them: words, runs of spaces, ends of JSON.
const LONGER: [&[u8]; 16] = [
    b"  ",
    b"    ",
    b"\n\n",
    b"{\"",
    b"\":",
    b"\", \"",
    b"\"}",
    b"}}",
    b"name",
    b"true",
    b"12",
    b"</",
    b"think",
    b"</think>",
    b"ab",
    b"abc",
];

/// The id of a control token, which adds nothing to a text.
pub(crate) const CONTROL: u32 = 256 + LONGER.len() as u32;

/// The ids that end a text. The second has bytes of its own.
pub(crate) const ENDS: [u32; 2] = [CONTROL + 1, CONTROL + 2];

/// How many ids there are.
pub(crate) const SIZE: u32 = CONTROL + 3;

pub(crate) fn pieces() -> Vec<Vec<u8>> {
    let longer = LONGER.iter().map(|piece| piece.to_vec());
    let others = [Vec::new(), Vec::new(), b"a".to_vec()];
    (0..=255).map(|byte| vec![byte]).chain(longer).chain(others).collect()
}

pub(crate) fn grammars() -> Grammars {
    let pieces = pieces();
    let pieces = pieces.iter().map(Vec::as_slice).collect();
    Grammars::new(&Vocabulary { pieces, ends: &ENDS })
}

pub(crate) fn compile(grammar: &Grammar) -> Arc<Compiled> {
    grammars().compile(grammar).unwrap_or_else(|error| panic!("{grammar:?} {error}"))
}

/// What may come next: ids, ascending, and whether the text may end.
pub(crate) fn next(matcher: &mut Matcher) -> (Vec<u32>, End) {
    let mut words = vec![0u32; SIZE.div_ceil(32) as usize];
    let end = matcher.allow(&mut words);
    let set = |id: &u32| words[*id as usize / 32] >> (id % 32) & 1 == 1;
    ((0..words.len() as u32 * 32).filter(set).collect(), end)
}

/// Whether `text` is one of the grammar's, by way of single bytes.
pub(crate) fn accepts(compiled: &Arc<Compiled>, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    for byte in text.bytes() {
        let allowed = next(&mut matcher).0.contains(&u32::from(byte));
        assert_eq!(matcher.advance(u32::from(byte)), allowed, "{text:?} at {byte}");
        if !allowed {
            return false;
        }
    }
    next(&mut matcher).1 == End::May
}
