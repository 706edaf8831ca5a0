//! The decoder of a CUDA card, on a card: against Hugging Face's logits on tiny checkpoints of every
//! family, and the independence of a row's bits from how the rows come. Without a card each test fails
//! and says what is missing. They read `fixtures/` from the working directory, or from where they were
//! built.

use device::Cpu;
use kernels::accept::accept;
use kernels::choose::{Draw, confidences};
use model::checkpoint::Checkpoint;
use model::cuda::{
    Capacity, Card, CardModels, CardPair, Found, Ids, JobTiming, Origin, SLAB, Taps,
};
use model::dflash_config::DflashConfig;
use model::pass::{Pass, Start, slot};
use serde::Deserialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

const PAGE: usize = 16;
const PAGES: usize = 16;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    positions: Positions,
}

#[derive(Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    last_logits: Vec<f32>,
}

/// The most likely tokens after every position of one prompt.
#[derive(Deserialize)]
struct Positions {
    prompt: usize,
    top_ids: Vec<Vec<usize>>,
    top_logits: Vec<Vec<f32>>,
}

fn fixture(name: &str) -> PathBuf {
    let here = Path::new("fixtures/models");
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    if here.is_dir() { here.join(name) } else { built.join(name) }
}

fn golden(file: &str) -> Golden {
    let path = fixture(file);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("a golden file")
}

/// A model on a card with one sequence's memory.
struct Runner {
    pair: CardPair,
    vocab: usize,
    layers: usize,
    pages: Vec<u32>,
}

impl Runner {
    fn open(name: &str) -> Runner {
        Runner::with(name, None)
    }

    /// A target, perhaps with a drafter, which proposes the lower half of the ids.
    fn with(name: &str, draft: Option<&str>) -> Runner {
        let path = fixture(name);
        let files = Checkpoint::open(&path).expect("the checkpoint opens");
        let cache = Some(std::env::temp_dir().join("slipstream-kernel-tests"));
        let card = Card::open(0, cache, JobTiming::Off)
            .unwrap_or_else(|error| panic!("this needs a card: {error}"));
        let drafter =
            draft.map(|name| Checkpoint::open_drafter(&fixture(name)).expect("a drafter"));
        let read =
            |of: &Checkpoint| DflashConfig::read(of, files.config(), None).expect("its shape");
        let configs = (files.config().clone(), drafter.as_ref().map(read));
        let (vocab, layers) = (configs.0.vocab, configs.0.layers);
        let block = configs.1.as_ref().map_or(1, |drafter| drafter.block);
        let origin = Origin::Files(&files, drafter.as_ref());
        let models = CardModels::load(&Cpu::new(2), card, configs, [&*path, &*path], &origin)
            .expect("the weights load");
        assert_eq!(files.unused(), Vec::<String>::new(), "every tensor has a use");
        let pair = models.with_memory(&Capacity {
            pages: PAGES,
            page_size: PAGE,
            rows: 128,
            requests: 8,
            context: PAGES * PAGE,
            block,
            allowed: vocab,
            proposed: vocab / 2,
        });
        // Pages out of order: only the page table knows where a token lies.
        let pages = (0..PAGES as u32).rev().collect();
        Runner { pair, vocab, layers, pages }
    }

    /// Computes `ids` on top of `context` tokens and returns the logits of every row.
    fn logits(&mut self, ids: &[u32], context: usize) -> Vec<Vec<f32>> {
        let mut pass = Pass::default();
        pass.push(ids, context, &self.pages, PAGE);
        self.pair.forward(&pass, Taps::Drop);
        let rows: Vec<usize> = (0..ids.len()).collect();
        let some = rows.chunks(SLAB).map(|rows| self.pair.logits(rows, Ids::All));
        let all = some.collect::<Vec<_>>().concat();
        all.chunks_exact(self.vocab).map(<[f32]>::to_vec).collect()
    }

    /// Places where numbers are rounded to bf16 on the way to a logit, each by one part in 2⁹ at most: a
    /// layer's weights and inputs of its four products, q, k and v, and weights of attention; the head's
    /// weight and input.
    fn roundings(&self) -> f32 {
        (12 * self.layers + 2) as f32
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |a: f32, b| a.max(b.abs()))
}

fn argmax(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b])).expect("logits")
}

/// How far logits are from the reference's, relative to the largest.
#[derive(Default)]
struct Apart(Vec<f32>);

impl Apart {
    fn add(&mut self, got: f32, want: f32, largest: f32) {
        self.0.push((got - want).abs() / largest);
    }

    /// Errors of so many roundings never add up to more than their sum, and in the mean to its root.
    fn check(&self, path: &str, roundings: f32) {
        let (most, usual) = (roundings / 512.0, roundings.sqrt() / 512.0);
        let worst = self.0.iter().fold(0.0, |a: f32, &b| a.max(b));
        let mean = self.0.iter().sum::<f32>() / self.0.len() as f32;
        println!(
            "{path}: logits apart, of the largest: mean {mean:.4} ({usual:.4} allowed), most \
             {worst:.4} ({most:.4} allowed)"
        );
        let within = |apart: &f32| *apart <= most;
        assert!(self.0.iter().all(within) && mean <= usual, "{path}: too far apart");
    }
}

/// Logits of prompts of 1 to 100 tokens, and the best token where the reference is sure of it.
fn check(path: &str, golden_file: &str) {
    let (golden, mut runner) = (golden(golden_file), Runner::open(path));
    let (roundings, mut apart, mut sure) = (runner.roundings(), Apart::default(), 0);
    for prompt in &golden.prompts {
        let row = runner.logits(&prompt.ids, 0).pop().expect("one row a token");
        let scale = largest(&prompt.last_logits);
        assert_eq!(row.len(), prompt.last_logits.len());
        row.iter().zip(&prompt.last_logits).for_each(|(&got, &want)| apart.add(got, want, scale));
    }
    let positions = &golden.positions;
    let rows = runner.logits(&golden.prompts[positions.prompt].ids, 0);
    for ((row, ids), want) in rows.iter().zip(&positions.top_ids).zip(&positions.top_logits) {
        let scale = largest(want);
        ids.iter().zip(want).for_each(|(&id, &want)| apart.add(row[id], want, scale));
        // Each of the two may be as far from the reference as any.
        if want[0] - want[1] > 2.0 * roundings / 512.0 * scale {
            assert_eq!(argmax(row), ids[0], "{path}: the reference is sure");
            sure += 1;
        }
    }
    apart.check(path, roundings);
    assert!(sure > 0, "{path}: the reference is sure of some tokens");
}

#[test]
fn every_family_has_the_references_logits() {
    for family in ["llama3", "llama3-bf16", "mistral", "qwen2", "qwen3"] {
        check(family, &format!("{family}/golden.json"));
    }
}

#[test]
fn block_formats_and_llamas_row_order_are_put_right() {
    check("llama3.gguf", "llama3/golden.json");
    for name in ["llama3-q8_0", "llama3-q4_0", "qwen2"] {
        check(&format!("{name}.gguf"), &format!("{name}.golden.json"));
    }
}

/// A row's bits are the same alone, in chunks of any size, and beside other requests.
#[test]
fn a_row_does_not_depend_on_its_pass() {
    for family in ["mistral", "qwen2", "qwen3"] {
        let mut runner = Runner::open(family);
        let ids: Vec<u32> = (0..100).map(|i| i * 7919 % 250).collect();
        let whole = runner.logits(&ids, 0);
        for chunk in [1, 5, 16, 33, 64, 65] {
            let mut rows = Vec::new();
            for (i, part) in ids.chunks(chunk).enumerate() {
                rows.extend(runner.logits(part, i * chunk));
            }
            assert!(rows == whole, "{family}: chunks of {chunk}");
        }
        // The same prompt's end beside another request, on pages of its own.
        let mut pass = Pass::default();
        let (mine, other) = runner.pages.split_at(8);
        pass.push(&[3, 1, 4, 1, 5], 0, other, PAGE);
        pass.push(&ids[90..], 90, mine, PAGE);
        runner.pair.forward(&pass, Taps::Drop);
        let rows: Vec<usize> = (5..15).collect();
        let beside = runner.pair.logits(&rows, Ids::All);
        assert!(beside == whole[90..].concat(), "{family}: beside another");
    }
}

/// How a row draws that is drafted for `position`.
fn draw(temperature: f32, position: u32) -> Draw {
    Draw { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 11, position }
}

/// Drafts of blocks behind sequences of these lengths, one request each, on top of what was absorbed: of those of
/// their rows that are asked for.
fn drafted(
    runner: &mut Runner,
    blocks: &[(usize, u32, &[u32])],
    asked: Range<usize>,
    temperature: f32,
) -> Found {
    let (mut pass, mut draws) = (Pass::default(), Vec::new());
    for &(len, anchor, pages) in blocks {
        let tokens = [anchor, 3, 3, 3, 3, 3, 3, 3];
        pass.push_block(&tokens, len, pages);
        draws.extend((len..len + tokens.len()).map(|at| draw(temperature, at as u32)));
    }
    let rows: Vec<usize> = asked.collect();
    let draws: Vec<Draw> = rows.iter().map(|&row| draws[row]).collect();
    runner.pair.draft(&pass, &rows, &draws)
}

/// A card is as sure of its drafts as the CPU is by the same logits, greedy, drawn or filtered; and a block
/// alone is as sure as beside another.
#[test]
fn a_drafter_is_as_sure_as_its_logits_say() {
    let mut runner = Runner::with("qwen3", Some("dflash"));
    let pages = runner.pages.clone();
    let (mine, others) = pages.split_at(8);
    for (pages, ids) in [(mine, 0..40u32), (others, 100..117)] {
        let mut pass = Pass::default();
        pass.push(&ids.collect::<Vec<_>>(), 0, pages, PAGE);
        runner.pair.forward(&pass, Taps::Keep);
        runner.pair.keep(0, &pass.positions, &pass.slots);
        runner.pair.settle();
    }
    let (proposed, rows) = (runner.vocab / 2, (0..8).collect::<Vec<usize>>());
    for temperature in [0.0, 0.8] {
        let alone = drafted(&mut runner, &[(40, 7, mine)], 0..8, temperature);
        let logits = runner.pair.logits(&rows, Ids::Proposed);
        let as_sure = |found: &Found, what: &str| {
            assert_eq!((found.tokens.len(), found.confidences.len()), (8, 8));
            let mut want = vec![f32::NAN; 8];
            confidences(&Cpu::new(1), &logits, proposed, &found.tokens, &mut want);
            for (got, want) in found.confidences.iter().zip(want) {
                // Both are sums of a few hundred floats, in other orders.
                assert!((got / want - 1.0).abs() < 1e-5, "{what}: {got} for {want}");
            }
        };
        as_sure(&alone, "alone");
        let filtered = |at| Draw { top_k: 5, min_p: 0.01, ..draw(temperature, at) };
        let draws: Vec<Draw> = (40..48).map(filtered).collect();
        as_sure(&runner.pair.filter(&rows, &draws, Ids::Proposed), "filtered");
        let beside = [(17, 5, others), (40, 7, mine)];
        let both = drafted(&mut runner, &beside, 0..16, temperature);
        let own = Found {
            tokens: both.tokens[8..].to_vec(),
            confidences: both.confidences[8..].to_vec(),
        };
        assert_eq!(own, alone, "T {temperature}");
        assert_ne!(both.confidences[..8], own.confidences[..], "other rows, other confidences");
        // More rows than a graph of few has, of which some are asked for.
        let crowd = vec![(40, 7, mine); 12];
        let some = drafted(&mut runner, &crowd, 90..93, temperature);
        assert_eq!(some.tokens, alone.tokens[2..5], "in a crowd");
        assert_eq!(some.confidences, alone.confidences[2..5], "in a crowd");
    }
    let draws: Vec<Draw> = (40..48).map(|at| draw(0.0, at)).collect();
    let chosen = runner.pair.choose(&rows, &draws);
    assert!(chosen.confidences.is_empty(), "nobody asks a target how sure it is");
}

/// The rows of a block that begins behind `len` tokens: its tokens and how what follows each is drawn.
fn block(tokens: &[u32], len: usize, pages: &[u32], temperature: f32) -> (Pass, Vec<Draw>) {
    let mut pass = Pass::default();
    pass.push(tokens, len, pages, PAGE);
    let draws = (len + 1..).take(tokens.len()).map(|at| draw(temperature, at as u32));
    (pass, draws.collect())
}

/// Drafts that nobody waited for are those that somebody would have waited for, and what the target makes of them
/// is the same, however it chooses; as often as it takes until a step is one graph, with what is absorbed before it.
#[test]
fn promised_drafts_are_verified_as_those_that_are_told() {
    const ROUNDS: usize = 270;
    let mut runner = Runner::with("qwen3", Some("dflash"));
    let pages = runner.pages.clone();
    let (prompt, _) = block(&(0..40).collect::<Vec<_>>(), 0, &pages, 0.0);
    runner.pair.forward(&prompt, Taps::Keep);
    runner.pair.keep(0, &prompt.positions, &prompt.slots);
    let rows: Vec<usize> = (0..8).collect();
    for temperature in [0.0, 0.8] {
        let told = drafted(&mut runner, &[(40, 7, &pages)], 1..8, temperature);
        let (pass, draws) = block(&[&[7], &told.tokens[..]].concat(), 40, &pages, temperature);
        runner.pair.forward(&pass, Taps::Keep);
        let chosen = runner.pair.choose(&rows, &draws);
        let logits = runner.pair.logits(&rows, Ids::All);
        // Every id passes it, so the choice is the same.
        let filtered: Vec<Draw> = draws.iter().map(|draw| Draw { min_p: 1e-30, ..*draw }).collect();

        let mut drafts = Pass::default();
        drafts.push_block(&[7, 3, 3, 3, 3, 3, 3, 3], 40, &pages);
        for round in 0..ROUNDS {
            runner.pair.keep(0, &pass.positions[..2], &pass.slots[..2]);
            let asked: Vec<Draw> = (41..48).map(|at| draw(temperature, at)).collect();
            let (stand_ins, promised) = runner.pair.promise(&drafts, &rows[1..], &asked);
            let (pass, _) = block(&[&[7], &stand_ins[..]].concat(), 40, &pages, temperature);
            runner.pair.forward(&pass, Taps::Keep);
            let again = match round % 10 {
                4 => runner.pair.filter(&rows, &filtered, Ids::All),
                _ => runner.pair.choose(&rows, &draws),
            };
            assert_eq!(again, chosen, "round {round}");
            if round % 10 == 7 {
                assert!(runner.pair.logits(&rows, Ids::All) == logits, "round {round}");
            }
            assert_eq!(*promised.found(), told, "round {round}");
        }
        assert!(runner.pair.logits(&rows, Ids::All) == logits, "T {temperature}");
    }
}

/// A sequence that is decoded: where it stands, and all that the target says of it.
struct Decoded<'p> {
    pages: &'p [u32],
    /// Tokens with KV, of which the anchor is none.
    len: usize,
    truth: Vec<u32>,
    temperature: f32,
}

impl Decoded<'_> {
    /// The token at a position behind the prompt's.
    fn at(&self, position: usize) -> u32 {
        self.truth[position - PROMPT]
    }

    /// Drafts of which so many are right.
    fn drafts(&self, right: usize, wrong: usize, vocab: usize) -> Vec<u32> {
        let drafts = (self.len + 1..).take(right + wrong).enumerate();
        let one = |(i, at)| {
            let token = self.at(at);
            if i < right { token } else { (token + 1) % vocab as u32 }
        };
        drafts.map(one).collect()
    }
}

const PROMPT: usize = 20;

/// What the target says behind a prompt, token by token, and what the drafter has to know of the prompt.
fn told<'p>(runner: &mut Runner, pages: &'p [u32], seed: u32, temperature: f32) -> Decoded<'p> {
    let ids: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 31 + seed * 7) % 250).collect();
    let (mut pass, mut draws) = block(&ids, 0, pages, temperature);
    let mut truth = Vec::new();
    while truth.len() + PROMPT < 8 * PAGE {
        runner.pair.forward(&pass, Taps::Drop);
        let (rows, asked) = ([pass.rows() - 1], [*draws.last().expect("a row")]);
        let next = runner.pair.choose(&rows, &asked).tokens[0];
        truth.push(next);
        (pass, draws) = block(&[next], PROMPT + truth.len() - 1, pages, temperature);
    }
    let (prompt, _) = block(&ids, 0, pages, temperature);
    runner.pair.forward(&prompt, Taps::Keep);
    runner.pair.keep(0, &prompt.positions, &prompt.slots);
    runner.pair.settle();
    Decoded { pages, len: PROMPT, truth, temperature }
}

/// Two sequences, and the block of each in the last step, with how many of its rows were refused.
struct Both<'p> {
    sequences: [Decoded<'p>; 2],
    behind: [Option<(usize, usize)>; 2],
}

impl Both<'_> {
    /// Where sequence `i` begins, and what is said of its first token: nothing that is true where nobody knows it.
    fn start(&self, i: usize) -> (Start, u32) {
        let of = &self.sequences[i];
        match self.behind[i] {
            Some((block, refused)) => (Start::Behind { block, most: of.len + refused }, 0),
            None => (Start::At(of.len), of.at(of.len)),
        }
    }

    /// How `count` tokens behind the first of a block are drawn that begins there.
    fn draws(&self, i: usize, start: Start, count: usize) -> impl Iterator<Item = Draw> {
        let temperature = self.sequences[i].temperature;
        (start.most() + 1..).take(count).map(move |at| draw(temperature, at as u32))
    }

    /// Blocks of three drafts for some sequences, so many times, as they are said and as they are, and their rows.
    fn drafting(&self, some: &[usize], times: usize) -> ([(Pass, Vec<Draw>); 2], Vec<usize>) {
        let (mut both, mut asked): ([(Pass, Vec<Draw>); 2], _) = Default::default();
        for &i in some.iter().cycle().take(times * some.len()) {
            let of = &self.sequences[i];
            let first = both[0].0.rows();
            Vec::extend(&mut asked, first + 1..first + 4);
            let ways = [self.start(i), (Start::At(of.len), of.at(of.len))];
            for ((pass, draws), (start, anchor)) in both.iter_mut().zip(ways) {
                pass.push_block(&[anchor, 3, 3, 3, 3, 3, 3, 3], start, of.pages);
                draws.extend(self.draws(i, start, 3));
            }
        }
        (both, asked)
    }

    /// A step of some sequences, with drafts of each.
    fn step(&self, some: &[usize], drafts: &[Vec<u32>]) -> (Pass, Vec<Draw>) {
        let (mut pass, mut draws) = (Pass::default(), vec![]);
        for (&i, drafts) in some.iter().zip(drafts) {
            let (start, anchor) = self.start(i);
            let tokens = [&[anchor], &drafts[..]].concat();
            pass.push(&tokens, start, self.sequences[i].pages, PAGE);
            draws.extend(self.draws(i, start, tokens.len()));
        }
        (pass, draws)
    }

    /// Checks what a step chose, and has the drafter take in all of it. How many drafts were accepted and refused.
    fn take(
        &mut self,
        pair: &mut CardPair,
        (some, pass): (&[usize], &Pass),
        (drafts, chosen): (&[Vec<u32>], &[u32]),
    ) -> (usize, usize) {
        let mut counts = (0, 0);
        self.behind = [None; 2];
        for (at, (&i, drafts)) in some.iter().zip(drafts).enumerate() {
            let (span, of) = (&pass.spans[at], &mut self.sequences[i]);
            let choices = &chosen[span.start..][..span.len];
            let accepted = accept(drafts, choices);
            for (j, &choice) in choices[..=accepted].iter().enumerate() {
                assert_eq!(choice, of.at(of.len + 1 + j), "request {i} at {}", of.len);
            }
            let positions: Vec<u32> = (of.len as u32..).take(span.len).collect();
            let slot = |&t: &u32| slot(t as usize, of.pages, PAGE);
            let slots: Vec<u32> = positions.iter().map(slot).collect();
            pair.keep(span.start, &positions, &slots);
            let refused = span.len - 1 - accepted;
            counts = (counts.0 + accepted, counts.1 + refused);
            of.len += accepted + 1;
            self.behind[i] = Some((at, refused));
            if of.len + 12 > 8 * PAGE {
                (of.len, self.behind[i]) = (PROMPT, None);
            }
        }
        counts
    }
}

/// Steps that begin behind blocks of which nobody has read how much is kept say what somebody hears who waits for each
/// token: with drafts that are right, wrong or promised, of one request and of two, some of which come and go.
#[test]
fn steps_that_are_left_say_what_others_say() {
    const STEPS: usize = 90;
    let mut runner = Runner::with("qwen3", Some("dflash"));
    let (pages, vocab) = (runner.pages.clone(), runner.vocab);
    let (mine, others) = pages.split_at(8);
    let sequences = [told(&mut runner, mine, 1, 0.0), told(&mut runner, others, 2, 0.8)];
    let mut both = Both { sequences, behind: [None; 2] };
    let (mut kept, mut refused) = (0, 0);
    for step in 0..STEPS {
        let some = [[0, 1].as_slice(), &[1], &[0], &[1, 0]][step / 3 % 4];
        let mixed = |&i: &usize| both.sequences[i].drafts(step * 5 % 4, (step + i) % 3, vocab);
        let mut drafts: Vec<Vec<u32>> = some.iter().map(mixed).collect();
        let mut promised = None;
        if step % 4 == 1 {
            let ([(said, draws), (known, as_known)], asked) = both.drafting(some, 1);
            let want = runner.pair.draft(&known, &asked, &as_known);
            let (stand_ins, found) = runner.pair.promise(&said, &asked, &draws);
            drafts = stand_ins.chunks_exact(3).map(<[u32]>::to_vec).collect();
            promised = Some((found, want));
        }
        if step % 4 == 3 {
            // More rows than are drafted together, too.
            let ([(said, draws), (known, as_known)], asked) =
                both.drafting(some, [1, 7][step / 4 % 2]);
            let started = runner.pair.start(&said, &asked, &draws).found();
            assert_eq!(started, runner.pair.draft(&known, &asked, &as_known), "step {step}");
        }
        let (pass, draws) = both.step(some, &drafts);
        let chosen = runner.pair.leave(&pass, Taps::Keep, &draws).read();
        if let Some((found, want)) = promised {
            assert_eq!(*found.found(), want, "step {step}");
            drafts = want.tokens.chunks_exact(3).map(<[u32]>::to_vec).collect();
        }
        let counts = both.take(&mut runner.pair, (some, &pass), (&drafts, &chosen));
        (kept, refused) = (kept + counts.0, refused + counts.1);
    }
    assert!(kept > 30 && refused > 30, "{kept} drafts accepted, {refused} refused");
}
