//! Products of gates and ups, and SwiGLU made of them where they are multiplied.

use crate::card;
use crate::card::{Buffer, Card, laid, lined, narrowed};
use crate::gemm::Weight;
use crate::random::Random;
use kernels::activation::cuda::Activations;
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Behind, Layout, Lines, Packed, Products, Shape};
use kernels::gemm::gated::{Gates, Gating, woven};

/// The columns of the gate and of the up of each of `width` elements, as they are woven.
pub(crate) fn gates_and_ups(width: usize) -> Vec<[usize; 2]> {
    let mut columns = vec![[0; 2]; width];
    for column in 0..2 * width {
        let row = woven(column, width);
        columns[row % width][row / width] = column;
    }
    columns
}

/// A product and what its rows are multiplied with.
struct Given<'g> {
    card: &'g Card,
    products: Products,
    activations: Activations,
    weight: Weight,
    bias: Buffer<f32>,
    /// Words by which workers meet, through all launches.
    there: Buffer<u32>,
}

impl Given<'_> {
    /// What two kernels make of rows that lie in tiles, and what one does.
    fn both(&mut self, x: &[u16], biased: bool) -> [Vec<u16>; 2] {
        let (card, shape) = (self.card, self.weight.shape);
        let (rows, width, lane) = (x.len() / shape.k, shape.n / 2, &card.lanes.forward);
        let x = card.put(&laid(Layout::Tiles, x, shape.k));
        let mut left = [(); 2].map(|()| card.put(&vec![f32::NAN; shape.pieces(rows)]));
        let mut outs =
            [(); 2].map(|()| card.put(&vec![0x7fff; Layout::Tiles.elements(rows, width)]));
        let ([pieces, own], [of_two, of_one]) = (&mut left, &mut outs);
        let (products, activations) = (self.products.clone(), self.activations.clone());
        lane.launch(
            "gated",
            (
                (lane.queue(), self.weight.packed.read(lane).view(), self.bias.read(lane).view()),
                (x.read(lane).view(), self.there.write(lane).view()),
                (pieces.write(lane).view(), own.write(lane).view()),
                (of_two.write(lane).view(), of_one.write(lane).view()),
            ),
            move |((queue, at, bias), (x, there), (mut pieces, own), (of_two, out))| {
                let (weight, lines) =
                    (Packed { shape, at }, Lines { x, rows, layout: Layout::Tiles });
                let (bias, of) = (biased.then_some(bias), (weight, Behind::Short));
                match bias {
                    Some(bias) => products.launch_biased(queue, weight, lines, bias, pieces.all()),
                    None => products.launch(queue, of, lines, pieces.all()),
                }
                let both = Pieces { at: pieces.read(), shape, rows: rows as u32 };
                activations.swiglu(queue, both, (of_two, Layout::Tiles));
                let gating = Gating { pieces: own, there, out };
                products.launch_gated(queue, Gates { weight, bias }, lines, gating);
            },
        );
        outs.map(|out| lined(Layout::Tiles, &card.get(&out), (rows, width)))
    }
}

/// Holds what one kernel makes of some numbers of rows to the bits of two.
fn check(
    card: &Card,
    random: &mut Random,
    ((n, k), multiprocessors): ((usize, usize), u32),
    rows: &[usize],
) {
    let weight = Weight::random(card, random, n, k, multiprocessors);
    let shape = weight.shape;
    let mut given = Given {
        card,
        products: Products::load(&card.cuda).expect("the products load"),
        activations: Activations::load(&card.cuda).expect("the activations load"),
        weight,
        bias: card.put(&random.floats(n, 2.0)),
        there: card.put(&vec![0; shape.meetings()]),
    };
    for &rows in rows {
        assert!(given.products.gates(&shape, rows, Layout::Tiles), "{rows} rows of {n} × {k}");
        for biased in [false, true] {
            let x = narrowed(&random.floats(rows * k, 0.3));
            let [two, one] = given.both(&x, biased);
            assert!(two == one, "{rows} rows of {n} × {k}, {multiprocessors}, bias: {biased}");
        }
    }
    assert!(card.get(&given.there).iter().all(|&word| word == 0), "nobody is left waiting");
}

#[test]
fn one_kernel_makes_what_two_do() {
    let (card, mut random) = (card(), Random::fresh());
    let all = card.cuda.multiprocessors();
    let rows = [33, 64, 100, 128, 129, 160, 192, 193, 250, 256, 700];
    // Each band whole, two workers a band, and bands of many workers' runs.
    for (shape, multiprocessors) in
        [((1024, 512), 8), ((2240, 1536), 14), ((2240, 1536), 7), ((24_576, 4096), all)]
    {
        check(&card, &mut random, (shape, multiprocessors), &rows);
    }
}

/// As much of that as a checker follows that slows it down a hundredfold.
#[test]
fn few_gates_are_those_of_two_kernels() {
    let (card, mut random) = (card(), Random::fresh());
    check(&card, &mut random, ((1856, 160), 7), &[40, 300]);
    check(&card, &mut random, ((1856, 512), 14), &[130]);
}

/// Where a band has more workers than two, or rows are another round, one kernel does not make it.
#[test]
fn what_would_wait_is_left_to_two_kernels() {
    let products = Products::load(&card().cuda).expect("the products load");
    let (large, small) = (Shape::new(24_576, 4096, 132), Shape::new(3072, 576, 132));
    for (shape, rows, layout, made) in [
        (large, 32, Layout::Rows, false),
        (large, 33, Layout::Tiles, true),
        (large, 256, Layout::Tiles, true),
        (small, 64, Layout::Tiles, false),
        (small, 1024, Layout::Tiles, true),
        (Shape::new(1024, 4096, 132), 128, Layout::Tiles, false),
    ] {
        assert_eq!(products.gates(&shape, rows, layout), made, "{rows} rows of {shape:?}");
    }
}
