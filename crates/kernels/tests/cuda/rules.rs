//! Choices with penalties, additions, masks and filters: the CPU's, for the same logits.

use crate::card;
use crate::card::{Buffer, Card, narrowed};
use crate::confidence::check;
use crate::gemm::Weight;
use crate::random::Random;
use device::Cpu;
use kernels::choose::cuda::{
    Choices, Confidences, Draws, Room, RuledRoom, Rules, Sampled, Written,
};
use kernels::choose::{Counts, Draw, Penalties, Shape, choose};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Products, Shape as Weights};
use std::ops::Range;

/// What came before in a sequence.
struct History {
    prompt: Vec<u32>,
    output: Vec<u32>,
}

impl History {
    fn random(random: &mut Random, vocab: usize) -> History {
        let mut some = |most: usize| -> Vec<u32> {
            (0..random.below(most)).map(|_| random.below(vocab) as u32).collect()
        };
        History { prompt: some(60), output: some(90) }
    }

    fn counts(&self) -> Counts {
        Counts::new(&self.prompt, &self.output)
    }
}

/// What is done to one row's logits, and the filters of its draw. Lists are places in those of a [`Case`].
#[derive(Clone, Debug, Default)]
struct Rule {
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    history: Option<usize>,
    after: Range<usize>,
    additions: Range<usize>,
    mask: Option<usize>,
}

/// A launch: the rows from `first` on of a product, each with a rule.
struct Case {
    vocab: usize,
    allowed: usize,
    first: usize,
    rules: Vec<Rule>,
    temperatures: Vec<f32>,
    seeds: Vec<u64>,
    histories: Vec<History>,
    after: Vec<u32>,
    additions: Vec<(u32, f32)>,
    masks: Vec<Vec<u32>>,
}

impl Case {
    fn random(random: &mut Random, (vocab, allowed): (usize, usize), rows: usize) -> Case {
        let words = allowed.div_ceil(32);
        let mut case = Case {
            vocab,
            allowed,
            first: 1,
            rules: Vec::new(),
            temperatures: (0..rows).map(|row| [1.0, 0.0, 0.3, 7.0][row % 4]).collect(),
            seeds: (0..rows).map(|_| random.bits()).collect(),
            histories: (0..3).map(|_| History::random(random, vocab)).collect(),
            after: (0..40).map(|_| random.below(vocab) as u32).collect(),
            additions: Vec::new(),
            // Everything, half, one token, nothing.
            masks: vec![vec![u32::MAX; words], Vec::new(), vec![0; words], vec![0; words]],
        };
        case.masks[1] = (0..words).map(|_| random.bits() as u32).collect();
        let one = random.below(allowed);
        case.masks[2][one / 32] |= 1 << (one % 32);
        for _ in 0..50 {
            let token = random.below(vocab.min(90) + 3) as u32;
            let more = [-f32::INFINITY, -2.0, 0.7, 3.0, 5.0][random.below(5)];
            case.additions.push((token, more));
        }
        case.rules = (0..rows).map(|_| case.rule(random)).collect();
        case
    }

    fn rule(&self, random: &mut Random) -> Rule {
        let mut pick = |of: &[f32]| of[random.below(of.len())];
        let mut rule = Rule {
            top_p: pick(&[1.0, 1.0, 0.95, 0.6, 0.1, 0.0]),
            min_p: pick(&[0.0, 0.0, 0.05, 0.5, 1.0]),
            repetition: pick(&[1.0, 1.3, 0.7]),
            frequency: pick(&[0.0, 0.8, -0.5]),
            presence: pick(&[0.0, 1.5, -0.3]),
            ..Rule::default()
        };
        rule.top_k = [0, 0, 1, 5, 50, 5000][random.below(6)];
        let mut some = |first: usize, most: usize| {
            let first = random.below(first);
            first..first + random.below(most)
        };
        (rule.after, rule.additions) = (some(20, 16), some(10, 40));
        if random.below(2) == 0 {
            rule.additions = 0..0;
        }
        rule.history = [None, Some(0), Some(1), Some(2)][random.below(4)];
        rule.mask = [None, None, Some(0), Some(1), Some(2), Some(3)][random.below(6)];
        rule
    }

    /// What is done to the logits of all rows, whose histories are counted.
    fn shapes<'c>(&'c self, counts: &'c [Counts]) -> Vec<Shape<'c>> {
        let shape = |rule: &Rule| Shape {
            penalties: rule.history.map(|history| Penalties {
                repetition: rule.repetition,
                frequency: rule.frequency,
                presence: rule.presence,
                counts: &counts[history],
                after: &self.after[rule.after.clone()],
            }),
            additions: &self.additions[rule.additions.clone()],
            allowed: rule.mask.map(|mask| &self.masks[mask][..]),
        };
        self.rules.iter().map(shape).collect()
    }

    /// How all rows draw, with `top_p` times a factor near 1.
    fn draws(&self, factor: f32) -> Vec<Draw> {
        let draw = |(row, rule): (usize, &Rule)| Draw {
            temperature: self.temperatures[row],
            top_k: rule.top_k,
            top_p: if rule.top_p < 1.0 { rule.top_p * factor } else { 1.0 },
            min_p: rule.min_p,
            seed: self.seeds[row],
            position: row as u32 + 1,
        };
        self.rules.iter().enumerate().map(draw).collect()
    }

    fn counts(&self) -> Vec<Counts> {
        self.histories.iter().map(History::counts).collect()
    }

    /// The CPU's choices, with `top_p` times a factor near 1.
    fn on_cpu(&self, logits: &[f32], factor: f32) -> Vec<u32> {
        let (counts, draws) = (self.counts(), self.draws(factor));
        let (draws, shapes) = (&draws[self.first..], &self.shapes(&counts)[self.first..]);
        let mut out = vec![0; draws.len()];
        let logits = &logits[self.first * self.vocab..];
        choose(&Cpu::new(1), logits, self.vocab, self.allowed, draws, shapes, &mut out);
        out
    }

    /// The card's choices, and how likely each is by the logits as they are: choices are the same whether
    /// that is asked or not.
    fn on_card(&self, card: &Card, shape: Weights, pieces: &Buffer<f32>) -> (Vec<u32>, Vec<f32>) {
        let choices = Choices::load(&card.cuda).expect("the choices load");
        let (lane, rows) = (&card.lanes.forward, self.rules.len());
        let (first, allowed, chosen) = (self.first, self.allowed, rows - self.first);
        let counts = self.counts();
        let mut written = Written::new(allowed);
        let rules = self.draws(1.0).into_iter().zip(self.shapes(&counts));
        rules.for_each(|(draw, shape)| written.push(&draw, &shape));
        let (words, named) = (card.put(&written.words()), written.lists());
        let positions = card.put(&(0..rows as u32).collect::<Vec<_>>());
        let (temperatures, seeds) = (card.put(&self.temperatures), card.put(&self.seeds));
        let wanted = Choices::chunks(allowed) * chosen;
        let sizes = [wanted, Choices::shaped(allowed, chosen), 3 * chosen, 2 * wanted, chosen];
        let mut floats = sizes.map(|len| card.put(&vec![f32::NAN; len]));
        let mut best = [wanted, wanted, chosen, chosen].map(|len| card.put(&vec![u32::MAX; len]));
        let mut scores = card.put(&vec![f64::NAN; wanted]);
        let mut writings = floats.each_mut().map(|buffer| buffer.write(lane));
        let mut found = best.each_mut().map(|buffer| buffer.write(lane));
        lane.launch(
            "choose",
            (
                (lane.queue(), pieces.read(lane).view()),
                (words.read(lane).view(), positions.read(lane).view()),
                (temperatures.read(lane).view(), seeds.read(lane).view()),
                writings.iter_mut().map(|writing| writing.view()).collect::<Vec<_>>(),
                found.iter_mut().map(|writing| writing.view()).collect::<Vec<_>>(),
                scores.write(lane).view(),
            ),
            move |(
                (queue, at),
                (words, positions),
                (temperatures, seeds),
                floats,
                best,
                mut scores,
            )| {
                let rules = Rules::of(words, (rows, 0..rows), named);
                let draws =
                    Draws { temperatures, seeds, positions, shift: 1, sampled: Sampled::Some };
                let Ok([mut largest, mut logits, mut cuts, weights, out]) =
                    <[_; 5]>::try_from(floats)
                else {
                    panic!("five buffers")
                };
                let Ok([mut ids, mut drawn, plain, beside]) = <[_; 4]>::try_from(best) else {
                    panic!("four buffers")
                };
                let product = (Pieces { at, shape, rows: rows as u32 }, allowed);
                let sure = Some(Confidences { weights, out });
                for out in [(plain, None), (beside, sure)] {
                    let best = Room {
                        largest: largest.all(),
                        ids: ids.all(),
                        scores: scores.all(),
                        drawn: drawn.all(),
                    };
                    let room = RuledRoom { best, logits: logits.all(), cuts: cuts.all() };
                    choices.launch_ruled(queue, product, first, (draws, rules), room, out);
                }
            },
        );
        drop((writings, found));
        let [_, _, plain, beside] = best.each_ref().map(|best| card.get(best));
        assert_eq!(plain, beside, "with and without how likely they are");
        (plain, card.get(&floats[4]))
    }
}

#[test]
fn choices_with_rules_are_the_cpu_s() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    for sizes in [(1usize, 1), (130, 129), (3001, 3000), (20_000, 19_998), (49_152, 49_152)] {
        let vocab = sizes.0;
        // Rows of the weight that come again: every logit has equals.
        let rows = narrowed(&random.floats(vocab.div_ceil(3) * 64, 1.0));
        let plain: Vec<u16> = rows.iter().cycle().copied().take(vocab * 64).collect();
        let shape = Weights::new(vocab, 64, card.cuda.multiprocessors());
        let weight = Weight::new(&card, plain, shape);
        for rows in [9, 41, 90] {
            // Peaked rows, flat ones, and at last one that is no number.
            let mut x = narrowed(&random.floats(rows * 64, 0.6));
            let flat = narrowed(&random.floats(64, 0.01));
            x[2 * 64..3 * 64].copy_from_slice(&flat);
            x[(rows - 1) * 64..].fill(0x7fff);
            let case = Case::random(&mut random, sizes, rows);
            let logits = weight.times(&card, &products, &x);
            // Sums of weights are rounded: what lies on the boundary may be kept or not.
            let (less, more) = (case.on_cpu(&logits, 1.0 - 1e-5), case.on_cpu(&logits, 1.0 + 1e-5));
            let (got, sure) = case.on_card(&card, shape, &weight.pieces(&card, &products, &x));
            for (row, (&sure, &id)) in sure.iter().zip(&got).enumerate() {
                check(&logits[(row + 1) * vocab..][..sizes.1], (id, sure));
            }
            for (row, &id) in got.iter().enumerate() {
                assert!(
                    id == less[row] || id == more[row],
                    "row {row} of {rows}, {sizes:?}: {id}, not {} or {}: {:?} at {}",
                    less[row],
                    more[row],
                    case.rules[row + case.first],
                    case.temperatures[row + case.first]
                );
            }
        }
    }
}
