//! The choice against a plain f64 reference, its independence of everything but its own row, and
//! the statistics of the noise.

use super::*;
use crate::random::Random;

fn draw(temperature: f32, seed: u64, position: u32) -> Draw {
    Draw { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed, position }
}

fn choose_one(row: &[f32], draw: Draw) -> u32 {
    let mut out = [u32::MAX];
    choose(&Cpu::new(1), row, row.len(), row.len(), &[draw], &[], &mut out);
    out[0]
}

/// The definition: rank, filter, add noise to every token, take the largest.
fn reference(row: &[f32], draw: &Draw) -> u32 {
    let logit = |id: usize| if row[id].is_nan() { f32::NEG_INFINITY } else { row[id] };
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
    let largest = logit(ids[0]);
    if draw.temperature == 0.0 || largest.is_infinite() {
        return ids[0] as u32;
    }
    let score = |id: usize| f64::from((logit(id) - largest) * filter::inverse_temperature(draw));
    if draw.top_k > 0 {
        ids.truncate(draw.top_k as usize);
    }
    if draw.top_p < 1.0 {
        let total: f64 = ids.iter().map(|&id| score(id).exp()).sum();
        let mut sum = 0.0;
        let reach = |&id: &usize| {
            sum += score(id).exp();
            sum >= draw.top_p as f64 * total
        };
        let count = ids.iter().position(reach).map_or(ids.len(), |last| last + 1);
        ids.truncate(count);
    }
    ids.retain(|&id| score(id) >= (draw.min_p as f64).ln());
    let noisy = |id: usize| {
        let u = f64::from(uniform(draw.seed, draw.position, id as u32));
        score(id) - (-(-u).ln_1p()).ln()
    };
    ids.sort_unstable();
    let better = |a: usize, b: usize| if noisy(b) > noisy(a) { b } else { a };
    ids.into_iter().reduce(better).unwrap() as u32
}

fn random_draw(random: &mut Random) -> Draw {
    Draw {
        temperature: [0.0, 0.2, 0.7, 1.0, 3.0][random.below(5)],
        top_k: [0, 0, 1, 50, 300, 5000][random.below(6)],
        top_p: [1.0, 1.0, 0.95, 0.5, 1e-4][random.below(5)],
        min_p: [0.0, 0.0, 0.05, 0.3, 1.0][random.below(5)],
        seed: random.bits(),
        position: random.below(1 << 20) as u32,
    }
}

#[test]
fn matches_the_definition() {
    let mut random = Random::fresh();
    for round in 0..300 {
        let vocab = [1, 2, 63, 64, 65, 1000, 3001][random.below(7)];
        let spread = [0.5, 4.0, 12.0][random.below(3)];
        let mut row = random.floats(vocab, spread);
        if round % 3 == 0 {
            row.iter_mut().for_each(|x| *x = (*x * 2.0).round()); // ties
        }
        if round % 4 == 0 {
            for bad in [f32::NAN, f32::NEG_INFINITY, -0.0] {
                row[random.below(vocab)] = bad;
            }
        }
        let draw = random_draw(&mut random);
        assert_eq!(choose_one(&row, draw), reference(&row, &draw), "{draw:?}");
    }
}

#[test]
fn a_row_does_not_depend_on_rows_threads_or_instructions() {
    let mut random = Random::fresh();
    let (vocab, allowed, rows) = (49_152, 49_100, 5);
    let logits = random.floats(rows * vocab, 6.0);
    let draws: Vec<Draw> = (0..rows).map(|_| random_draw(&mut random)).collect();
    let alone: Vec<u32> = draws
        .iter()
        .zip(logits.chunks(vocab))
        .map(|(draw, row)| choose_one(&row[..allowed], *draw))
        .collect();
    let shape = Rows { logits: &logits, vocab, allowed };
    for threads in 1..=3 {
        for level in Level::available() {
            let mut out = vec![0; rows];
            cpu::choose(&Cpu::new(threads), level, (&shape, None), &draws, &[], &mut out);
            assert_eq!(out, alone, "{threads} threads, {level:?}");
            let one = Rows { logits: &logits[..vocab], vocab, allowed };
            cpu::choose(&Cpu::new(threads), level, (&one, None), &draws[..1], &[], &mut out[..1]);
            assert_eq!(out[0], alone[0], "{threads} threads, {level:?}, one row");
        }
    }
}

#[test]
fn greedy_takes_the_smallest_id_of_the_largest_and_never_nan() {
    let greedy = |row: &[f32]| choose_one(row, draw(0.0, 0, 0));
    let mut row = vec![0.5; 40_000];
    for id in [39_999, 20_000, 31_000] {
        row[id] = 2.0;
    }
    row[3] = f32::NAN;
    assert_eq!(greedy(&row), 20_000);
    let mut out = [0];
    choose(&Cpu::new(3), &row, row.len(), row.len(), &[draw(0.0, 0, 0)], &[], &mut out);
    assert_eq!(out, [20_000]);
    assert_eq!(greedy(&[f32::NAN, -1e30]), 1);
    assert_eq!(greedy(&[f32::NAN; 100]), 0);
    assert_eq!(greedy(&[f32::NEG_INFINITY; 100]), 0);
    assert_eq!(greedy(&[1.0, f32::INFINITY, f32::INFINITY]), 1);
    assert_eq!(choose_one(&[f32::NAN; 3], draw(1.0, 5, 5)), 0);
    assert_eq!(choose_one(&[1.0, f32::INFINITY], draw(1.0, 5, 5)), 1);
}

/// The four draws of a filter or temperature that leave only the likeliest token.
#[test]
fn filters_and_temperatures_that_amount_to_greedy() {
    let mut random = Random::fresh();
    for _ in 0..50 {
        let row = random.floats(1000, 4.0);
        let sampled = draw(1.0, random.bits(), random.below(100_000) as u32);
        let expected = choose_one(&row, Draw { temperature: 0.0, ..sampled });
        for draw in [
            Draw { top_k: 1, ..sampled },
            Draw { top_p: 1e-4, ..sampled },
            Draw { min_p: 1.0, ..sampled },
            Draw { temperature: 1e-6, ..sampled },
            Draw { temperature: f32::MIN_POSITIVE / 4.0, ..sampled },
        ] {
            assert_eq!(choose_one(&row, draw), expected, "{draw:?}");
        }
    }
}

#[test]
fn top_k_keeps_that_many_and_a_high_temperature_is_flat() {
    let flat = [0.0; 50];
    let distinct = |draw: &dyn Fn(u32) -> Draw, row: &[f32]| {
        (0..200).map(|p| choose_one(row, draw(p))).collect::<std::collections::HashSet<_>>()
    };
    // 200 draws of 50 equal tokens leave 0.9 of them out on average.
    let ids = distinct(&|p| Draw { top_k: 50, ..draw(1.0, 3, p) }, &flat);
    assert!(ids.len() >= 40, "{} ids", ids.len());
    let wide: Vec<f32> = (0..1000).map(|i| (i / 100) as f32 * 10.0).collect();
    let ids = distinct(&|p| Draw { top_k: 50, ..draw(1e9, 3, p) }, &wide);
    assert!(ids.len() >= 40 && ids.iter().all(|id| (900..950).contains(id)), "{ids:?}");
    let ids = distinct(&|p| draw(1e9, 3, p), &wide);
    assert!(ids.len() >= 150 && ids.iter().any(|&id| id < 300), "{} ids", ids.len());
}

/// Frequencies of a fixed distribution at two neighbouring positions, over many seeds: always the
/// same ones, since one in a thousand fresh sets would fail.
#[test]
fn frequencies_follow_the_target_and_positions_are_independent() {
    const RUNS: usize = 100_000;
    let target = [0.4f64, 0.3, 0.2, 0.1];
    let row = target.map(|p| p.ln() as f32);
    let rows = row.repeat(2 * RUNS);
    let draws: Vec<Draw> = (0..RUNS as u64)
        .flat_map(|seed| [1, 2].map(|position| draw(1.0, seed, position)))
        .collect();
    let mut out = vec![0; 2 * RUNS];
    choose(&Cpu::new(2), &rows, 4, 4, &draws, &[], &mut out);
    let mut counts = [[0.0f64; 4]; 4];
    for pair in out.chunks(2) {
        counts[pair[0] as usize][pair[1] as usize] += 1.0;
    }
    let n = RUNS as f64;
    let (mut first, mut second) = ([0.0; 4], [0.0; 4]);
    for a in 0..4 {
        for b in 0..4 {
            first[a] += counts[a][b];
            second[b] += counts[a][b];
        }
    }
    for (position, marginal) in [first, second].iter().enumerate() {
        for (p, count) in target.iter().zip(marginal) {
            let sigma = (n * p * (1.0 - p)).sqrt();
            assert!((count - n * p).abs() < 4.0 * sigma, "position {position}: {marginal:?}");
        }
    }
    let mut chi_square = 0.0;
    for a in 0..4 {
        for b in 0..4 {
            let expected = first[a] * second[b] / n;
            chi_square += (counts[a][b] - expected).powi(2) / expected;
        }
    }
    // 9 degrees of freedom: 27.88 is exceeded with probability 0.001.
    assert!(chi_square < 27.88, "chi-square {chi_square}: {counts:?}");
}

#[test]
fn a_choice_is_a_function_of_seed_and_position() {
    let flat = vec![0.0; 1000];
    let choices = |neighbours: &[u64]| -> Vec<u32> {
        (0..32)
            .map(|position| {
                let mut draws = vec![draw(1.0, 7, position)];
                draws.extend(neighbours.iter().map(|&seed| draw(1.0, seed, position)));
                let mut out = vec![0; draws.len()];
                choose(&Cpu::new(2), &flat.repeat(draws.len()), 1000, 1000, &draws, &[], &mut out);
                assert!(out.iter().all(|&id| id < 1000));
                out[0]
            })
            .collect()
    };
    let alone = choices(&[]);
    assert_eq!(choices(&[1, 99, u64::MAX]), alone);
    let mut again: Vec<u32> = (0..32).rev().map(|p| choose_one(&flat, draw(1.0, 7, p))).collect();
    again.reverse();
    assert_eq!(again, alone);
    let other: Vec<u32> = (0..32).map(|p| choose_one(&flat, draw(1.0, 7 << 32, p))).collect();
    assert_ne!(other, alone);
    assert!(alone.iter().collect::<std::collections::HashSet<_>>().len() > 25);
}

#[test]
fn ids_that_are_not_allowed_are_never_chosen() {
    let mut rows = vec![0.0f32; 64];
    rows[62] = 50.0;
    for position in 0..500 {
        for temperature in [0.0, 1.0, 100.0] {
            let mut out = [0];
            let draw = draw(temperature, 11, position);
            choose(&Cpu::new(1), &rows, 64, 60, &[draw], &[], &mut out);
            assert!(out[0] < 60);
        }
    }
    let logs = log_probs(&rows, 60, 0, 64);
    assert_eq!(logs.top.len(), 60);
    assert!((logs.chosen + 60f32.ln()).abs() < 1e-6);
}

#[test]
fn log_probs_of_a_known_distribution() {
    let row = [0.2f32.ln() + 5.0, 0.7f32.ln() + 5.0, 0.1f32.ln() + 5.0, 90.0];
    let logs = log_probs(&row, 3, 1, 2);
    assert!((logs.chosen + 0.3567).abs() < 5e-5);
    assert_eq!(logs.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(logs.top[0].1, logs.chosen);
    assert!((logs.top[1].1 + 1.6094).abs() < 5e-5);
    assert!(log_probs(&row, 3, 0, 0).top.is_empty());
}

#[test]
fn log_probs_match_f64_and_rank_ties_by_id() {
    let mut random = Random::fresh();
    for allowed in [1, 17, 513, 49_152] {
        let row: Vec<f32> =
            random.floats(allowed, 10.0).iter().map(|x| (x * 4.0).round() / 4.0).collect();
        let token = random.below(allowed);
        let logs = log_probs(&row, allowed, token as u32, 20);
        let log_sum = row.iter().map(|&x| (x as f64).exp()).sum::<f64>().ln();
        assert!((logs.chosen as f64 - (row[token] as f64 - log_sum)).abs() < 2e-6);
        let mut ids: Vec<usize> = (0..allowed).collect();
        ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
        let expected: Vec<u32> = ids.iter().take(20).map(|&id| id as u32).collect();
        assert_eq!(logs.top.iter().map(|t| t.0).collect::<Vec<_>>(), expected);
        for (id, log) in logs.top {
            assert!((log as f64 - (row[id as usize] as f64 - log_sum)).abs() < 2e-6);
        }
    }
}

#[test]
fn the_uniform_number_behind_the_noise_is_uniform() {
    let n = 200_000;
    let mut counts = [0.0f64; 20];
    for token in 0..n {
        counts[(uniform(77, 9, token) * 20.0) as usize] += 1.0;
    }
    let expected = n as f64 / 20.0;
    let chi_square: f64 = counts.iter().map(|c| (c - expected).powi(2) / expected).sum();
    // 19 degrees of freedom: 50.8 is exceeded with probability 0.0001.
    assert!(chi_square < 50.8, "chi-square {chi_square}");
}

/// The sum of up to 40,000 terms in lanes of f32 that are added up in f64 strays by parts of 1e-6.
#[test]
fn confidences_match_f64_whatever_the_threads() {
    let mut random = Random::fresh();
    for vocab in [1, 17, 513, 24_576, 40_000] {
        let rows = 1 + random.below(9);
        let logits = random.floats(rows * vocab, 12.0);
        let chosen: Vec<u32> = (0..rows).map(|_| random.below(vocab) as u32).collect();
        let of = |threads: usize| {
            let mut out = vec![f32::NAN; rows];
            confidences(&Cpu::new(threads), &logits, vocab, &chosen, &mut out);
            out
        };
        let found = of(1);
        assert_eq!(found, of(3));
        for ((row, &id), found) in logits.chunks_exact(vocab).zip(&chosen).zip(found) {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            let exact = f64::from(row[id as usize]).exp() / sum;
            assert!((f64::from(found) / exact - 1.0).abs() < 5e-6, "{found} for {exact}");
        }
    }
}

#[test]
fn what_cannot_be_chosen_has_no_confidence() {
    let row = [f32::NEG_INFINITY, f32::NAN, 0.0, -1000.0, f32::INFINITY];
    let of = |id: u32, row: &[f32]| {
        let mut out = [f32::NAN];
        confidences(&Cpu::new(1), row, row.len(), &[id], &mut out);
        out[0]
    };
    assert_eq!([0, 1, 2].map(|id| of(id, &row[..4])), [0.0, 0.0, 1.0]);
    assert_eq!(of(4, &row), 0.0, "an infinite logit has no probability");
    // Exponentials end where f32 does.
    assert!([of(3, &row[..4]), of(2, &row)].iter().all(|&confidence| confidence < 1e-37));
}
