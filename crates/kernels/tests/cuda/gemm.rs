//! Products against f64, and the bits of a row beside others.

use crate::card;
use crate::card::{Buffer, Card, close, narrowed, widened};
use crate::random::Random;
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{MOST_ROWS, Products, Shape};

/// A weight on the card, and as it is.
pub(crate) struct Weight {
    pub(crate) shape: Shape,
    pub(crate) plain: Vec<f32>,
    packed: Buffer<u16>,
}

impl Weight {
    pub(crate) fn random(
        card: &Card,
        random: &mut Random,
        n: usize,
        k: usize,
        workers: u32,
    ) -> Weight {
        Weight::new(card, narrowed(&random.floats(n * k, 1.0)), Shape::new(n, k, workers))
    }

    pub(crate) fn new(card: &Card, plain: Vec<u16>, shape: Shape) -> Weight {
        let packed = card.put(&shape.pack(&plain));
        Weight { shape, plain: widened(&plain), packed }
    }

    /// The pieces of the product with rows of bf16.
    pub(crate) fn pieces(&self, card: &Card, products: &Products, x: &[u16]) -> Buffer<f32> {
        let (shape, lane, rows) = (self.shape, &card.lanes.forward, x.len() / self.shape.k);
        let mut out = card.put(&vec![f32::NAN; shape.pieces(rows)]);
        let (x, products) = (card.put(x), products.clone());
        lane.launch(
            "product",
            (
                lane.queue(),
                self.packed.read(lane).view(),
                x.read(lane).view(),
                out.write(lane).view(),
            ),
            move |(queue, weight, x, out)| {
                products.launch(queue, &shape, weight, (x, rows), out);
            },
        );
        out
    }

    /// The product with rows of bf16, `[rows, n]`.
    pub(crate) fn times(&self, card: &Card, products: &Products, x: &[u16]) -> Vec<f32> {
        let (shape, lane, rows) = (self.shape, &card.lanes.forward, x.len() / self.shape.k);
        let pieces = self.pieces(card, products, x);
        let mut out = card.put(&vec![f32::NAN; rows * shape.n]);
        let products = products.clone();
        lane.launch(
            "gather",
            (lane.queue(), pieces.read(lane).view(), out.write(lane).view()),
            move |(queue, at, out)| {
                products.gather(queue, Pieces { at, shape, rows: rows as u32 }, out);
            },
        );
        card.get(&out)
    }
}

/// A product in f64 of some of the columns, and the sum of what it adds without signs.
fn reference(weight: &Weight, x: &[u16], columns: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let k = weight.shape.k;
    let mut sums = Vec::new();
    let mut sizes = Vec::new();
    for row in widened(x).chunks_exact(k) {
        for &column in columns {
            let w = &weight.plain[column * k..][..k];
            let terms = row.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b));
            sums.push(terms.clone().sum());
            sizes.push(terms.map(f64::abs).sum());
        }
    }
    (sums, sizes)
}

fn check(card: &Card, random: &mut Random, (n, k): (usize, usize), workers: u32, rows: &[usize]) {
    let products = Products::load(&card.cuda).expect("the products load");
    let weight = Weight::random(card, random, n, k, workers);
    let x = narrowed(&random.floats(MOST_ROWS * k, 1.0));
    let whole = weight.times(card, &products, &x);
    let columns: Vec<usize> =
        if n <= 200 { (0..n).collect() } else { (0..200).map(|_| random.below(n)).collect() };
    let (want, sizes) = reference(&weight, &x, &columns);
    let got: Vec<f32> = (0..MOST_ROWS)
        .flat_map(|r| columns.iter().map(move |c| (r, c)))
        .map(|(r, c)| whole[r * n + c])
        .collect();
    // Each of k additions loses at most one in 2²³ of what is added up: tensor cores cut off.
    close(&format!("{n} × {k}"), &got, &want, |i| sizes[i] * k as f64 / f64::from(1 << 23));
    for &rows in rows {
        let some = weight.times(card, &products, &x[..rows * k]);
        assert!(some == whole[..rows * n], "{n} × {k}: {rows} rows are not those of {MOST_ROWS}");
    }
}

#[test]
fn products_match_and_a_row_does_not_depend_on_rows() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    for (n, k) in [(1, 32), (128, 128), (130, 96), (576, 576), (960, 576), (3072, 576), (576, 1536)]
    {
        for workers in [1, 3, all] {
            check(&card, &mut random, (n, k), workers, &[1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63]);
        }
    }
}

#[test]
fn products_of_a_large_model_match() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    for shape in [(4096, 4096), (6144, 4096), (4096, 12_288)] {
        check(&card, &mut random, shape, all, &[1, 8, 16, 32]);
    }
}

/// What a row holds beside it stays out of it, also when it is no number.
#[test]
fn a_row_of_nan_stays_alone() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    let (n, k) = (200, 160);
    let weight = Weight::random(&card, &mut random, n, k, card.cuda.multiprocessors());
    let mut x = narrowed(&random.floats(16 * k, 1.0));
    let clean = weight.times(&card, &products, &x);
    x[5 * k..6 * k].fill(0x7fff);
    let got = weight.times(&card, &products, &x);
    for row in 0..16 {
        let (got, clean) = (&got[row * n..][..n], &clean[row * n..][..n]);
        assert!(if row == 5 { got.iter().all(|x| x.is_nan()) } else { got == clean }, "row {row}");
    }
}

#[test]
fn no_worker_is_without_work() {
    for (n, k) in [(1, 32), (1, 256), (129, 32), (151_936, 4096), (24_576, 4096)] {
        for workers in [1, 7, 132, 1000] {
            let shape = Shape::new(n, k, workers);
            assert!(shape.workers() <= workers && shape.workers() > 0);
            assert!(shape.workers() as usize <= n.div_ceil(128) * (k / 32));
            let mut places: Vec<usize> = (0..k).map(|column| shape.place(n - 1, column)).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() == k && places[k - 1] < shape.packed());
        }
    }
}
