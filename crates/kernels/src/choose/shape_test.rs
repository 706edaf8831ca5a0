//! Shapes against their definition in f64, what is left when everything is ruled out, and their
//! independence of other rows, threads and instruction sets.

use super::*;
use crate::random::Random;
use std::collections::{HashMap, HashSet};

const PLAIN: Draw =
    Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };

/// What a [`Shape`] borrows.
struct Parts {
    repetition: f32,
    frequency: f32,
    presence: f32,
    prompt: Vec<u32>,
    output: Vec<u32>,
    after: Vec<u32>,
    counts: Counts,
    additions: Vec<(u32, f32)>,
    allowed: Option<Vec<u32>>,
}

impl Parts {
    fn random(random: &mut Random, vocab: usize) -> Parts {
        let ids = |random: &mut Random, most: usize| -> Vec<u32> {
            // Few different ones, so that they repeat.
            let among = 1 + random.below(vocab.min(12));
            (0..random.below(most)).map(|_| random.below(among) as u32).collect()
        };
        let (prompt, output, after) = (ids(random, 20), ids(random, 20), ids(random, 8));
        let mut counts = Counts::new(&prompt, &output[..output.len() / 2]);
        output[output.len() / 2..].iter().for_each(|&token| counts.push(token));
        let addition = |random: &mut Random| {
            let amount = match random.below(4) {
                0 => f32::NEG_INFINITY,
                _ => random.uniform(-100.0, 100.0),
            };
            // Some are of tokens that there are not.
            (random.below(vocab + 3) as u32, amount)
        };
        let additions = (0..random.below(6)).map(|_| addition(random)).collect();
        let words = vocab.div_ceil(32) - random.below(2);
        let allowed = (random.below(2) == 0).then(|| {
            (0..words).map(|_| [0, u32::MAX, random.bits() as u32][random.below(3)]).collect()
        });
        Parts {
            repetition: [1.0, 1.3, 0.7][random.below(3)],
            frequency: [0.0, 0.6, -2.0][random.below(3)],
            presence: [0.0, 1.5, -0.3][random.below(3)],
            prompt,
            output,
            after,
            counts,
            additions,
            allowed,
        }
    }

    fn shape(&self) -> Shape<'_> {
        let penalties = Penalties {
            repetition: self.repetition,
            frequency: self.frequency,
            presence: self.presence,
            counts: &self.counts,
            after: &self.after,
        };
        let (additions, allowed) = (&self.additions[..], self.allowed.as_deref());
        Shape { penalties: Some(penalties), additions, allowed }
    }

    /// The logit of `token`, by the definition, and how much was added up for it.
    fn reference(&self, token: u32, logit: f32) -> (f64, f64) {
        let output: Vec<u32> = [&self.output[..], &self.after].concat();
        let count = output.iter().filter(|&&other| other == token).count() as f64;
        let mut x = f64::from(logit);
        if count > 0.0 || self.prompt.contains(&token) {
            let factor = f64::from(self.repetition);
            x = if x > 0.0 { x / factor } else { x * factor };
        }
        let mut terms = vec![f64::from(-self.frequency) * count];
        terms.push(if count > 0.0 { f64::from(-self.presence) } else { 0.0 });
        terms.extend(self.additions.iter().filter(|a| a.0 == token).map(|a| f64::from(a.1)));
        let size = x.abs() + terms.iter().map(|t| t.abs()).sum::<f64>();
        let word = |mask: &Vec<u32>| mask.get(token as usize / 32).copied().unwrap_or(0);
        let allowed = self.allowed.as_ref().is_none_or(|m| word(m) >> (token % 32) & 1 == 1);
        if !allowed || logit == f32::NEG_INFINITY {
            return (f64::NEG_INFINITY, 0.0);
        }
        (x + terms.iter().sum::<f64>(), size)
    }
}

fn shaped(row: &[f32], shape: &Shape<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; row.len()];
    shape.apply(row, &mut out);
    out
}

fn choose_one(row: &[f32], draw: Draw, shape: Shape<'_>) -> u32 {
    let mut out = [u32::MAX];
    choose(&Cpu::new(1), row, row.len(), row.len(), &[draw], &[shape], &mut out);
    out[0]
}

/// At most a dozen operations, each of which rounds by half a unit in the last place of no more
/// than all terms together.
#[test]
fn logits_are_shaped_as_defined() {
    let mut random = Random::fresh();
    for _ in 0..400 {
        let vocab = [1, 31, 32, 33, 64, 300][random.below(6)];
        let mut row = random.floats(vocab, 12.0);
        row[random.below(vocab)] = f32::NEG_INFINITY;
        let parts = Parts::random(&mut random, vocab);
        for (token, got) in shaped(&row, &parts.shape()).into_iter().enumerate() {
            let (expected, size) = parts.reference(token as u32, row[token]);
            let near = (f64::from(got) - expected).abs() <= size * 12.0 * f64::from(f32::EPSILON);
            assert!(near || f64::from(got) == expected, "token {token}: {got}, not {expected}");
        }
    }
}

/// The choice is the one of a row whose logits were the shaped ones.
#[test]
fn the_choice_is_made_of_the_shaped_logits() {
    let mut random = Random::fresh();
    for _ in 0..400 {
        let vocab = [2, 33, 64, 1000][random.below(4)];
        let mut row = random.floats(vocab, 6.0);
        row[random.below(vocab)] = f32::NAN;
        let parts = Parts::random(&mut random, vocab);
        let draw = Draw {
            temperature: [0.0, 0.7, 1.0][random.below(3)],
            top_k: [0, 1, 20][random.below(3)],
            top_p: [1.0, 0.9][random.below(2)],
            min_p: [0.0, 0.05][random.below(2)],
            seed: random.bits(),
            position: random.below(1000) as u32,
        };
        let row_shaped = shaped(&row, &parts.shape());
        let got = choose_one(&row, draw, parts.shape());
        if row_shaped.iter().any(|&x| x > f32::NEG_INFINITY) {
            assert_eq!(got, choose_one(&row_shaped, draw, Shape::default()), "{draw:?}");
            assert!(row_shaped[got as usize] > f32::NEG_INFINITY, "{got} is ruled out");
        }
    }
}

#[test]
fn a_row_with_a_shape_does_not_depend_on_rows_threads_or_instructions() {
    let mut random = Random::fresh();
    let (vocab, allowed, rows) = (33_000, 32_950, 5);
    let logits = random.floats(rows * vocab, 6.0);
    let parts: Vec<Parts> = (0..rows).map(|_| Parts::random(&mut random, allowed)).collect();
    // Rows without a shape between those that have one.
    let shape = |i: usize| if i.is_multiple_of(2) { parts[i].shape() } else { Shape::default() };
    let shapes: Vec<Shape<'_>> = (0..rows).map(shape).collect();
    let draw = |i: usize| Draw { temperature: i as f32 / 2.0, seed: i as u64, ..PLAIN };
    let draws: Vec<Draw> = (0..rows).map(draw).collect();
    let row = |i: usize| &logits[i * vocab..][..allowed];
    let alone: Vec<u32> = (0..rows).map(|i| choose_one(row(i), draws[i], shapes[i])).collect();
    let launch = Rows { logits: &logits, vocab, allowed };
    for threads in 1..=3 {
        for level in Level::available() {
            let mut out = vec![0; rows];
            cpu::choose(&Cpu::new(threads), level, (&launch, None), &draws, &shapes, &mut out);
            assert_eq!(out, alone, "{threads} threads, {level:?}");
        }
    }
}

#[test]
fn a_mask_is_kept_to_whatever_the_logits_are() {
    let mask = [0, 0b1010_0000];
    let only = Shape { allowed: Some(&mask), ..Shape::default() };
    let mut row = vec![50.0; 100];
    for temperature in [0.0, 1.0, 100.0] {
        for position in 0..100 {
            let draw = Draw { temperature, position, ..PLAIN };
            let chosen = choose_one(&row, draw, only);
            assert!(chosen == 37 || chosen == 39, "{chosen}");
            // Where the model rules out all that the mask has, or an addition does.
            let ruled_out = [(37, f32::NEG_INFINITY), (39, f32::NEG_INFINITY)];
            assert_eq!(choose_one(&row, draw, Shape { additions: &ruled_out, ..only }), 37);
            for none in [f32::NEG_INFINITY, f32::NAN] {
                assert_eq!(choose_one(&[none; 100], draw, only), 37);
            }
        }
    }
    row[39] = 51.0;
    assert_eq!(choose_one(&row, PLAIN, only), 39);
    // Bit 39 is no token of a row of 38.
    row[37] = f32::NAN;
    assert_eq!(choose_one(&row[..38], PLAIN, only), 37);
}

#[test]
fn where_nothing_is_allowed_the_choice_is_0() {
    let row = vec![1.0; 70];
    let beyond = [0, 0, 0, 1];
    for mask in [&[][..], &[0; 3], &beyond] {
        for temperature in [0.0, 1.0] {
            let draw = Draw { temperature, ..PLAIN };
            assert_eq!(
                choose_one(&row, draw, Shape { allowed: Some(mask), ..Default::default() }),
                0
            );
        }
    }
    let all: Vec<(u32, f32)> = (0..70).map(|token| (token, f32::NEG_INFINITY)).collect();
    assert_eq!(choose_one(&row, PLAIN, Shape { additions: &all, ..Default::default() }), 0);
}

#[test]
fn counts_tell_prompt_from_output() {
    let mut random = Random::fresh();
    for _ in 0..100 {
        let ids = |random: &mut Random| -> Vec<u32> {
            (0..random.below(30)).map(|_| random.below(9) as u32).collect()
        };
        let (prompt, output) = (ids(&mut random), ids(&mut random));
        let told = random.below(output.len() + 1);
        let mut counts = Counts::new(&prompt, &output[..told]);
        output[told..].iter().for_each(|&token| counts.push(token));
        assert_eq!(counts, Counts::new(&prompt, &output));
        let mut expected: HashMap<u32, u32> = prompt.iter().map(|&token| (token, 0)).collect();
        output.iter().for_each(|&token| *expected.entry(token).or_default() += 1);
        let seen: HashSet<u32> = prompt.iter().chain(&output).copied().collect();
        for token in 0..9 {
            assert_eq!(counts.of(token), expected.get(&token).copied());
            assert_eq!(counts.of(token).is_some(), seen.contains(&token));
        }
    }
}

/// What others got wrong: penalties that follow every token of a block, the prompt in the repetition
/// penalty alone.
#[test]
fn penalties_follow_every_token() {
    let row = [-10.0, 5.0, 4.0, -10.0];
    let generate = |(repetition, frequency, presence): (f32, f32, f32), prompt: &[u32], length| {
        let (counts, mut said) = (Counts::new(prompt, &[]), Vec::new());
        for _ in 0..length {
            let after = &said[..];
            let penalties = Penalties { repetition, frequency, presence, counts: &counts, after };
            let shape = Shape { penalties: Some(penalties), ..Shape::default() };
            said.push(choose_one(&row, PLAIN, shape));
        }
        said
    };
    assert_eq!(generate((1.0, 0.6, 0.0), &[], 8), [1, 1, 2, 1, 2, 1, 2, 1]);
    assert_eq!(generate((1.0, 0.0, 1.5), &[1; 3], 4), [1, 2, 1, 1]);
    assert_eq!(generate((1.5, 0.0, 0.0), &[1; 3], 4), [2, 1, 1, 1]);
}
