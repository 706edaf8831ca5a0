//! How likely choices are by the pieces of a product: against f64, and the bits of a row beside others.

use crate::card;
use crate::card::narrowed;
use crate::choose::Case;
use crate::gemm::Weight;
use crate::random::Random;
use kernels::gemm::cuda::{Products, Shape};

/// The probability of `id` in f64, and how far a sum in floats may be from it, relative, whatever the logits: the
/// difference to the largest logit is rounded once, which in the mean of a chunk's weights is less than 6 halves of
/// a unit, an exponential is off by two units, and a float meets 8 tokens and the sums of 5 threads and 7 warps.
fn reference(row: &[f32], id: u32) -> (f64, f64) {
    let its = f64::from(row[id as usize]);
    let sum: f64 = row.iter().map(|&logit| (f64::from(logit) - its).exp()).sum();
    let roundings = 6.0 + 2.0 * 2.0 + 8.0 + 5.0 + 7.0 + 1.0;
    (1.0 / sum, roundings / f64::from(1 << 24))
}

/// A confidence is what the logits of its row say.
pub(crate) fn check(row: &[f32], (id, sure): (u32, f32)) {
    if !row[id as usize].is_finite() {
        return assert_eq!(sure, 0.0, "{id} of {} ids is no number", row.len());
    }
    let (want, within) = reference(row, id);
    let apart = (f64::from(sure) / want - 1.0).abs();
    assert!(apart <= within, "{id} of {} ids: {sure} for {want}", row.len());
}

#[test]
fn confidences_match_f64_and_depend_on_their_row() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    for (vocab, allowed) in
        [(1usize, 1), (130, 129), (3001, 3000), (20_000, 19_998), (49_152, 24_576)]
    {
        let shape = Shape::new(vocab, 64, card.cuda.multiprocessors());
        let weight = Weight::new(&card, narrowed(&random.floats(vocab * 64, 1.0)), shape);
        // The last leaves its sums whole.
        for (rows, first) in [(1, 0), (16, 1), (75, 0), (200, 3)] {
            let x = narrowed(&random.floats(rows * 64, 1.5));
            let logits = weight.times(&card, &products, &x);
            let logits = logits.chunks_exact(vocab).map(|row| &row[..allowed]);
            let logits: Vec<&[f32]> = logits.skip(first).collect();
            let mut case = Case::random(&mut random, (rows, first, 0), allowed);
            // The likeliest, likely ones, and any.
            case.temperatures = (0..rows).map(|row| [0.0, 1e6, 1.0, 7.0][row % 4]).collect();
            let pieces = weight.pieces(&card, &products, &x);
            let (chosen, got) = case.on_card(&card, shape, &pieces);
            for ((row, &id), &sure) in logits.iter().zip(&chosen).zip(&got) {
                check(row, (id, sure));
            }
            for i in [0, logits.len() / 2, logits.len() - 1] {
                let row = first + i;
                let alone = Case {
                    rows: 1,
                    first: 0,
                    temperatures: vec![case.temperatures[row]],
                    seeds: vec![case.seeds[row]],
                    positions: vec![case.positions[row]],
                    ..case
                };
                let x = &x[row * 64..(row + 1) * 64];
                let pieces = weight.pieces(&card, &products, x);
                let (id, sure) = alone.on_card(&card, shape, &pieces);
                assert_eq!(
                    (id[0], sure[0].to_bits()),
                    (chosen[i], got[i].to_bits()),
                    "row {i} of {rows}, alone"
                );
            }
        }
    }
}

#[test]
fn what_is_no_number_has_no_confidence_and_stays_alone() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    let (vocab, allowed) = (9000, 8999);
    let shape = Shape::new(vocab, 64, card.cuda.multiprocessors());
    let weight = Weight::new(&card, narrowed(&random.floats(vocab * 64, 1.0)), shape);
    let mut x = narrowed(&random.floats(4 * 64, 1.5));
    let case = Case::random(&mut random, (4, 0, 0), allowed);
    let of = |x: &[u16]| case.on_card(&card, shape, &weight.pieces(&card, &products, x)).1;
    let sound = of(&x);
    assert!(sound.iter().all(|&sure| sure > 0.0 && sure <= 1.0), "{sound:?}");
    // NaN, and the largest floats, whose sums are infinite.
    x[64..2 * 64].fill(0x7fff);
    x[3 * 64..].fill(0x7f7f);
    assert_eq!(of(&x), [sound[0], 0.0, sound[2], 0.0]);
}
