//! The one commit function. Every token that a landed step accepted passes through
//! [`Commit::offer`] before any counter, text or statistic changes.

use crate::request::{Early, FinishReason, Stops};
use std::collections::VecDeque;

/// Where a token came from: the drafter proposed it and the target agreed, or the target alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An accepted draft.
    Draft,
    /// The target's own: the first token, or the bonus token of a verify pass.
    Target,
}

/// What became of the tokens of one landed step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Committed {
    /// How many of the offered tokens are kept, from the first; the rest never happened.
    pub kept: usize,
    /// How many were looked at: those kept, and the stop id if one ended the generation.
    pub taken: usize,
    /// Bytes of text that can no longer turn into a stop string, by origin.
    pub text: Vec<(Origin, Vec<u8>)>,
    /// Set when the generation is over.
    pub finish: Option<FinishReason>,
}

/// A request's output so far, as far as it decides what is kept next.
#[derive(Debug)]
pub struct Commit {
    stops: Stops,
    max_tokens: usize,
    tokens: usize,
    /// Text that may be the beginning of a stop string.
    held: Vec<u8>,
    /// Where its bytes come from, in runs.
    origins: VecDeque<(Origin, usize)>,
}

impl Commit {
    /// Nothing committed yet. `max_tokens` is at least 1.
    pub fn new(stops: Stops, max_tokens: usize) -> Commit {
        Commit { stops, max_tokens, tokens: 0, held: Vec::new(), origins: VecDeque::new() }
    }

    /// Output tokens kept so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Decides over `offered`, token by token, stop before length. A stop id is not kept; a token
    /// that completes a stop string is, its text from the match on is not. `piece` gives the
    /// bytes a token adds to the text.
    pub fn offer<'p>(
        &mut self,
        offered: impl IntoIterator<Item = (u32, Origin)>,
        piece: impl Fn(u32) -> &'p [u8],
    ) -> Committed {
        let mut out = Committed::default();
        for (token, origin) in offered {
            out.taken += 1;
            if self.stops.ids.contains(&token) {
                out.finish = Some(FinishReason::Stop);
                break;
            }
            self.tokens += 1;
            out.kept += 1;
            let before = self.held.len();
            self.hold(origin, piece(token));
            if let Some(start) = self.stop_string(before) {
                self.truncate(start);
                out.finish = Some(FinishReason::Stop);
                break;
            }
            if self.tokens >= self.max_tokens {
                out.finish = Some(FinishReason::Length);
                break;
            }
        }
        let keep = if out.finish.is_some() { 0 } else { self.undecided() };
        self.release(keep, &mut out.text);
        out
    }

    /// Ends the request early: what was held back is text after all.
    pub fn end(&mut self, why: Early) -> Committed {
        let mut out = Committed { finish: Some(why.into()), ..Committed::default() };
        self.release(0, &mut out.text);
        out
    }

    fn hold(&mut self, origin: Origin, piece: &[u8]) {
        self.held.extend_from_slice(piece);
        match self.origins.back_mut() {
            Some((last, run)) if *last == origin => *run += piece.len(),
            _ => self.origins.push_back((origin, piece.len())),
        }
    }

    /// Where the earliest stop string in the held bytes begins. None ends within the first
    /// `before` bytes: it would have been found then.
    fn stop_string(&self, before: usize) -> Option<usize> {
        let begins = |stop: &String| {
            let stop = stop.as_bytes();
            let first = (before + 1).saturating_sub(stop.len());
            let starts =
                self.held[first..].iter().enumerate().filter(|(_, byte)| **byte == stop[0]);
            starts.map(|(i, _)| first + i).find(|&start| self.held[start..].starts_with(stop))
        };
        self.stops.strings.iter().filter(|stop| !stop.is_empty()).filter_map(begins).min()
    }

    /// Length of the longest end of the held bytes that begins a stop string.
    fn undecided(&self) -> usize {
        let begins = |stop: &String| {
            let stop = stop.as_bytes();
            let longest = self.held.len().min(stop.len().saturating_sub(1));
            (1..=longest).rev().find(|&len| self.held.ends_with(&stop[..len]))
        };
        self.stops.strings.iter().filter_map(begins).max().unwrap_or(0)
    }

    /// Forgets all held bytes but the first `len`.
    fn truncate(&mut self, len: usize) {
        let mut surplus = self.held.len() - len;
        self.held.truncate(len);
        while surplus > 0 {
            let (_, run) = self.origins.back_mut().expect("every held byte has an origin");
            let cut = surplus.min(*run);
            (*run, surplus) = (*run - cut, surplus - cut);
            if *run == 0 {
                self.origins.pop_back();
            }
        }
    }

    /// Moves all but the last `keep` held bytes to `text`, one run an origin.
    fn release(&mut self, keep: usize, text: &mut Vec<(Origin, Vec<u8>)>) {
        let end = self.held.len() - keep;
        if end == 0 {
            return;
        }
        text.reserve_exact(self.origins.len());
        let mut start = 0;
        while start < end {
            let (origin, run) = self.origins.front_mut().expect("every held byte has an origin");
            let len = (*run).min(end - start);
            text.push((*origin, self.held[start..start + len].to_vec()));
            (*run, start) = (*run - len, start + len);
            if *run == 0 {
                self.origins.pop_front();
            }
        }
        self.held.drain(..end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drafts(ids: &[u32]) -> Vec<(u32, Origin)> {
        ids.iter().map(|&id| (id, Origin::Draft)).collect()
    }

    fn text(committed: &Committed) -> String {
        let bytes = committed.text.iter().flat_map(|(_, run)| run.clone()).collect();
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
            let committed = Commit::new(stop_ids(&[stop]), 6).offer(drafts(&block), |_| b"");
            assert_eq!((committed.kept, committed.finish), (kept, Some(finish)), "stop {stop}");
        }
    }

    #[test]
    fn every_cap_inside_a_block_is_exact() {
        for cap in 1..=17 {
            let mut commit = Commit::new(Stops::default(), cap);
            let mut kept = 0;
            let mut finish = None;
            while finish.is_none() {
                let committed = commit.offer(drafts(&[1; 8]), |_| b"x");
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
        let mut commit = Commit::new(stop_strings(&["ta g"]), 100);
        let out = commit.offer(drafts(&[0, 1, 2, 3, 4, 5, 6]), |id| pieces[id as usize]);
        assert_eq!((text(&out).as_str(), out.kept), ("alpha be", 4));
        assert_eq!(out.finish, Some(FinishReason::Stop));
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() {
        let stops = || stop_strings(&["beta gamma"]);
        let first: [&[u8]; 3] = [b"alpha be", b"ta gam", b"ma delta"];
        let mut commit = Commit::new(stops(), 100);
        let seen: Vec<String> =
            (0..3).map(|i| text(&commit.offer(drafts(&[i]), |id| first[id as usize]))).collect();
        assert_eq!(seen, ["alpha ", "", ""]);
        let second: [&[u8]; 2] = [b"alpha be", b"an soup"];
        let mut commit = Commit::new(stops(), 100);
        let seen: Vec<String> =
            (0..2).map(|i| text(&commit.offer(drafts(&[i]), |id| second[id as usize]))).collect();
        assert_eq!(seen, ["alpha ", "bean soup"]);
    }

    #[test]
    fn held_text_is_released_at_a_length_finish_and_a_cancel() {
        let mut commit = Commit::new(stop_strings(&["xyz"]), 1);
        let out = commit.offer(drafts(&[0]), |_| b"wxy");
        assert_eq!((text(&out).as_str(), out.finish), ("wxy", Some(FinishReason::Length)));
        let mut commit = Commit::new(stop_strings(&["xyz"]), 9);
        assert_eq!(text(&commit.offer(drafts(&[0]), |_| b"wxy")), "w");
        let out = commit.end(Early::Cancelled);
        assert_eq!((text(&out).as_str(), out.finish), ("xy", Some(FinishReason::Cancelled)));
    }

    #[test]
    fn text_keeps_the_origin_of_its_tokens() {
        let mut commit = Commit::new(Stops::default(), 9);
        let out =
            commit.offer([(1, Origin::Draft), (2, Origin::Draft), (3, Origin::Target)], |id| {
                if id == 3 { b"t" } else { b"d" }
            });
        assert_eq!(out.text, [(Origin::Draft, b"dd".to_vec()), (Origin::Target, b"t".to_vec())]);
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
        ) {
            let stops = Stops {
                ids: stop.into_iter().collect(),
                strings: string.into_iter().collect(),
            };
            let run = |sizes: &mut dyn Iterator<Item = usize>| {
                let mut commit = Commit::new(stops.clone(), cap);
                let (mut kept, mut all, mut rest) = (0, String::new(), ids.as_slice());
                while !rest.is_empty() {
                    let n = sizes.next().expect("enough cuts").min(rest.len());
                    let out = commit.offer(drafts(&rest[..n]), |id| WORDS[id as usize]);
                    rest = &rest[n..];
                    kept += out.kept;
                    all.push_str(&text(&out));
                    if out.finish.is_some() {
                        return (kept, all, out.finish);
                    }
                }
                all.push_str(&text(&commit.end(Early::TimedOut)));
                (kept, all, None)
            };
            prop_assert_eq!(
                run(&mut std::iter::repeat(1)),
                run(&mut cuts.iter().copied().chain(std::iter::repeat(1)))
            );
        }
    }
}
