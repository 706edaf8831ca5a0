//! How likely choices are by the pieces of a product: against f64, and the bits of a row beside others.

use crate::card;
use crate::card::{Buffer, Card, narrowed};
use crate::gemm::Weight;
use crate::random::Random;
use kernels::choose::cuda::{Choices, Confidences};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Products, Shape};

/// The confidences of `chosen`, for the rows of a product from `first` on, among ids below `allowed`.
fn confidences(
    card: &Card,
    (shape, pieces): (Shape, &Buffer<f32>),
    (first, allowed): (usize, usize),
    chosen: &[u32],
) -> Vec<f32> {
    let kernel = Confidences::load(&card.cuda).expect("the confidences load");
    let (lane, rows) = (&card.lanes.forward, (first + chosen.len()) as u32);
    let mut weights = card.put(&vec![f64::NAN; Choices::chunks(allowed) * chosen.len()]);
    let (mut out, chosen) = (card.put(&vec![f32::NAN; chosen.len()]), card.put(chosen));
    lane.launch(
        "confidences",
        (
            (lane.queue(), pieces.read(lane).view(), chosen.read(lane).view()),
            (weights.write(lane).view(), out.write(lane).view()),
        ),
        move |((queue, at, chosen), (weights, out))| {
            let logits = (Pieces { at, shape, rows }, allowed);
            kernel.launch(queue, logits, (first, chosen), weights, out);
        },
    );
    card.get(&out)
}

/// The probability of `id` in f64, and how far a sum in floats may be from it, relative: a difference of
/// logits is rounded once, an exponential is off by two units, and a float meets 32 tokens and 5 sums of
/// other threads.
fn reference(row: &[f32], id: u32) -> (f64, f64) {
    let its = f64::from(row[id as usize]);
    let apart = row.iter().map(|&logit| f64::from(logit) - its);
    let largest = apart.clone().fold(0.0, |a: f64, b| a.max(b.abs()));
    let roundings = largest + 2.0 * 2.0 + 32.0 + 5.0 + 1.0;
    (1.0 / apart.map(f64::exp).sum::<f64>(), roundings / f64::from(1 << 24))
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
        for (rows, first) in [(1, 0), (16, 1), (75, 0), (200, 3)] {
            let x = narrowed(&random.floats(rows * 64, 1.5));
            let logits = weight.times(&card, &products, &x);
            let logits = logits.chunks_exact(vocab).map(|row| &row[..allowed]);
            let logits: Vec<&[f32]> = logits.skip(first).collect();
            // Every other one the likeliest.
            let chosen: Vec<u32> = (0..logits.len())
                .map(|i| match i % 2 {
                    0 => random.below(allowed) as u32,
                    _ => (0..allowed as u32)
                        .max_by(|&a, &b| logits[i][a as usize].total_cmp(&logits[i][b as usize]))
                        .expect("ids"),
                })
                .collect();
            let pieces = (shape, &weight.pieces(&card, &products, &x));
            let got = confidences(&card, pieces, (first, allowed), &chosen);
            for (i, (&got, &id)) in got.iter().zip(&chosen).enumerate() {
                let (want, within) = reference(logits[i], id);
                let apart = (f64::from(got) / want - 1.0).abs();
                assert!(apart <= within, "row {i} of {rows}, {allowed} ids: {got} for {want}");
            }
            for i in [0, logits.len() / 2, logits.len() - 1] {
                let alone = &x[(first + i) * 64..(first + i + 1) * 64];
                let alone = (shape, &weight.pieces(&card, &products, alone));
                let alone = confidences(&card, alone, (0, allowed), &chosen[i..=i]);
                assert_eq!(alone[0].to_bits(), got[i].to_bits(), "row {i} of {rows}, alone");
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
    let mut x = narrowed(&random.floats(3 * 64, 1.5));
    let chosen = [random.below(allowed) as u32, 0, random.below(allowed) as u32];
    let of = |x: &[u16]| {
        let pieces = weight.pieces(&card, &products, x);
        confidences(&card, (shape, &pieces), (0, allowed), &chosen)
    };
    let sound = of(&x);
    x[64..2 * 64].fill(0x7fff);
    let one_less = of(&x);
    assert_eq!(one_less, [sound[0], 0.0, sound[2]]);
    assert!(sound.iter().all(|confidence| (0.0..=1.0).contains(confidence)));
}
