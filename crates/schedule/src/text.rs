//! Text that becomes final, of many requests in one buffer: a step commits text for each of its
//! rows, and a buffer a row would cost more than all the rest of landing it.

use std::ops::Range;

/// Where a token came from: the drafter proposed it and the target agreed, or the target alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An accepted draft.
    Draft,
    /// The target's own: the first token, or the bonus token of a verify pass.
    Target,
}

/// Bytes in runs of one origin. Requests write one after another and remember which runs are
/// theirs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    bytes: Vec<u8>,
    /// Origin and end of each run; each begins where the one before ends.
    runs: Vec<(Origin, usize)>,
}

impl Text {
    /// Forgets everything, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
    }

    /// Some of the runs: see [`Committed::text`](crate::Committed::text).
    ///
    /// # Panics
    /// When there are fewer runs.
    pub fn runs(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = (Origin, &[u8])> {
        let mut start = self.start(range.start);
        self.runs[range].iter().map(move |&(origin, end)| {
            let run = &self.bytes[start..end];
            start = end;
            (origin, run)
        })
    }

    /// Where run `run` begins.
    fn start(&self, run: usize) -> usize {
        run.checked_sub(1).map_or(0, |before| self.runs[before].1)
    }

    /// Begins the text of another request.
    #[inline]
    pub(crate) fn begin(&mut self) -> Part<'_> {
        Part { first_byte: self.bytes.len(), first_run: self.runs.len(), text: self }
    }
}

/// The text of one request while it is written: the end of a [`Text`].
pub(crate) struct Part<'t> {
    text: &'t mut Text,
    first_byte: usize,
    first_run: usize,
}

impl Part<'_> {
    /// Its bytes so far.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text.bytes[self.first_byte..]
    }

    #[inline]
    pub(crate) fn push(&mut self, origin: Origin, piece: &[u8]) {
        if piece.is_empty() {
            return;
        }
        let Text { bytes, runs } = &mut *self.text;
        bytes.extend_from_slice(piece);
        match runs[self.first_run..].last_mut() {
            Some((last, end)) if *last == origin => *end = bytes.len(),
            _ => runs.push((origin, bytes.len())),
        }
    }

    /// Appends all of `other` and leaves it empty.
    #[inline]
    pub(crate) fn append(&mut self, other: &mut Text) {
        for (origin, run) in other.runs(0..other.runs.len()) {
            self.push(origin, run);
        }
        other.clear();
    }

    /// Forgets all bytes but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        let text = &mut *self.text;
        text.bytes.truncate(self.first_byte + len);
        while let [.., (_, end)] = &text.runs[self.first_run..]
            && *end > text.bytes.len()
        {
            let last = text.runs.len() - 1;
            if text.start(last) < text.bytes.len() {
                text.runs[last].1 = text.bytes.len();
            } else {
                text.runs.pop();
            }
        }
    }

    /// Moves all bytes but the first `len` to `to`, which is empty.
    #[inline]
    pub(crate) fn split_off(&mut self, len: usize, to: &mut Text) {
        let cut = self.first_byte + len;
        if cut == self.text.bytes.len() {
            return;
        }
        let mut start = self.first_byte;
        let mut rest = to.begin();
        for &(origin, end) in &self.text.runs[self.first_run..] {
            rest.push(origin, &self.text.bytes[start.max(cut)..end.max(cut)]);
            start = end;
        }
        self.truncate(len);
    }

    /// The runs that it is.
    #[inline]
    pub(crate) fn end(self) -> Range<usize> {
        self.first_run..self.text.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Origin::{Draft, Target};

    fn runs(text: &Text, range: Range<usize>) -> Vec<(Origin, &str)> {
        let string = |run| std::str::from_utf8(run).expect("the tests use whole characters");
        text.runs(range).map(|(origin, run)| (origin, string(run))).collect()
    }

    #[test]
    fn runs_of_one_origin_join_within_a_request_only() {
        let mut text = Text::default();
        let mut first = text.begin();
        for (origin, piece) in [(Draft, "a"), (Draft, "b"), (Target, ""), (Target, "c")] {
            first.push(origin, piece.as_bytes());
        }
        let first = first.end();
        let mut second = text.begin();
        second.push(Target, b"d");
        let second = second.end();
        assert_eq!(runs(&text, first), [(Draft, "ab"), (Target, "c")]);
        assert_eq!(runs(&text, second), [(Target, "d")]);
        let nothing = text.begin().end();
        assert_eq!(runs(&text, nothing), []);
    }

    #[test]
    fn every_cut_keeps_the_origins_on_both_sides() {
        for cut in 0..=6 {
            let (mut text, mut rest) = (Text::default(), Text::default());
            text.begin().push(Target, b"before");
            let mut part = text.begin();
            for (origin, piece) in [(Target, "ab"), (Draft, "cd"), (Target, "ef")] {
                part.push(origin, piece.as_bytes());
            }
            part.split_off(cut, &mut rest);
            assert_eq!(part.bytes(), &b"abcdef"[..cut]);
            part.append(&mut rest);
            let part = part.end();
            assert_eq!(runs(&text, part), [(Target, "ab"), (Draft, "cd"), (Target, "ef")]);
            assert_eq!((runs(&text, 0..1), rest), (vec![(Target, "before")], Text::default()));
            let mut part = text.begin();
            part.push(Draft, b"cut off");
            part.truncate(0);
            assert!(part.end().is_empty());
        }
    }
}
