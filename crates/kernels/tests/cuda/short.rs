//! Products of few rows with small weights and what stands around them: against f64, and against the bits of the
//! kernels that do one thing each.

use crate::card;
use crate::card::{Buffer, Card, close, narrowed, widened};
use crate::gated::gates_and_ups;
use crate::random::Random;
use crate::rope;
use crate::rope::{Case, Step};
use crate::small::BF16;
use kernels::activation::cuda::Activations;
use kernels::bias::cuda::Biases;
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Behind, Layout, Lines, Packed, Products, Shape};
use kernels::gemm::short::{Around, Shorts, Stream, Weight};
use kernels::norm::cuda::{Kept, Norms};
use kernels::rope::cuda::{Heads, Stored, Turns};

/// What is added to the mean square.
const EPS: f32 = 1e-5;

/// A product's weight, its bias or none, and rows; on the card and as they are.
struct Given {
    shape: Shape,
    rows: usize,
    plain: Vec<f32>,
    packed: Buffer<u16>,
    bias: Vec<f32>,
    biases: Buffer<f32>,
}

impl Given {
    fn fresh(card: &Card, random: &mut Random, (n, k): (usize, usize), rows: usize) -> Given {
        let shape = Shape::new(n, k, card.cuda.multiprocessors());
        let plain = narrowed(&random.floats(n * k, 1.0));
        let bias = if random.below(2) == 0 { random.floats(n, 3.0) } else { Vec::new() };
        let (packed, biases) = (card.put(&shape.pack(&plain)), card.put(&bias));
        Given { shape, rows, plain: widened(&plain), packed, bias, biases }
    }

    /// The product with `x`, `[rows, k]`, in f64, and the sum of what it adds without signs.
    fn reference(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let Shape { n, k, .. } = self.shape;
        let mut both = (Vec::new(), Vec::new());
        for row in x.chunks_exact(k) {
            for column in 0..n {
                let w = &self.plain[column * k..][..k];
                let bias = self.bias.get(column).map_or(0.0, |&bias| f64::from(bias));
                let terms = row.iter().zip(w).map(|(&x, &w)| x * f64::from(w));
                both.0.push(terms.clone().sum::<f64>() + bias);
                both.1.push(terms.map(f64::abs).sum::<f64>() + bias.abs());
            }
        }
        both
    }

    /// What pieces add up to.
    fn sums(&self, card: &Card, products: &Products, pieces: &Buffer<f32>) -> Vec<f32> {
        let (shape, rows, lane) = (self.shape, self.rows, &card.lanes.forward);
        let (mut out, products) = (card.put(&vec![f32::NAN; rows * shape.n]), products.clone());
        lane.launch(
            "gather",
            (lane.queue(), pieces.read(lane).view(), out.write(lane).view()),
            move |(queue, at, out)| {
                products.gather(queue, Pieces { at, shape, rows: rows as u32 }, out);
            },
        );
        card.get(&out)
    }

    /// The product with rows of bf16 by the kernels that do nothing else: its pieces.
    fn pieces(&self, card: &Card, x: &Buffer<u16>) -> Buffer<f32> {
        let (products, biases) = (Products::load(&card.cuda), Biases::load(&card.cuda));
        let (products, biases) = (products.expect("products load"), biases.expect("biases load"));
        let (shape, rows, lane) = (self.shape, self.rows, &card.lanes.forward);
        let mut out = card.put(&vec![f32::NAN; shape.pieces(rows)]);
        lane.launch(
            "product",
            (
                lane.queue(),
                (self.packed.read(lane).view(), self.biases.read(lane).view()),
                x.read(lane).view(),
                out.write(lane).view(),
            ),
            move |(queue, (at, bias), x, mut out)| {
                let lines = Lines { x, rows, layout: Layout::Rows };
                products.launch(queue, (Packed { shape, at }, Behind::Short), lines, out.all());
                if !bias.is_empty() {
                    biases.add(queue, (out, &shape, rows), bias);
                }
            },
        );
        out
    }
}

/// `rms_norm(stream + delta)` by the kernel that does nothing else, and what the stream is then.
fn normed(
    card: &Card,
    (stream, norm): (&[f32], &[f32]),
    delta: Option<(&Buffer<f32>, Shape)>,
) -> (Buffer<u16>, Vec<f32>) {
    let (norms, lane) = (Norms::load(&card.cuda).expect("the norms load"), &card.lanes.forward);
    let mut x = card.put(stream);
    let (norm, mut out) = (card.put(norm), card.put(&vec![0x7fff; stream.len()]));
    let rows = stream.len() / norm.len();
    let nothing = card.put(&[0.0]);
    let (at, shape) = delta.map_or((&nothing, None), |(at, shape)| (at, Some(shape)));
    lane.launch(
        "norm",
        (
            (lane.queue(), x.write(lane).view()),
            (at.read(lane).view(), norm.read(lane).view()),
            out.write(lane).view(),
        ),
        move |((queue, x), (at, norm), out)| {
            let delta = shape.map(|shape| Pieces { at, shape, rows: rows as u32 });
            norms.add_norm(queue, x, delta, (norm, EPS), (out, Layout::Rows), None);
        },
    );
    (out, card.get(&x))
}

/// The same in f64.
fn normed_in_f64(stream: &[f32], norm: &[f32]) -> Vec<f64> {
    let one = |row: &[f32]| {
        let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        let inverse = 1.0 / (squares / row.len() as f64 + f64::from(EPS)).sqrt();
        row.iter()
            .zip(norm)
            .map(|(&x, &w)| f64::from(x) * inverse * f64::from(w))
            .collect::<Vec<_>>()
    };
    stream.chunks_exact(norm.len()).flat_map(one).collect()
}

fn weight_of<'j>(
    shape: Shape,
    at: device::cuda::CudaSlice<'j, u16>,
    bias: device::cuda::CudaSlice<'j, f32>,
) -> Weight<'j> {
    Weight { packed: Packed { shape, at }, bias: (!bias.is_empty()).then_some(bias) }
}

/// Rows on both sides of what kernels are made for.
const ROWS: [usize; 8] = [1, 3, 8, 9, 16, 17, 31, 32];
/// Shapes of small models, and such that leave the last block of threads with less or blocks with several tiles.
const GATED: [(usize, usize); 3] = [(3072, 576), (64, 128), (5120, 160)];
const ADDED: [(usize, usize); 5] = [(576, 576), (576, 1536), (576, 1728), (16, 128), (4624, 160)];
const NORMED: [(usize, usize); 6] =
    [(960, 576), (3072, 576), (576, 576), (16, 128), (5120, 160), (2576, 1024)];

/// Heads of some layers, of rows of so many elements, in pages of so many tokens.
struct Headed {
    heads: Heads,
    layers: usize,
    k: usize,
    page_size: usize,
}

const HEADED: [Headed; 6] = [
    Headed { heads: Heads { q: 9, kv: 3, dim: 64 }, layers: 1, k: 576, page_size: 16 },
    Headed { heads: Heads { q: 0, kv: 3, dim: 64 }, layers: 3, k: 576, page_size: 8 },
    Headed { heads: Heads { q: 4, kv: 1, dim: 128 }, layers: 1, k: 128, page_size: 1 },
    Headed { heads: Heads { q: 0, kv: 1, dim: 64 }, layers: 2, k: 160, page_size: 4 },
    Headed { heads: Heads { q: 14, kv: 2, dim: 64 }, layers: 1, k: 896, page_size: 16 },
    Headed { heads: Heads { q: 3, kv: 1, dim: 256 }, layers: 1, k: 640, page_size: 2 },
];

fn check_heads(card: &Card, random: &mut Random, shapes: &[Headed], rows: &[usize]) {
    let shorts = Shorts::load(&card.cuda).expect("the short products load");
    let products = Products::load(&card.cuda).expect("the products load");
    let lane = &card.lanes.forward;
    for &Headed { heads, layers, k, page_size } in shapes {
        for &rows in rows {
            let n = layers * (heads.q + 2 * heads.kv) * heads.dim;
            let given = Given::fresh(card, random, (n, k), rows);
            let shape = given.shape;
            assert!(shorts.fits(&shape, Around::Heads(heads.dim), rows), "{n} × {k} fits");
            let requests = [(random.below(3000), rows - rows / 3), (random.below(200), rows / 3)];
            let step = Step::new(random, page_size, &requests);
            let case = Case::new(card, (heads, layers), step);
            let (stream, norm) = (random.floats(rows * k, 2.0), random.floats(k, 1.5));
            let (x, weights) = (card.put(&stream), card.put(&norm));
            let pieces = given.pieces(card, &normed(card, (&stream, &norm), None).0);
            let want = case.store(card, (shape, &pieces), &[]);
            let [mut own_q, mut keys, mut values] = case.room(card);
            let (shorts, layers, no_norms) = (shorts.clone(), case.layers(), card.put(&[]));
            lane.launch(
                "short",
                (
                    (lane.queue(), given.packed.read(lane).view(), given.biases.read(lane).view()),
                    (x.read(lane).view(), weights.read(lane).view(), no_norms.read(lane).view()),
                    (case.angles.read(lane).view(), case.slots.read(lane).view()),
                    (own_q.write(lane).view(), keys.write(lane).view(), values.write(lane).view()),
                ),
                move |(
                    (queue, packed, bias),
                    (rows, norm, norms),
                    (angles, slots),
                    (q, keys, values),
                )| {
                    let stream = Stream { rows, norm, eps: EPS };
                    let turns = Turns { norms, eps: rope::EPS, angles, slots };
                    let to = Stored { q, keys, values, page_size, layers };
                    let weight = (weight_of(shape, packed, bias), heads);
                    shorts.of_heads(queue, weight, stream, (turns, to));
                },
            );
            let got = [card.get(&own_q), card.get(&keys), card.get(&values)];
            assert!(
                got == want,
                "{rows} rows of {n} × {k} have the bits of a norm, a product and a rotation"
            );
            let sums = given.sums(card, &products, &pieces);
            case.check_heads(&got, &sums, &[], &card.get(&case.angles));
            let (want, sizes) = given.reference(&normed_in_f64(&stream, &norm));
            close("product of normed rows", &sums, &want, |i| sizes[i] * BF16);
        }
    }
}

fn check_normed(card: &Card, random: &mut Random, shapes: &[(usize, usize)], rows: &[usize]) {
    let shorts = Shorts::load(&card.cuda).expect("the short products load");
    let (products, lane) = (Products::load(&card.cuda).expect("they load"), &card.lanes.forward);
    for &(n, k) in shapes {
        for &rows in rows {
            let given = Given::fresh(card, random, (n, k), rows);
            let (shape, whole) = (given.shape, given.shape.whole());
            assert!(shorts.fits(&shape, Around::Normed, rows), "{n} × {k} fits");
            let (stream, norm) = (random.floats(rows * k, 2.0), random.floats(k, 1.5));
            let (x, weights) = (card.put(&stream), card.put(&norm));
            let mut out = card.put(&vec![f32::NAN; whole.sums(rows)]);
            let mut sums =
                [card.put(&vec![f32::NAN; rows * n]), card.put(&vec![f32::NAN; rows * n])];
            let pieces = given.pieces(card, &normed(card, (&stream, &norm), None).0);
            let [own, of_two] = &mut sums;
            let (shorts, products) = (shorts.clone(), products.clone());
            lane.launch(
                "short",
                (
                    (lane.queue(), given.packed.read(lane).view(), given.biases.read(lane).view()),
                    (x.read(lane).view(), weights.read(lane).view(), pieces.read(lane).view()),
                    (out.write(lane).view(), own.write(lane).view(), of_two.write(lane).view()),
                ),
                move |((queue, packed, bias), (stream, norm, pieces), (mut out, own, of_two))| {
                    let stream = Stream { rows: stream, norm, eps: EPS };
                    let weight = weight_of(shape, packed, bias);
                    shorts.of_normed(queue, weight, stream, out.all());
                    let rows = rows as u32;
                    products.gather(queue, Pieces { at: out.read(), shape: whole, rows }, own);
                    products.gather(queue, Pieces { at: pieces, shape, rows }, of_two);
                },
            );
            let (got, two) = (card.get(&sums[0]), card.get(&sums[1]));
            assert!(got == two, "{rows} rows of {n} × {k} have the bits of a norm and a product");
            let (want, sizes) = given.reference(&normed_in_f64(&stream, &norm));
            close("product of normed rows", &got, &want, |i| sizes[i] * BF16);
        }
    }
}

fn check_gated(card: &Card, random: &mut Random, shapes: &[(usize, usize)], rows: &[usize]) {
    let shorts = Shorts::load(&card.cuda).expect("the short products load");
    let activations = Activations::load(&card.cuda).expect("the activations load");
    let lane = &card.lanes.forward;
    for &(n, k) in shapes {
        for &rows in rows {
            let given = Given::fresh(card, random, (n, k), rows);
            let (shape, width) = (given.shape, n / 2);
            assert!(shorts.fits(&shape, Around::Gated, rows), "{n} × {k} fits");
            let (stream, norm) = (random.floats(rows * k, 2.0), random.floats(k, 0.5));
            let (x, weights) = (card.put(&stream), card.put(&norm));
            let pieces = given.pieces(card, &normed(card, (&stream, &norm), None).0);
            let (mut own, mut of_three) =
                (card.put(&vec![0x7fff; rows * width]), card.put(&vec![0x7fff; rows * width]));
            let (shorts, activations) = (shorts.clone(), activations.clone());
            lane.launch(
                "short",
                (
                    (lane.queue(), given.packed.read(lane).view(), given.biases.read(lane).view()),
                    (x.read(lane).view(), weights.read(lane).view(), pieces.read(lane).view()),
                    (own.write(lane).view(), of_three.write(lane).view()),
                ),
                move |((queue, packed, bias), (stream, norm, at), (own, of_three))| {
                    let stream = Stream { rows: stream, norm, eps: EPS };
                    shorts.of_gated(queue, weight_of(shape, packed, bias), stream, own);
                    let both = Pieces { at, shape, rows: rows as u32 };
                    activations.swiglu(queue, both, (of_three, Layout::Rows));
                },
            );
            let got = card.get(&own);
            assert!(got == card.get(&of_three), "{rows} rows of {n} × {k}");
            let (sums, sizes) = given.reference(&normed_in_f64(&stream, &norm));
            let columns = gates_and_ups(width);
            let at = |i: usize| columns[i % width].map(|column| i / width * n + column);
            let silu = |gate: f64| gate / (1.0 + (-gate).exp());
            let want: Vec<f64> =
                (0..rows * width).map(at).map(|[gate, up]| silu(sums[gate]) * sums[up]).collect();
            close("gated product", &widened(&got), &want, |i| {
                let [gate, up] = at(i);
                // The slope of what a gate becomes is 1.1 at most.
                let (of_gate, of_up) = (1.1 * sizes[gate] * BF16, sizes[up] * BF16);
                of_gate * (sums[up].abs() + of_up)
                    + silu(sums[gate]).abs() * of_up
                    + want[i].abs() * BF16
            });
        }
    }
}

fn check_added(card: &Card, random: &mut Random, shapes: &[(usize, usize)], rows: &[usize]) {
    let shorts = Shorts::load(&card.cuda).expect("the short products load");
    let lane = &card.lanes.forward;
    for &(n, k) in shapes {
        for &rows in rows {
            let given = Given::fresh(card, random, (n, k), rows);
            let shape = given.shape;
            assert!(shorts.fits(&shape, Around::Added, rows), "{n} × {k} fits");
            let (stream, x) =
                (random.floats(rows * n, 2.0), narrowed(&random.floats(rows * k, 1.0)));
            let (lines, mut own) = (card.put(&x), card.put(&stream));
            let (_, want) =
                normed(card, (&stream, &vec![1.0; n]), Some((&given.pieces(card, &lines), shape)));
            let mut alone = card.put(&vec![f32::NAN; rows * n]);
            let stride = n + 12;
            let mut kept = card.put(&vec![7; rows * stride]);
            let shorts = shorts.clone();
            lane.launch(
                "short",
                (
                    (lane.queue(), given.packed.read(lane).view(), given.biases.read(lane).view()),
                    lines.read(lane).view(),
                    (own.write(lane).view(), alone.write(lane).view(), kept.write(lane).view()),
                ),
                move |((queue, packed, bias), x, (stream, alone, to))| {
                    let kept = Some(Kept { to, first: 8, stride });
                    let weight = weight_of(shape, packed, bias);
                    shorts.begun(queue, weight, x, alone);
                    shorts.added(queue, weight, x, (stream, kept));
                },
            );
            let got = card.get(&own);
            assert!(got == want, "{rows} rows of {n} × {k} have the bits of a product and a norm");
            let zeros = (&vec![0.0; rows * n][..], &vec![1.0; n][..]);
            let sums = normed(card, zeros, Some((&given.pieces(card, &lines), shape))).1;
            assert!(card.get(&alone) == sums, "{rows} rows of {n} × {k} without a stream");
            for (row, there) in card.get(&kept).chunks_exact(stride).enumerate() {
                assert!(there[8..][..n] == narrowed(&got[row * n..][..n]), "row {row}");
                let mut beside = there[..8].iter().chain(&there[8 + n..]);
                assert!(beside.all(|&x| x == 7), "beside row {row}");
            }
            let wide: Vec<f64> = widened(&x).iter().map(|&x| f64::from(x)).collect();
            let (sums, sizes) = given.reference(&wide);
            let whole: Vec<f64> =
                sums.iter().zip(&stream).map(|(a, &b)| a + f64::from(b)).collect();
            close("sum", &got, &whole, |i| {
                (sizes[i] * k as f64 + f64::from(stream[i]).abs()) / f64::from(1 << 22)
            });
        }
    }
}

#[test]
fn products_of_normed_rows_are_those_of_two_kernels() {
    check_normed(&card(), &mut Random::fresh(), &NORMED, &ROWS);
}

#[test]
fn heads_of_normed_rows_are_those_of_three_kernels() {
    check_heads(&card(), &mut Random::fresh(), &HEADED, &ROWS);
}

#[test]
fn gated_products_are_those_of_three_kernels() {
    check_gated(&card(), &mut Random::fresh(), &GATED, &ROWS);
}

#[test]
fn products_added_to_the_stream_are_those_of_two_kernels() {
    check_added(&card(), &mut Random::fresh(), &ADDED, &ROWS);
}

/// As much of it all as a checker follows that slows it down a hundredfold.
#[test]
fn few_products_are_those_of_others() {
    let (card, mut random) = (card(), Random::fresh());
    check_normed(&card, &mut random, &[(192, 160)], &[9]);
    let heads = Heads { q: 1, kv: 1, dim: 64 };
    let one = Headed { heads, layers: 1, k: 160, page_size: 4 };
    check_heads(&card, &mut random, &[one], &[9]);
    check_gated(&card, &mut random, &[(128, 160)], &[9]);
    check_added(&card, &mut random, &[(64, 160)], &[9]);
}

/// What is large, or has columns that are no whole tiles, goes the other way.
#[test]
fn only_small_products_are_short() {
    let card = card();
    let shorts = Shorts::load(&card.cuda).expect("the short products load");
    let all = card.cuda.multiprocessors();
    for (n, k) in [(4096, 4096), (49_152, 576), (6144, 4096), (24_576, 4096), (100, 576), (960, 96)]
    {
        let shape = Shape::new(n, k, all);
        for around in [Around::Normed, Around::Heads(64), Around::Gated, Around::Added] {
            assert!(!shorts.fits(&shape, around, 1), "{n} × {k}, {around:?}");
        }
    }
    let shape = Shape::new(960, 576, all);
    assert!(shorts.fits(&shape, Around::Normed, 32) && !shorts.fits(&shape, Around::Normed, 33));
}
