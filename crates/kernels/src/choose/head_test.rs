//! Choices of a head beside those from its logits, which are looked at as a whole.

use super::confidence::{Weigh, Weight as Weighed, share};
use super::contest::{Contest, Ids, Leader};
use super::*;
use crate::format::{Format, quantize_q8_0};
use crate::gemm::{Product, RowOrder, Scratch, Weight, gemm};
use crate::random::Random;

/// A head, the inputs of some rows, and their logits.
struct Case {
    weight: Weight,
    outputs: usize,
    x: Vec<f32>,
    rows: usize,
    logits: Vec<f32>,
}

const K: usize = 32;

impl Case {
    /// `whole`: of few values, so that many logits are equal.
    fn new(random: &mut Random, outputs: usize, rows: usize, whole: Values) -> Case {
        let scale = [0.3, 1.5, 6.0][random.below(3)];
        let mut values = |len| {
            let values = random.floats(len, scale).into_iter();
            let few = |value: f32| if whole == Values::Few { value.round() } else { value };
            values.map(few).collect::<Vec<f32>>()
        };
        // A few outputs more than are asked for.
        let (stored, mut x) = (values((outputs + 3) * K), values(rows * K));
        let bytes = stored.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (format, bytes) = match random.below(3) {
            0 => (Format::Q8_0, quantize_q8_0(&stored)),
            1 => {
                let high = |value: &f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
                (Format::BF16, stored.iter().flat_map(high).collect())
            }
            _ => (Format::F32, bytes),
        };
        // Rows of NaN, of infinities, and of equal logits.
        match random.below(4) {
            0 => x[..K].fill(f32::NAN),
            1 => x[0] = [f32::INFINITY, f32::NEG_INFINITY, 3e38][random.below(3)],
            2 => x[..K].fill(0.0),
            _ => {}
        }
        let cpu = Cpu::new(1);
        let weight = Weight::pack(&cpu, format, outputs + 3, K, RowOrder::Plain, &bytes);
        let mut y = vec![0.0; rows * (outputs + 3)];
        let product = Product::new(&weight, &mut y);
        gemm(&cpu, &mut Scratch::default(), &x, rows, &mut [product]);
        let logits = y.chunks(outputs + 3).flat_map(|row| &row[..outputs]).copied().collect();
        Case { weight, outputs, x, rows, logits }
    }

    fn make(&self, threads: usize, outputs: Outputs<'_>, asked: &Asked<'_>) -> Choices {
        let mut choices = Choices::default();
        let (cpu, mut scratch) = (Cpu::new(threads), Scratch::default());
        choices.make(&cpu, &mut scratch, (&self.x, asked), (&self.weight, outputs));
        choices
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.outputs..][..self.outputs]
    }

    /// The logits where `ids` say.
    fn by_id(&self, ids: &[u32], all: usize) -> Vec<f32> {
        let mut by_id = vec![f32::NEG_INFINITY; self.rows * all];
        for (row, to) in by_id.chunks_exact_mut(all).enumerate() {
            ids.iter().zip(self.row(row)).for_each(|(&id, &logit)| to[id as usize] = logit);
        }
        by_id
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Values {
    Few,
    Any,
}

const TEMPERATURES: [f32; 9] = [0.0, 0.0, 1e-30, 0.01, 0.7, 1.0, 5.0, 100.0, f32::INFINITY];

fn draws(random: &mut Random, rows: usize) -> Vec<Draw> {
    let draw = |_| Draw {
        temperature: TEMPERATURES[random.below(TEMPERATURES.len())],
        top_k: [0, 0, 0, 7][random.below(4)],
        top_p: [1.0, 1.0, 1.0, 0.5][random.below(4)],
        min_p: [0.0, 0.0, 0.0, 0.1][random.below(4)],
        seed: random.bits(),
        position: random.below(1 << 20) as u32,
    };
    (0..rows).map(draw).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every choice is that of the same logits when all of them are there, whatever the threads and whatever else is asked;
/// and logits that are kept are those of the product.
#[test]
fn a_head_chooses_as_from_its_logits() {
    let mut random = Random::fresh();
    for round in 0..300 {
        let outputs = [1, 17, 64, 129, 640, 1300, 9000][random.below(7)];
        let values = [Values::Few, Values::Any][round % 2];
        let rows = 1 + random.below(19);
        let case = Case::new(&mut random, outputs, rows, values);
        let draws = draws(&mut random, rows);
        let additions = [(random.below(outputs) as u32, f32::NEG_INFINITY)];
        let shapes: Vec<Shape<'_>> = (0..rows)
            .map(|_| match random.below(4) {
                0 => Shape { additions: &additions, ..Shape::default() },
                _ => Shape::default(),
            })
            .collect();
        let kept: Vec<Kept> =
            (0..rows).map(|_| [Kept::Choice, Kept::Logits][random.below(2)]).collect();
        // All ids, or every third or so.
        let mut all = 0;
        let mut id = || {
            all += 1 + random.below(5) as u32;
            all - 1
        };
        let ids: Vec<u32> = (0..outputs).map(|_| id()).collect();
        let all = all as usize;
        let listed = case.by_id(&ids, all);
        let first = (Outputs::First(outputs), &case.logits, outputs);
        for (outputs, logits, width) in [first, (Outputs::Listed(&ids, all), &listed, all)] {
            for shapes in [&shapes[..], &[]] {
                let mut expected = vec![0; rows];
                choose(&Cpu::new(1), logits, width, width, &draws, shapes, &mut expected);
                for threads in 1..=3 {
                    let confidence = [Confidence::Told, Confidence::Untold][random.below(2)];
                    let asked = Asked { draws: &draws, shapes, kept: &kept, confidence };
                    let found = case.make(threads, outputs, &asked);
                    assert_eq!(found.ids(), expected, "{width} ids, {draws:?}");
                    let keeps = (0..rows).filter(|&row| kept[row] == Kept::Logits);
                    for row in keeps {
                        assert_eq!(bits(found.logits(row)), bits(case.row(row)));
                    }
                }
            }
        }
    }
}

/// Many threads have few columns each, and rows that grow towards their end beat one best token after the other.
#[test]
fn rows_that_grow_are_chosen_from_as_any() {
    let mut random = Random::fresh();
    let (outputs, rows) = (20_000, 3);
    for step in [1e-3, 1e-5, 1e-7] {
        let stored: Vec<f32> =
            (0..outputs).flat_map(|i| [i as f32 * step].into_iter().chain([0.0; K - 1])).collect();
        let bytes: Vec<u8> = stored.iter().flat_map(|value| value.to_le_bytes()).collect();
        let cpu = Cpu::new(1);
        let weight = Weight::pack(&cpu, Format::F32, outputs, K, RowOrder::Plain, &bytes);
        let x = vec![1.0; rows * K];
        let logits: Vec<f32> = stored.chunks(K).map(|row| row[0]).collect();
        let case = Case { weight, outputs, x, rows, logits: logits.repeat(rows) };
        for temperature in [1e-30, 1e-4, 1e-3, 0.7, 100.0, 1e30] {
            let plain = Draw { top_k: 0, top_p: 1.0, min_p: 0.0, ..draws(&mut random, 1)[0] };
            let draws: Vec<Draw> =
                (0..rows as u32).map(|position| Draw { position, temperature, ..plain }).collect();
            let mut expected = vec![0; rows];
            choose(&cpu, &case.logits, outputs, outputs, &draws, &[], &mut expected);
            for threads in [1, 2, 16] {
                let confidence = Confidence::Untold;
                let asked = Asked { draws: &draws, shapes: &[], kept: &[], confidence };
                let found = case.make(threads, Outputs::First(outputs), &asked);
                assert_eq!(found.ids(), expected, "{threads} threads, {draws:?}");
            }
        }
    }
}

/// Sums of 128 terms in lanes of `f32` that are added up in `f64` stray by parts of 10⁻⁷, as the exponentials do.
#[test]
fn confidences_are_shares_whatever_the_threads() {
    let mut random = Random::fresh();
    for outputs in [1, 17, 129, 5000, 30_000] {
        let rows = 1 + random.below(9);
        let case = Case::new(&mut random, outputs, rows, Values::Any);
        let draws = draws(&mut random, rows);
        let additions = [(random.below(outputs) as u32, 1e4)];
        let shape = |_| match random.below(3) {
            0 => Shape { additions: &additions, ..Shape::default() },
            _ => Shape::default(),
        };
        let shapes: Vec<Shape<'_>> = (0..rows).map(shape).collect();
        let asked =
            Asked { draws: &draws, shapes: &shapes, kept: &[], confidence: Confidence::Told };
        let one = case.make(1, Outputs::First(outputs), &asked);
        for threads in 2..=5 {
            let found = case.make(threads, Outputs::First(outputs), &asked);
            assert_eq!(bits(found.confidences()), bits(one.confidences()), "{threads} threads");
        }
        for (row, (&id, &found)) in one.ids().iter().zip(one.confidences()).enumerate() {
            let logits = case.row(row);
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e = |logit: f32| (f64::from(logit) - f64::from(largest)).exp();
            let terms = logits.iter().map(|&logit| if logit.is_nan() { 0.0 } else { e(logit) });
            let own = logits[id as usize];
            let exact = if largest.is_finite() && own.is_finite() {
                e(own) / terms.sum::<f64>()
            } else {
                0.0
            };
            let error = (f64::from(found) - exact).abs();
            assert!(error <= 1e-6 * exact + 1e-37, "{found} for {exact}");
        }
    }
}

/// A mask that leaves no listed id leaves the choice to itself, and nobody is sure of it.
#[test]
fn what_is_not_listed_has_no_confidence() {
    let mut random = Random::fresh();
    let case = Case::new(&mut random, 100, 2, Values::Any);
    let ids: Vec<u32> = (0..100).map(|i| 2 * i).collect();
    let greedy = Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };
    let shape = Shape { allowed: Some(&[0, 1 << 5]), ..Shape::default() };
    let asked = Asked {
        draws: &[greedy; 2],
        shapes: &[Shape::default(), shape],
        kept: &[],
        confidence: Confidence::Told,
    };
    let found = case.make(2, Outputs::Listed(&ids, 200), &asked);
    assert_eq!((found.ids()[1], found.confidences()[1]), (37, 0.0));
}

/// What is listed is drawn, and what passes is weighed, with the same result by every instruction set.
#[test]
fn every_level_finds_the_same() {
    let mut random = Random::fresh();
    for count in [1, 63, 1000, 5000] {
        let scale = [3.0, 60.0][random.below(2)];
        let logits = random.floats(count, scale);
        let ids: Vec<u32> = (0..count as u32).map(|i| 3 * i + (i & 1)).collect();
        let draw =
            Draw { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 9, position: 2 };
        let mut by_id = vec![f32::NEG_INFINITY; 3 * count + 1];
        ids.iter().zip(&logits).for_each(|(&id, &logit)| by_id[id as usize] = logit);
        let mut expected = [0];
        choose(&Cpu::new(1), &by_id, by_id.len(), by_id.len(), &[draw], &[], &mut expected);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let units = count.div_ceil(crate::gemm::UNIT);
        let found = Level::available().map(|level| {
            let (mut contest, leader) = (Contest::new(), Leader::new());
            contest.favour(&draw, (ids[0], logits[0]));
            contest.follow(level, &leader, (&draw, &logits, Ids::Listed(&ids)));
            assert_eq!(Contest::winner([&contest], largest, &draw).0, expected[0], "{level:?}");
            let mut weights = vec![Weighed::default(); units];
            level.dispatch(Weigh { logits: &logits, out: &mut weights });
            share(level, &weights, largest, logits[0])
        });
        let found: Vec<f32> = found.collect();
        assert!(found.iter().all(|share| share.to_bits() == found[0].to_bits()), "{found:?}");
    }
}
