//! Products against f64, and the bits of a row beside others.

use crate::card;
use crate::card::{Buffer, Card, close, laid, narrowed, widened};
use crate::random::Random;
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Behind, Layout, Lines, MOST_ROWS, Packed, Products, Shape};

/// A weight on the card, and as it is.
pub(crate) struct Weight {
    pub(crate) shape: Shape,
    pub(crate) plain: Vec<f32>,
    pub(crate) packed: Buffer<u16>,
}

impl Weight {
    pub(crate) fn random(
        card: &Card,
        random: &mut Random,
        n: usize,
        k: usize,
        multiprocessors: u32,
    ) -> Weight {
        let shape = Shape::new(n, k, multiprocessors);
        Weight::new(card, narrowed(&random.floats(n * k, 1.0)), shape)
    }

    pub(crate) fn new(card: &Card, plain: Vec<u16>, shape: Shape) -> Weight {
        let packed = card.put(&shape.pack(&plain));
        Weight { shape, plain: widened(&plain), packed }
    }

    /// The pieces of the product with rows of bf16.
    pub(crate) fn pieces(&self, card: &Card, products: &Products, x: &[u16]) -> Buffer<f32> {
        self.pieces_before(card, products, x, (None, Layout::Rows))
    }

    /// The same of rows that lie in any way, behind attention and before another weight if there is one.
    fn pieces_before(
        &self,
        card: &Card,
        products: &Products,
        x: &[u16],
        (next, layout): (Option<&Weight>, Layout),
    ) -> Buffer<f32> {
        let (shape, lane, rows) = (self.shape, &card.lanes.forward, x.len() / self.shape.k);
        let mut out = card.put(&vec![f32::NAN; shape.pieces(rows)]);
        let (x, products) = (card.put(&laid(layout, x, shape.k)), products.clone());
        let next_shape = next.map(|next| next.shape);
        lane.launch(
            "product",
            (
                lane.queue(),
                (self.packed.read(lane).view(), next.unwrap_or(self).packed.read(lane).view()),
                x.read(lane).view(),
                out.write(lane).view(),
            ),
            move |(queue, (at, next), x, out)| {
                let behind = next_shape
                    .map_or(Behind::Short, |shape| Behind::Attention(Packed { shape, at: next }));
                let of = (Packed { shape, at }, behind);
                products.launch(queue, of, Lines { x, rows, layout }, out);
            },
        );
        out
    }

    /// As [`Weight::pieces`], with biases.
    fn biased(&self, card: &Card, products: &Products, x: &[u16], bias: &[f32]) -> Buffer<f32> {
        let (shape, lane, rows) = (self.shape, &card.lanes.forward, x.len() / self.shape.k);
        let mut out = card.put(&vec![f32::NAN; shape.pieces(rows)]);
        let (x, bias, products) = (card.put(x), card.put(bias), products.clone());
        lane.launch(
            "product",
            (
                (lane.queue(), self.packed.read(lane).view()),
                (x.read(lane).view(), bias.read(lane).view()),
                out.write(lane).view(),
            ),
            move |((queue, at), (x, bias), out)| {
                let lines = Lines { x, rows, layout: Layout::Rows };
                products.launch_biased(queue, Packed { shape, at }, lines, bias, out);
            },
        );
        out
    }

    /// The product with rows of bf16, `[rows, n]`.
    pub(crate) fn times(&self, card: &Card, products: &Products, x: &[u16]) -> Vec<f32> {
        let rows = x.len() / self.shape.k;
        self.sums(card, products, &self.pieces(card, products, x), rows)
    }

    /// What the pieces of `rows` rows add up to, `[rows, n]`.
    fn sums(
        &self,
        card: &Card,
        products: &Products,
        pieces: &Buffer<f32>,
        rows: usize,
    ) -> Vec<f32> {
        let (shape, lane) = (self.shape, &card.lanes.forward);
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

/// Holds a product of `most` rows to f64, and products of fewer of these rows to its bits.
fn check(
    card: &Card,
    random: &mut Random,
    ((n, k), multiprocessors): ((usize, usize), u32),
    (most, fewer): (usize, &[usize]),
) {
    let products = Products::load(&card.cuda).expect("the products load");
    let weight = Weight::random(card, random, n, k, multiprocessors);
    // Of a shape and with workers of its own.
    let its = (1 + random.below(700), 32 * (1 + random.below(40)));
    let next = Weight::random(card, random, its.0, its.1, multiprocessors + 1);
    let x = narrowed(&random.floats(most * k, 1.0));
    let whole = weight.times(card, &products, &x);
    let columns: Vec<usize> =
        if n <= 200 { (0..n).collect() } else { (0..200).map(|_| random.below(n)).collect() };
    let rows: Vec<usize> = if most <= 64 {
        (0..most).collect()
    } else {
        (0..64).map(|_| random.below(most)).collect()
    };
    let some: Vec<u16> = rows.iter().flat_map(|&r| &x[r * k..][..k]).copied().collect();
    let (want, sizes) = reference(&weight, &some, &columns);
    let got: Vec<f32> = rows
        .iter()
        .flat_map(|r| columns.iter().map(|c| whole[r * n + c]).collect::<Vec<_>>())
        .collect();
    // Each of k additions loses at most one in 2²³ of what is added up: tensor cores cut off.
    close(&format!("{n} × {k}"), &got, &want, |i| sizes[i] * k as f64 / f64::from(1 << 23));
    for &rows in fewer {
        // The last ones: they stand elsewhere in their tiles.
        let last = &x[(most - rows) * k..];
        let ways = [(None, Layout::Rows), (Some(&next), Layout::Rows), (None, Layout::Tiles)];
        for (before, layout) in ways {
            let pieces = weight.pieces_before(card, &products, last, (before, layout));
            assert!(
                weight.sums(card, &products, &pieces, rows) == whole[(most - rows) * n..],
                "{n} × {k}, {multiprocessors}, {layout:?}, before another: {}: {rows} rows are not those of {most}",
                before.is_some()
            );
        }
    }
}

#[test]
fn products_match_and_a_row_does_not_depend_on_rows() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    let fewer = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63];
    for shape in [(1, 32), (128, 128), (130, 96), (576, 576), (960, 576), (3072, 576), (576, 1536)]
    {
        for multiprocessors in [2, 6, all] {
            check(&card, &mut random, (shape, multiprocessors), (64, &fewer));
        }
    }
}

#[test]
fn products_of_many_rows_have_the_bits_of_few() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    for shape in [(1, 32), (130, 96), (576, 576), (200, 1536)] {
        for multiprocessors in [2, 6, all] {
            let fewer = [1, 32, 33, 64, 127, 128, 129, 160, 192, 193, 256, 257, 300, 400, 512];
            let most = 1100 + random.below(40);
            check(&card, &mut random, (shape, multiprocessors), (most, &fewer));
        }
    }
}

#[test]
fn products_of_a_large_model_match() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    for shape in [(4096, 4096), (6144, 4096), (4096, 12_288)] {
        check(&card, &mut random, (shape, all), (64, &[1, 8, 16, 32]));
        check(
            &card,
            &mut random,
            (shape, all),
            (1024, &[1, 32, 33, 128, 180, 200, 256, 300, 400, 512]),
        );
    }
}

/// As much of a large model's product as a checker follows that slows it down a hundredfold.
#[test]
fn few_products_of_a_large_model_match() {
    let (card, mut random) = (card(), Random::fresh());
    let shape = ((4096, 12_288), card.cuda.multiprocessors());
    check(&card, &mut random, shape, (16, &[1]));
    check(&card, &mut random, shape, (130, &[1, 65]));
}

/// The same of the bits of rows beside others, on either side of each number of rows at which a product
/// goes another way.
#[test]
fn few_rows_have_the_bits_of_others() {
    let (card, mut random) = (card(), Random::fresh());
    for shape in [(130, 96), (200, 1536)] {
        check(&card, &mut random, (shape, 6), (300, &[1, 9, 32, 33, 129, 192, 193, 257]));
    }
    // An odd number of blocks of columns, of which the last has a band for itself, and several rounds.
    check(&card, &mut random, ((133 * 128, 64), 132), (300, &[1, 65, 180, 200]));
}

/// A bias is added to the first piece of its block, before the others.
#[test]
fn a_bias_comes_first() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    for (n, k) in [(130, 96), (576, 1536)] {
        for multiprocessors in [2, 6, card.cuda.multiprocessors()] {
            let weight = Weight::random(&card, &mut random, n, k, multiprocessors);
            let (x, bias) = (narrowed(&random.floats(300 * k, 1.0)), random.floats(n, 9.0));
            // Few rows leave pieces, to which it is added here.
            let few = MOST_ROWS;
            let mut pieces = card.get(&weight.pieces(&card, &products, &x[..few * k]));
            let (steps, workers) = (k / 32, weight.shape.workers() as usize);
            let items = n.div_ceil(256) * steps;
            for column in 0..n {
                let (band, block) = (column / 256, column / 128);
                let first = ((band * steps + 1) * workers - 1) / items;
                for row in 0..few {
                    pieces[((2 * first + block) * few + row) * 128 + column % 128] += bias[column];
                }
            }
            let want = weight.sums(&card, &products, &card.put(&pieces), few);
            for rows in [33, 65, 200, 300] {
                let got = weight.biased(&card, &products, &x[..rows * k], &bias);
                let got = weight.sums(&card, &products, &got, rows);
                assert!(got[..few * n] == want, "{n} × {k}, {workers} workers, {rows} rows");
            }
        }
    }
}

/// What a row holds beside it stays out of it, also when it is no number.
#[test]
fn a_row_of_nan_stays_alone() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    let (n, k) = (200, 160);
    let weight = Weight::random(&card, &mut random, n, k, card.cuda.multiprocessors());
    for rows in [16, 140, 270] {
        let mut x = narrowed(&random.floats(rows * k, 1.0));
        let clean = weight.times(&card, &products, &x);
        x[5 * k..6 * k].fill(0x7fff);
        let got = weight.times(&card, &products, &x);
        for row in 0..rows {
            let (got, clean) = (&got[row * n..][..n], &clean[row * n..][..n]);
            let nan = got.iter().all(|x| x.is_nan());
            assert!(if row == 5 { nan } else { got == clean }, "row {row} of {rows}");
        }
    }
}

/// A buffer for many rows is one for fewer.
#[test]
fn room_grows_with_rows() {
    for (n, k) in [(1, 32), (4096, 4096), (4096, 12_288), (24_576, 4096)] {
        let shape = Shape::new(n, k, 132);
        let room: Vec<usize> = (1..700).map(|rows| shape.pieces(rows)).collect();
        assert!(room.is_sorted(), "{n} × {k}");
    }
}

#[test]
fn no_worker_is_without_work() {
    for (n, k) in [(1, 32), (1, 256), (129, 32), (151_936, 4096), (24_576, 4096)] {
        for multiprocessors in [1, 7, 132, 1000] {
            let shape = Shape::new(n, k, multiprocessors);
            let (workers, bands) = (shape.workers() as usize, n.div_ceil(256));
            // Of small weights four share each band.
            let few = workers <= multiprocessors.div_ceil(2) as usize || workers == 4 * bands;
            assert!(few && (1..=bands * (k / 32)).contains(&workers));
            let mut places: Vec<usize> = (0..k).map(|column| shape.place(n - 1, column)).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() == k && places[k - 1] < shape.packed());
        }
    }
}
