//! Biases: what pieces with one add up to, and a row's bits alone and among others.

use crate::card;
use crate::card::{Buffer, Card, close};
use crate::random::Random;
use crate::small::product;
use device::{Device, Reason};
use kernels::bias::cuda::Biases;
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Products, Shape};

/// The sums of `rows` rows of pieces.
fn gathered(card: &Card, pieces: &Buffer<f32>, shape: Shape, rows: usize) -> Vec<f32> {
    let (products, lane) =
        (Products::load(&card.cuda).expect("the products load"), &card.lanes.forward);
    let mut out = card.put(&vec![0.0; rows * shape.n]);
    lane.launch(
        "gather",
        (lane.queue(), pieces.read(lane).view(), out.write(lane).view()),
        move |(queue, at, out)| {
            products.gather(queue, Pieces { at, shape, rows: rows as u32 }, out);
        },
    );
    card.get(&out)
}

#[test]
fn biases_add_and_match() {
    let (card, mut random) = (card(), Random::fresh());
    let (biases, lane) = (Biases::load(&card.cuda).expect("the biases load"), &card.lanes.forward);
    for n in [1, 4, 130, 960, 3001] {
        let rows = 1 + random.below(64);
        let (weight, mut pieces, sums) = product(&card, &mut random, rows, n);
        let (bias, shape) = (random.floats(n, 2.0), weight.shape);
        let on_card = card.put(&bias);
        let biases = biases.clone();
        lane.launch(
            "bias",
            (lane.queue(), pieces.write(lane).view(), on_card.read(lane).view()),
            move |(queue, pieces, bias)| biases.add(queue, (pieces, &shape, rows), bias),
        );
        card.cuda.land(&lane.record(), Reason::Results).expect("the card works");
        let got = gathered(&card, &pieces, shape, rows);
        let want: Vec<f64> = sums
            .iter()
            .enumerate()
            .map(|(i, sum)| f64::from(*sum) + f64::from(bias[i % n]))
            .collect();
        // The bias comes first, so every piece that is added rounds elsewhere: each at most by one part
        // in 2²⁴ of the largest sum there is.
        let most = f64::from(shape.steps() + 1) * (shape.k as f64 + 2.0) / f64::from(1 << 24);
        close(&format!("{rows} × {n}"), &got, &want, |_| most);
    }
}
