//! Choices with penalties, additions, masks and filters: the CPU's, for the same logits.

use crate::card;
use crate::card::{Buffer, Card, narrowed};
use crate::gemm::Weight;
use crate::random::Random;
use device::Cpu;
use kernels::choose::cuda::{Choices, Draws, Room, Rule, RuledRoom, Rules};
use kernels::choose::{Counts, Draw, Penalties, Shape, choose};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Products, Shape as Weights};

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

    fn table(&self, vocab: usize) -> Vec<u32> {
        let counts = Counts::new(&self.prompt, &self.output);
        (0..vocab as u32).map(|token| counts.of(token).map_or(0, |count| count + 1)).collect()
    }
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
        rule.table = [None, Some(0), Some(1), Some(2)][random.below(4)];
        if rule.table.is_some() {
            rule.after = (random.below(20) as u32, random.below(16) as u32);
        }
        if random.below(2) == 0 {
            rule.additions = (random.below(10) as u32, random.below(40) as u32);
        }
        rule.mask = [None, None, Some(0), Some(1), Some(2), Some(3)][random.below(6)];
        rule
    }

    /// The CPU's choices, with `top_p` times a factor near 1.
    fn on_cpu(&self, logits: &[f32], factor: f32) -> Vec<u32> {
        let counts: Vec<Counts> =
            self.histories.iter().map(|h| Counts::new(&h.prompt, &h.output)).collect();
        let list = |(first, len): (u32, u32)| first as usize..(first + len) as usize;
        let rows = self.first..self.rules.len();
        let shapes: Vec<Shape<'_>> = self.rules[rows.clone()]
            .iter()
            .map(|rule| Shape {
                penalties: rule.table.map(|table| Penalties {
                    repetition: rule.repetition,
                    frequency: rule.frequency,
                    presence: rule.presence,
                    counts: &counts[table as usize],
                    after: &self.after[list(rule.after)],
                }),
                additions: &self.additions[list(rule.additions)],
                allowed: rule.mask.map(|mask| &self.masks[mask as usize][..]),
            })
            .collect();
        let draws: Vec<Draw> = rows
            .map(|row| Draw {
                temperature: self.temperatures[row],
                top_k: self.rules[row].top_k,
                top_p: if self.rules[row].top_p < 1.0 {
                    self.rules[row].top_p * factor
                } else {
                    1.0
                },
                min_p: self.rules[row].min_p,
                seed: self.seeds[row],
                position: row as u32 + 1,
            })
            .collect();
        let mut out = vec![0; draws.len()];
        let logits = &logits[self.first * self.vocab..];
        choose(&Cpu::new(1), logits, self.vocab, self.allowed, &draws, &shapes, &mut out);
        out
    }

    fn on_card(&self, card: &Card, shape: Weights, pieces: &Buffer<f32>) -> Vec<u32> {
        let choices = Choices::load(&card.cuda).expect("the choices load");
        let (lane, rows) = (&card.lanes.forward, self.rules.len());
        let (first, allowed, chosen) = (self.first, self.allowed, rows - self.first);
        let words: Vec<u32> = self.rules.iter().flat_map(Rule::words).collect();
        let tables: Vec<u32> = self.histories.iter().flat_map(|h| h.table(self.vocab)).collect();
        let (ids, more): (Vec<u32>, Vec<f32>) = self.additions.iter().copied().unzip();
        let positions: Vec<u32> = (0..rows as u32).collect();
        let lists = [&words, &tables, &self.after, &ids, &self.masks.concat(), &positions]
            .map(|list| card.put(list));
        let (more, temperatures) = (card.put(&more), card.put(&self.temperatures));
        let seeds = card.put(&self.seeds);
        let wanted = Choices::chunks(allowed) * chosen;
        let mut floats = [wanted, Choices::shaped(allowed, chosen), 3 * chosen]
            .map(|len| card.put(&vec![f32::NAN; len]));
        let mut best = [wanted, wanted, chosen].map(|len| card.put(&vec![u32::MAX; len]));
        let mut scores = card.put(&vec![f64::NAN; wanted]);
        let readings = lists.each_ref().map(|list| list.read(lane));
        let mut writings = floats.each_mut().map(|buffer| buffer.write(lane));
        let mut found = best.each_mut().map(|buffer| buffer.write(lane));
        lane.launch(
            "choose",
            (
                (lane.queue(), pieces.read(lane).view()),
                readings.iter().map(|reading| reading.view()).collect::<Vec<_>>(),
                (more.read(lane).view(), temperatures.read(lane).view(), seeds.read(lane).view()),
                writings.iter_mut().map(|writing| writing.view()).collect::<Vec<_>>(),
                found.iter_mut().map(|writing| writing.view()).collect::<Vec<_>>(),
                scores.write(lane).view(),
            ),
            move |((queue, at), lists, (additions, temperatures, seeds), floats, best, scores)| {
                let [rows_of, tables, after, ids, masks, positions] = lists[..] else {
                    panic!("six lists")
                };
                let rules = Rules { rows: rows_of, tables, after, ids, additions, masks };
                let draws = Draws { temperatures, seeds, positions, shift: 1 };
                let Ok([largest, logits, cuts]) = <[_; 3]>::try_from(floats) else {
                    panic!("three buffers")
                };
                let Ok([ids, drawn, out]) = <[_; 3]>::try_from(best) else {
                    panic!("three buffers")
                };
                let best = Room { largest, ids, scores, drawn };
                let room = RuledRoom { best, logits, cuts };
                let pieces = Pieces { at, shape, rows: rows as u32 };
                choices.launch_ruled(queue, (pieces, allowed), first, (draws, rules), room, out);
            },
        );
        drop((readings, writings, found));
        card.get(&best[2])
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
            let got = case.on_card(&card, shape, &weight.pieces(&card, &products, &x));
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
