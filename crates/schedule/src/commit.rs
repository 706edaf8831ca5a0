//! The one commit function. Every token that a landed step accepted passes through
//! [`Commit::offer`] before any counter, text or statistic changes.

use crate::constraint::RowEnd;
use crate::request::{Early, FinishReason, Stops};
use crate::text::{Origin, Text};
use std::ops::{Range, RangeInclusive};

/// What became of the tokens of one landed step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Committed {
    /// How many of the offered tokens are kept, from the first; the rest never happened.
    pub kept: usize,
    /// How many were looked at: those kept, and the stop id if one ended the generation.
    pub taken: usize,
    /// The text that can no longer turn into a stop string: these runs of the [`Text`] that was
    /// written to.
    pub text: Range<usize>,
    /// Set when the generation is over.
    pub finish: Option<FinishReason>,
}

/// A request's output so far, as far as it decides what is kept next.
#[derive(Debug)]
pub struct Commit {
    stops: Stops,
    /// Output tokens at least and at most.
    length: RangeInclusive<usize>,
    tokens: usize,
    /// Text that may be the beginning of a stop string.
    held: Text,
}

impl Commit {
    /// Nothing committed yet. `length` is how many tokens the output has at least and at most; to an
    /// output that has none, nothing is ever offered. A stop string that ends before the least ends
    /// nothing. A stop id ends the output in any case: it is chosen earlier only where nothing else
    /// can be.
    pub fn new(stops: Stops, length: RangeInclusive<usize>) -> Commit {
        Commit { stops, length, tokens: 0, held: Text::default() }
    }

    /// Output tokens kept so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Decides over `offered`, token by token, stop before length. A stop id is not kept; a token
    /// that completes a stop string is, its text from the match on is not. `end` says that no token
    /// can follow the last one: a text that is whole there has come to its end, whether or not its
    /// length has too. `piece` gives the bytes a token adds to the text; what is final of them goes
    /// to `text`.
    pub fn offer<'p>(
        &mut self,
        offered: impl IntoIterator<Item = (u32, Origin)>,
        end: Option<RowEnd>,
        piece: impl Fn(u32) -> &'p [u8],
        text: &mut Text,
    ) -> Committed {
        let mut out = Committed::default();
        let mut text = text.begin();
        text.append(&mut self.held);
        let mut searched = text.bytes().len();
        let mut offered = offered.into_iter();
        for (token, origin) in offered.by_ref() {
            out.taken += 1;
            if self.stops.ids.contains(&token) {
                out.finish = Some(FinishReason::Stop);
                break;
            }
            self.tokens += 1;
            out.kept += 1;
            text.push(origin, piece(token));
            let bytes = text.bytes();
            let long_enough = self.tokens >= *self.length.start();
            if let Some(start) = self.stop_string(bytes, searched).filter(|_| long_enough) {
                text.truncate(start);
                out.finish = Some(FinishReason::Stop);
                break;
            }
            searched = bytes.len();
            if self.tokens >= *self.length.end() {
                out.finish = Some(FinishReason::Length);
                break;
            }
        }
        let end = end.filter(|_| offered.next().is_none());
        out.finish = match (end, out.finish) {
            (Some(RowEnd::Complete), None | Some(FinishReason::Length)) => Some(FinishReason::Stop),
            (Some(RowEnd::Stuck), None) => Some(FinishReason::Stuck),
            (_, finish) => finish,
        };
        if out.finish.is_none() {
            let decided = text.bytes().len() - self.undecided(text.bytes());
            text.split_off(decided, &mut self.held);
        }
        out.text = text.end();
        out
    }

    /// Ends the request early: what was held back is text after all.
    pub fn end(&mut self, why: Early, text: &mut Text) -> Committed {
        let mut text = text.begin();
        text.append(&mut self.held);
        Committed { text: text.end(), finish: Some(why.into()), ..Committed::default() }
    }

    /// Where the earliest stop string in `text` begins, of those that do not end within the first
    /// `searched` bytes.
    fn stop_string(&self, text: &[u8], searched: usize) -> Option<usize> {
        let begins = |stop: &String| {
            let stop = stop.as_bytes();
            let (last, mut from) = (stop.last()?, searched);
            while let Some(at) = text[from..].iter().position(|byte| byte == last) {
                from += at + 1;
                if text[..from].ends_with(stop) {
                    return Some(from - stop.len());
                }
            }
            None
        };
        self.stops.strings.iter().filter_map(begins).min()
    }

    /// Length of the longest end of `text` that begins a stop string.
    fn undecided(&self, text: &[u8]) -> usize {
        let begins = |stop: &String| {
            let stop = stop.as_bytes();
            let longest = text.len().min(stop.len().saturating_sub(1));
            (1..=longest).rev().find(|&len| text.ends_with(&stop[..len]))
        };
        self.stops.strings.iter().filter_map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafts(ids: &[u32]) -> Vec<(u32, Origin)> {
        ids.iter().map(|&id| (id, Origin::Draft)).collect()
    }

    /// Offers `ids`: what became of them, and the text that became final.
    fn offer<'p>(
        commit: &mut Commit,
        ids: &[u32],
        piece: impl Fn(u32) -> &'p [u8],
    ) -> (Committed, String) {
        let mut text = Text::default();
        let out = commit.offer(drafts(ids), None, piece, &mut text);
        (out.clone(), string(&text, out))
    }

    fn end(commit: &mut Commit, why: Early) -> (Committed, String) {
        let mut text = Text::default();
        let out = commit.end(why, &mut text);
        (out.clone(), string(&text, out))
    }

    fn string(text: &Text, committed: Committed) -> String {
        let bytes = text.runs(committed.text).flat_map(|(_, run)| run).copied().collect();
        String::from_utf8(bytes).expect("the tests use whole characters")
    }

    fn stop_ids(ids: &[u32]) -> Stops {
        Stops { ids: ids.to_vec(), strings: vec![] }
    }

    fn stop_strings(strings: &[&str]) -> Stops {
        Stops { ids: vec![], strings: strings.iter().map(|s| (*s).to_owned()).collect() }
    }

    #[test]
    fn a_stop_inside_a_block_comes_before_the_length_cap() {
        let block = [7, 8, 9, 50, 60, 61, 62, 63];
        for (stop, kept, finish) in [
            (50, 3, FinishReason::Stop),
            (62, 6, FinishReason::Length),
            (61, 5, FinishReason::Stop),
        ] {
            let (committed, _) = offer(&mut Commit::new(stop_ids(&[stop]), 0..=6), &block, |_| b"");
            assert_eq!((committed.kept, committed.finish), (kept, Some(finish)), "stop {stop}");
        }
    }

    #[test]
    fn every_cap_inside_a_block_is_exact() {
        for cap in 1..=17 {
            let mut commit = Commit::new(Stops::default(), 0..=cap);
            let mut kept = 0;
            let mut finish = None;
            while finish.is_none() {
                let (committed, _) = offer(&mut commit, &[1; 8], |_| b"x");
                kept += committed.kept;
                finish = committed.finish;
            }
            assert_eq!((kept, finish), (cap, Some(FinishReason::Length)));
        }
    }

    const WORDS: [&[u8]; 7] = [b"al", b"pha", b" be", b"ta ga", b"mma", b" de", b"lta"];

    #[test]
    fn a_stop_string_completed_inside_a_block_ends_text_and_ids() {
        let pieces = WORDS;
        let mut commit = Commit::new(stop_strings(&["ta g"]), 0..=100);
        let (out, text) = offer(&mut commit, &[0, 1, 2, 3, 4, 5, 6], |id| pieces[id as usize]);
        assert_eq!((text.as_str(), out.kept), ("alpha be", 4));
        assert_eq!(out.finish, Some(FinishReason::Stop));
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() {
        let stops = || stop_strings(&["beta gamma"]);
        let first: [&[u8]; 3] = [b"alpha be", b"ta gam", b"ma delta"];
        let mut commit = Commit::new(stops(), 0..=100);
        let seen: Vec<String> =
            (0..3).map(|i| offer(&mut commit, &[i], |id| first[id as usize]).1).collect();
        assert_eq!(seen, ["alpha ", "", ""]);
        let second: [&[u8]; 2] = [b"alpha be", b"an soup"];
        let mut commit = Commit::new(stops(), 0..=100);
        let seen: Vec<String> =
            (0..2).map(|i| offer(&mut commit, &[i], |id| second[id as usize]).1).collect();
        assert_eq!(seen, ["alpha ", "bean soup"]);
    }

    /// A match that ends with the last token that has to be is long enough, wherever it begins.
    #[test]
    fn a_stop_string_that_ends_too_early_is_text() {
        let pieces: [&[u8]; 5] = [b"a", b"b", b"ab", b"xa", b"b."];
        for (least, ids, text, kept) in [
            (0, [0, 1, 2, 3, 4], "", 2),
            (2, [0, 1, 2, 3, 4], "", 2),
            (3, [0, 1, 2, 3, 4], "ab", 3),
            (4, [0, 1, 2, 3, 4], "ababx", 5),
            (5, [0, 1, 2, 3, 4], "ababx", 5),
            (4, [0, 1, 2, 2, 4], "abab", 4),
        ] {
            let mut commit = Commit::new(stop_strings(&["ab"]), least..=9);
            let mut all = String::new();
            let mut rest = ids.iter();
            let out = loop {
                let id = rest.next().expect("a stop string comes");
                let (out, text) = offer(&mut commit, &[*id], |id| pieces[id as usize]);
                all.push_str(&text);
                if out.finish.is_some() {
                    break out.finish;
                }
            };
            let told = (all.as_str(), commit.tokens(), out);
            assert_eq!(told, (text, kept, Some(FinishReason::Stop)), "{least} at least");
        }
    }

    #[test]
    fn held_text_is_released_at_a_length_finish_and_a_cancel() {
        let mut commit = Commit::new(stop_strings(&["xyz"]), 0..=1);
        let (out, text) = offer(&mut commit, &[0], |_| b"wxy");
        assert_eq!((text.as_str(), out.finish), ("wxy", Some(FinishReason::Length)));
        let mut commit = Commit::new(stop_strings(&["xyz"]), 0..=9);
        assert_eq!(offer(&mut commit, &[0], |_| b"wxy").1, "w");
        let (out, text) = end(&mut commit, Early::Cancelled);
        assert_eq!((text.as_str(), out.finish), ("xy", Some(FinishReason::Cancelled)));
    }

    /// A constraint's end counts where its tokens do: not after a stop, and not past the cap.
    #[test]
    fn a_text_that_can_only_end_has_ended() {
        for (stop, cap, end, kept, finish) in [
            (99, 9, RowEnd::Complete, 3, FinishReason::Stop),
            (99, 9, RowEnd::Stuck, 3, FinishReason::Stuck),
            (99, 3, RowEnd::Complete, 3, FinishReason::Stop),
            (99, 3, RowEnd::Stuck, 3, FinishReason::Length),
            (99, 2, RowEnd::Complete, 2, FinishReason::Length),
            (8, 9, RowEnd::Stuck, 1, FinishReason::Stop),
        ] {
            let (mut commit, mut text) = (Commit::new(stop_ids(&[stop]), 0..=cap), Text::default());
            let out = commit.offer(drafts(&[7, 8, 9]), Some(end), |_| b"x", &mut text);
            assert_eq!((out.kept, out.finish), (kept, Some(finish)), "{stop} {cap} {end:?}");
        }
        let mut commit = Commit::new(stop_strings(&["xyz"]), 0..=9);
        assert_eq!(offer(&mut commit, &[1], |_| b"wx").1, "w");
        let mut text = Text::default();
        let out = commit.offer([], Some(RowEnd::Complete), |_| b"", &mut text);
        assert_eq!((out.kept, out.finish), (0, Some(FinishReason::Stop)));
        assert_eq!(string(&text, out), "x", "what was held back is text after all");
    }

    #[test]
    fn text_keeps_the_origin_of_its_tokens() {
        let mut commit = Commit::new(Stops::default(), 0..=9);
        let offered = [(1, Origin::Draft), (2, Origin::Draft), (3, Origin::Target)];
        let mut text = Text::default();
        let out = commit.offer(offered, None, |id| if id == 3 { b"t" } else { b"d" }, &mut text);
        let runs: Vec<_> = text.runs(out.text).collect();
        assert_eq!(runs, [(Origin::Draft, b"dd".as_slice()), (Origin::Target, b"t")]);
    }

    proptest! {
        /// However the tokens are cut into steps, the same are kept, for the same reason, with
        /// the same text.
        #[test]
        fn cuts_do_not_matter(
            ids in prop::collection::vec(0u32..7, 1..40),
            cuts in prop::collection::vec(1usize..9, 40),
            stop in prop::option::of(0u32..7),
            string in prop::option::of("[a-t ]{1,4}"),
            cap in 1usize..30,
            least in 0usize..12,
        ) {
            let stops = Stops {
                ids: stop.into_iter().collect(),
                strings: string.into_iter().collect(),
            };
            let run = |sizes: &mut dyn Iterator<Item = usize>| {
                let mut commit = Commit::new(stops.clone(), least.min(cap)..=cap);
                let (mut kept, mut all, mut rest) = (0, String::new(), ids.as_slice());
                while !rest.is_empty() {
                    let n = sizes.next().expect("enough cuts").min(rest.len());
                    let (out, text) = offer(&mut commit, &rest[..n], |id| WORDS[id as usize]);
                    rest = &rest[n..];
                    kept += out.kept;
                    all.push_str(&text);
                    if out.finish.is_some() {
                        return (kept, all, out.finish);
                    }
                }
                all.push_str(&end(&mut commit, Early::TimedOut).1);
                (kept, all, None)
            };
            prop_assert_eq!(
                run(&mut std::iter::repeat(1)),
                run(&mut cuts.iter().copied().chain(std::iter::repeat(1)))
            );
        }
    }
}
