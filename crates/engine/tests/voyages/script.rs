//! A target and a drafter whose answers are functions of what their KV memory holds.

use engine::draft::{DraftRow, Drafter};
use engine::{Request, Target, Vocabulary};
use kernels::choose::{Draw, LogProbs, Shape};
use model::pass::Pass;

pub(crate) const VOCAB: u32 = 40;

/// A slot's content: a token and its position. Fresh memory holds what no sequence does.
type Slot = (u32, u32);
const EMPTY: Slot = (u32::MAX, u32::MAX);

/// The token after `tokens`, for a request with this seed.
pub(crate) fn next(tokens: impl Iterator<Item = u32>, seed: u64) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for token in tokens {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash >> 33) as u32 % VOCAB
}

/// What `slots` hold at positions `0 .. len`; panics where it is not what was stored there.
fn tokens(slots: &[Slot], pages: &[u32], len: usize, page_size: usize) -> Vec<u32> {
    let at = |t: usize| {
        let (token, position) = slots[pages[t / page_size] as usize * page_size + t % page_size];
        assert_eq!(position as usize, t, "the slot of position {t} holds position {position}");
        token
    };
    (0..len).map(at).collect()
}

/// What the target thinks of `token` after `seen`, and of `top` others.
fn opinion(seen: &[u32], token: u32, top: usize) -> LogProbs {
    let first = next(seen.iter().copied(), 99);
    let others = (0..top as u32).map(|i| ((first + i) % VOCAB, -(i as f32)));
    LogProbs { chosen: -((first + token) as f32), top: others.collect() }
}

/// All that the target would say after `request`'s prompt, with its opinions.
pub(crate) fn say(request: &Request) -> impl Iterator<Item = (u32, LogProbs)> {
    let (mut seen, seed, top) = (request.prompt.clone(), request.sampling.seed, request.logprobs);
    std::iter::repeat_with(move || {
        let token = next(seen.iter().copied(), seed);
        let opinion = opinion(&seen, token, top.unwrap_or(0));
        seen.push(token);
        (token, opinion)
    })
}

pub(crate) struct ScriptTarget {
    slots: Vec<Slot>,
    page_size: usize,
    /// The choice after each row of the last pass, but for the seed.
    seen: Vec<Vec<u32>>,
    /// The rows that were asked about last.
    asked: Vec<usize>,
    features: Vec<f32>,
}

impl ScriptTarget {
    pub(crate) fn new(slots: usize, page_size: usize) -> ScriptTarget {
        let slots = vec![EMPTY; slots];
        ScriptTarget { slots, page_size, seen: vec![], asked: vec![], features: vec![] }
    }
}

impl Target for ScriptTarget {
    fn forward(&mut self, pass: &Pass, taps: &[usize]) {
        let rows = pass.tokens.iter().zip(&pass.positions).zip(&pass.slots);
        for ((&token, &position), &slot) in rows {
            assert!(token < VOCAB, "id {token} entered a pass");
            self.slots[slot as usize] = (token, position);
        }
        self.seen.clear();
        for span in &pass.spans {
            let all = span.context + span.len;
            let pages = &pass.pages[span.first_page..];
            let whole = tokens(&self.slots, pages, all, self.page_size);
            self.seen.extend((span.context..all).map(|t| whole[..=t].to_vec()));
        }
        self.features.clear();
        if !taps.is_empty() {
            self.features.extend(pass.tokens.iter().map(|&token| token as f32));
        }
    }

    fn features(&self) -> &[f32] {
        &self.features
    }

    fn choose(&mut self, rows: &[usize], draws: &[Draw], _: &[Shape<'_>], out: &mut [u32]) {
        self.asked = rows.to_vec();
        for ((&row, draw), out) in rows.iter().zip(draws).zip(out) {
            let seen = &self.seen[row];
            assert_eq!(seen.len(), draw.position as usize, "the draw is for another position");
            *out = next(seen.iter().copied(), draw.seed);
        }
    }

    fn log_probs(&self, index: usize, token: u32, top: usize) -> LogProbs {
        opinion(&self.seen[self.asked[index]], token, top)
    }
}

/// How good a drafter is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quality {
    Perfect,
    Random,
    Wrong,
}

pub(crate) struct ScriptDrafter {
    slots: Vec<Slot>,
    page_size: usize,
    block: usize,
    quality: Quality,
}

impl ScriptDrafter {
    pub(crate) fn new(slots: usize, page_size: usize, block: usize, quality: Quality) -> Self {
        ScriptDrafter { slots: vec![EMPTY; slots], page_size, block, quality }
    }
}

impl Drafter for ScriptDrafter {
    fn block(&self) -> usize {
        self.block
    }

    fn taps(&self) -> &[usize] {
        &[0]
    }

    /// Knows the target's script, and applies it to its own context.
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Vec<u32>]) {
        for (row, out) in rows.iter().zip(out) {
            let mut context = tokens(&self.slots, row.pages, row.len, self.page_size);
            context.push(row.anchor);
            for j in 1..row.width {
                let right = next(context.iter().copied(), row.draw.seed);
                let draw = next([row.request as u32, (row.len + j) as u32].into_iter(), 1);
                let token = match self.quality {
                    Quality::Perfect => right,
                    Quality::Random if draw.is_multiple_of(2) => right,
                    Quality::Random => draw,
                    Quality::Wrong => (right + 1) % VOCAB,
                };
                context.push(token);
                out.push(token);
            }
        }
    }

    fn absorb(&mut self, features: &[f32], positions: &[u32], slots: &[u32]) {
        for ((&token, &position), &slot) in features.iter().zip(positions).zip(slots) {
            self.slots[slot as usize] = (token as u32, position);
        }
    }
}

/// Few letters, so that stop strings are met; characters in pieces, and bytes that are none.
const PIECES: [&[u8]; 10] =
    [b"a", b"b", b"ab", b"c", b"\xc3", b"\xa9", b"ca", b"", b"bc", b"\xf0\x9f"];

/// The text of the script's tokens.
pub(crate) struct Words;

impl Vocabulary for Words {
    fn size(&self) -> usize {
        VOCAB as usize
    }

    fn piece(&self, id: u32) -> &[u8] {
        PIECES[id as usize % PIECES.len()]
    }
}
