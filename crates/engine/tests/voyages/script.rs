//! A target and a drafter whose answers are functions of what their KV memory holds.

use crate::toy::{allows, mask};
use device::Cpu;
use engine::draft::{Draft, DraftRow, Drafter, Follows, Promise};
use engine::{
    Choosing, Features, Leaves, Left, PromptLogProbs, PromptToken, Request, Shaping, Target,
    Vocabulary,
};
use kernels::accept::accept;
use kernels::attention::Span;
use kernels::choose::{Draw, Kept, LogProbs, Shape, choose};
use model::pass::Pass;
use std::sync::{Arc, Mutex};

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

/// The most that the target favours a token by: so little that penalties matter.
const FAVOUR: f32 = 5.0;

/// The logits behind [`next`], in eighths: additions and penalties in eighths, and factors that are
/// powers of two, leave them exact.
fn logits(tokens: impl Iterator<Item = u32> + Clone, seed: u64) -> [f32; VOCAB as usize] {
    let favourite = next(tokens.clone(), seed);
    let start = next(tokens, !seed);
    std::array::from_fn(|token| match token as u32 == favourite {
        true => FAVOUR,
        false => ((token as u32 * 7 + start * 13) % 65) as f32 / 8.0 - FAVOUR + 1.0,
    })
}

/// What the target says after `seen`, for a request with this seed and whose logits are shaped so.
fn shaped(seen: &[u32], seed: u64, shape: Shape<'_>) -> u32 {
    if shape.is_plain() {
        return next(seen.iter().copied(), seed);
    }
    let logits = logits(seen.iter().copied(), seed);
    let greedy = Draw {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed,
        position: seen.len() as u32,
    };
    let mut out = [0];
    choose(&Cpu::new(1), &logits, logits.len(), logits.len(), &[greedy], &[shape], &mut out);
    out[0]
}

/// The same by the definition of what a request may ask for.
fn defined(seen: &[u32], request: &Request, mask: Option<&[u32]>) -> u32 {
    let Request { prompt, sampling, shaping, stops, limits, .. } = request;
    if *shaping == Shaping::default() && limits.min_tokens == 0 && mask.is_none() {
        return next(seen.iter().copied(), sampling.seed);
    }
    let output = &seen[prompt.len()..];
    let wanted = |token: u32, logit: f32| {
        let mut x = f64::from(logit);
        let factor = f64::from(shaping.repetition_penalty);
        if seen.contains(&token) {
            x = if x > 0.0 { x / factor } else { x * factor };
        }
        let count = output.iter().filter(|&&other| other == token).count();
        x -= f64::from(shaping.frequency_penalty) * count as f64;
        x -= if count > 0 { f64::from(shaping.presence_penalty) } else { 0.0 };
        let own = shaping.logit_bias.iter().filter(|(other, _)| *other == token);
        x += own.map(|(_, bias)| f64::from(*bias)).sum::<f64>();
        let too_early = output.len() < limits.min_tokens && stops.ids.contains(&token);
        if too_early { f64::NEG_INFINITY } else { x }
    };
    let logits = logits(seen.iter().copied(), sampling.seed);
    let allowed = |token: &u32| mask.is_none_or(|mask| allows(mask, *token));
    let scores =
        (0..VOCAB).filter(allowed).map(|token| (token, wanted(token, logits[token as usize])));
    let better = |a: (u32, f64), b: (u32, f64)| if b.1 > a.1 { b } else { a };
    scores.reduce(better).expect("a token may come next").0
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

/// What it thinks of `request`'s prompt, as far as that is asked for.
pub(crate) fn read(request: &Request) -> Vec<PromptToken> {
    let Some(PromptLogProbs { from, top }) = request.prompt_logprobs else { return Vec::new() };
    let prompt = &request.prompt;
    let token = |at: usize| PromptToken {
        id: prompt[at],
        logprobs: (at > 0).then(|| opinion(&prompt[..at], prompt[at], top)),
    };
    (from..prompt.len()).map(token).collect()
}

/// All that the target would say after `request`'s prompt, with its opinions, until a stop id or the
/// constraint ends it.
pub(crate) fn say(request: &Request) -> impl Iterator<Item = (u32, LogProbs)> {
    let (mut seen, top) = (request.prompt.clone(), request.logprobs);
    std::iter::from_fn(move || {
        let output = &seen[request.prompt.len()..];
        if output.last().is_some_and(|last| request.stops.ids.contains(last)) {
            return None;
        }
        let mask = mask(request, output);
        if mask.as_ref().is_some_and(|mask| mask.iter().all(|&word| word == 0)) {
            return None;
        }
        let token = defined(&seen, request, mask.as_deref());
        let opinion = opinion(&seen, token, top.unwrap_or(0));
        seen.push(token);
        Some((token, opinion))
    })
}

/// A place where a drafter leaves what it promised, in order, for a target that takes passes of so many rows with
/// it, and where that target leaves what became of its blocks. In such a pass `VOCAB + i` stands for number `i`.
#[derive(Clone)]
pub(crate) struct Promises {
    pub(crate) most: usize,
    /// What a step has at most that is left.
    pub(crate) leaves: Leaves,
    /// What the drafter has to know to promise something.
    pub(crate) follows: Follows,
    shared: Arc<Mutex<Both>>,
}

#[derive(Default)]
struct Both {
    tokens: Vec<u32>,
    /// Of each block of the last step that was left, how many rows were refused, and its anchor.
    blocks: Vec<(usize, u32)>,
    /// Passes with some of the tokens.
    passes: u64,
    /// Steps that were left, blocks that began behind others, and drafts that were started behind such.
    left: u64,
    behind: u64,
    started: u64,
}

impl Promises {
    pub(crate) fn of(most: usize, leaves: Leaves, follows: Follows) -> Promises {
        Promises { most, leaves, follows, shared: Arc::default() }
    }

    /// How many passes had some, how many steps were left, how many blocks began behind theirs, and how many drafts were
    /// started behind those.
    pub(crate) fn met(&self) -> [u64; 4] {
        let both = self.shared.lock().unwrap();
        [both.passes, both.left, both.behind, both.started]
    }

    /// A pass's tokens.
    fn resolve(&self, tokens: &[u32]) -> Vec<u32> {
        let mut both = self.shared.lock().unwrap();
        both.passes += u64::from(tokens.iter().any(|&token| token >= VOCAB));
        let of = |&token: &u32| match token.checked_sub(VOCAB) {
            Some(number) => both.tokens[number as usize],
            None => token,
        };
        tokens.iter().map(of).collect()
    }

    /// What became of a block of the last step that was left.
    fn block(&self, block: usize) -> (usize, u32) {
        self.shared.lock().unwrap().blocks[block]
    }

    /// `pass` as it is: positions that were said as if blocks had been kept whole are less what was refused, and so are
    /// those of its draws.
    fn settle(&self, pass: &Pass, draws: &[Draw], page_size: usize) -> (Pass, Vec<Draw>) {
        let (mut whole, mut draws) = (Pass::default(), draws.to_vec());
        let tokens = self.resolve(&pass.tokens);
        for (i, span) in pass.spans.iter().enumerate() {
            let mut own = tokens[span.start..span.start + span.len].to_vec();
            let behind = pass.behind.iter().find(|behind| behind.span == i);
            let mut refused = 0;
            if let Some(behind) = behind {
                (refused, own[0]) = self.block(behind.block);
            }
            let end = pass.spans.get(i + 1).map_or(pass.pages.len(), |next| next.first_page);
            whole.push(&own, span.context - refused, &pass.pages[span.first_page..end], page_size);
            let own = draws.iter_mut().skip(span.start).take(span.len);
            own.for_each(|draw| draw.position -= refused as u32);
        }
        (whole, draws)
    }
}

pub(crate) struct ScriptTarget {
    slots: Vec<Slot>,
    page_size: usize,
    promises: Promises,
    /// The choice after each row of the last pass, but for the seed.
    seen: Vec<Vec<u32>>,
    /// The rows that were asked about last.
    asked: Vec<usize>,
    /// And what they keep.
    kept: Vec<Kept>,
    features: Vec<f32>,
}

impl ScriptTarget {
    pub(crate) fn new(slots: usize, page_size: usize, promises: Promises) -> ScriptTarget {
        let slots = vec![EMPTY; slots];
        let (seen, asked, kept, features) = (vec![], vec![], vec![], vec![]);
        ScriptTarget { slots, page_size, promises, seen, asked, kept, features }
    }
}

/// What was chosen, for whoever comes to read it.
struct Chosen(Vec<u32>);

impl Left for Chosen {
    fn read(self: Box<Self>) -> Vec<u32> {
        self.0
    }
}

impl Target for ScriptTarget {
    fn forward(&mut self, pass: &Pass, taps: &[usize]) {
        assert!(pass.behind.is_empty(), "somebody waits for this pass and knows where it begins");
        let all = self.promises.resolve(&pass.tokens);
        let rows = all.iter().zip(&pass.positions).zip(&pass.slots);
        for ((&token, &position), &slot) in rows {
            assert!(token < VOCAB, "id {token} entered a pass");
            self.slots[slot as usize] = (token, position);
        }
        self.seen.clear();
        for span in &pass.spans {
            let end = span.context + span.len;
            let pages = &pass.pages[span.first_page..];
            let whole = tokens(&self.slots, pages, end, self.page_size);
            self.seen.extend((span.context..end).map(|t| whole[..=t].to_vec()));
        }
        self.features.clear();
        if !taps.is_empty() {
            self.features.extend(all.iter().map(|&token| token as f32));
        }
    }

    fn leaves(&self) -> Leaves {
        self.promises.leaves
    }

    fn leave(&mut self, pass: &Pass, taps: &[usize], draws: &[Draw]) -> Box<dyn Left> {
        let Leaves { blocks, rows } = self.promises.leaves;
        assert!(pass.spans.len() <= blocks && pass.rows() <= rows && pass.rows() == draws.len());
        let (whole, draws) = self.promises.settle(pass, draws, self.page_size);
        self.forward(&whole, taps);
        let choose = |(row, draw): (usize, &Draw)| {
            assert_eq!(self.seen[row].len(), draw.position as usize, "a draw for another position");
            next(self.seen[row].iter().copied(), draw.seed)
        };
        let chosen: Vec<u32> = draws.iter().enumerate().map(choose).collect();
        let block = |span: &Span| {
            let rows = span.start..span.start + span.len;
            let kept = accept(&whole.tokens[rows.clone()][1..], &chosen[rows.clone()]) + 1;
            (span.len - kept, chosen[span.start + kept - 1])
        };
        let mut both = self.promises.shared.lock().unwrap();
        both.blocks = whole.spans.iter().map(block).collect();
        both.left += 1;
        both.behind += pass.behind.len() as u64;
        Box::new(Chosen(chosen))
    }

    fn ahead(&self) -> usize {
        self.promises.most
    }

    fn features(&self) -> Features<'_> {
        Features::Host(&self.features)
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        let Choosing { rows, draws, shapes, kept } = *rows;
        self.asked = rows.to_vec();
        self.kept = kept.to_vec();
        for (((&row, draw), shape), out) in rows.iter().zip(draws).zip(shapes).zip(out) {
            let seen = &self.seen[row];
            assert_eq!(seen.len(), draw.position as usize, "the draw is for another position");
            *out = shaped(seen, draw.seed, *shape);
        }
    }

    fn log_probs(&self, index: usize, token: u32, top: usize) -> LogProbs {
        assert_eq!(self.kept[index], Kept::Logits, "whoever is asked again keeps its logits");
        opinion(&self.seen[self.asked[index]], token, top)
    }

    fn score(&mut self, rows: &[usize], tokens: &[u32], top: usize) -> Vec<LogProbs> {
        let rows = rows.iter().zip(tokens);
        rows.map(|(&row, &token)| opinion(&self.seen[row], token, top)).collect()
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
    promises: Promises,
    /// What was started, and for which places.
    started: Option<(Vec<usize>, Vec<Draft>)>,
}

impl ScriptDrafter {
    pub(crate) fn new(
        (slots, page_size): (usize, usize),
        block: usize,
        quality: Quality,
        promises: Promises,
    ) -> Self {
        let slots = vec![EMPTY; slots];
        ScriptDrafter { slots, page_size, block, quality, promises, started: None }
    }

    /// Rows as they are: those behind blocks begin where those end.
    fn settled<'r>(&self, rows: &[DraftRow<'r>]) -> Vec<DraftRow<'r>> {
        let mut rows = rows.to_vec();
        for row in &mut rows {
            let Some(block) = row.behind.take() else { continue };
            let (refused, anchor) = self.promises.block(block);
            (row.anchor, row.len) = (anchor, row.len - refused);
            row.draw.position -= refused as u32;
        }
        rows
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
    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        if let Some((places, made)) = self.started.take() {
            let as_started = rows.iter().map(|row| row.len).eq(places);
            assert!(as_started, "drafts were started for other places");
            return out.clone_from_slice(&made);
        }
        for (row, out) in rows.iter().zip(out) {
            assert!(row.behind.is_none(), "nobody waits for drafts behind what is not known");
            let mut context = tokens(&self.slots, row.pages, row.len, self.page_size);
            context.push(row.anchor);
            for j in 1..row.width {
                let after = &context[row.len + 1..];
                let own = row.shaper.map(|shaper| shaper.shape(row.len + j, after));
                let allowed = row.allowed.filter(|_| j == 1);
                let own = Shape { allowed, ..own.unwrap_or_default() };
                let right = shaped(&context, row.draw.seed, own);
                let draw = next([row.request as u32, (row.len + j) as u32].into_iter(), 1);
                let token = match self.quality {
                    Quality::Perfect => right,
                    Quality::Random if draw.is_multiple_of(2) => right,
                    Quality::Random => draw,
                    Quality::Wrong => (right + 1) % VOCAB,
                };
                context.push(token);
                // Whether it is sure has nothing to do with whether it is right.
                out.push(token, (draw % 17) as f32 / 16.0);
            }
        }
    }

    fn follows(&self) -> Follows {
        self.promises.follows
    }

    fn start(&mut self, rows: &[DraftRow<'_>]) {
        let behind = rows.iter().filter(|row| row.behind.is_some()).count();
        self.promises.shared.lock().unwrap().started += behind as u64;
        let rows = self.settled(rows);
        let mut made = vec![Draft::default(); rows.len()];
        self.propose(&rows, &mut made);
        self.started = Some((rows.iter().map(|row| row.len).collect(), made));
    }

    fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
        let mut made = vec![Draft::default(); rows.len()];
        self.propose(&self.settled(rows), &mut made);
        let tokens = made.iter().flat_map(|draft| &draft.tokens);
        self.promises.shared.lock().unwrap().tokens = tokens.copied().collect();
        let mut numbers = VOCAB..;
        let some = |draft: &Draft| numbers.by_ref().take(draft.tokens.len()).collect();
        let stand_ins = made.iter().map(some).collect();
        Some(Promise::new(stand_ins, move || made))
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        for ((&token, &position), &slot) in features.host().iter().zip(positions).zip(slots) {
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
