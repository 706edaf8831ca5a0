//! Norms, SwiGLU, acceptance: against f64 or the CPU's own.

use crate::card;
use crate::card::{Buffer, Card, close, lined, narrowed, widened};
use crate::gated::gates_and_ups;
use crate::gemm::Weight;
use crate::random::Random;
use kernels::accept::accept;
use kernels::accept::cuda::{Acceptance, Accepted};
use kernels::activation::cuda::Activations;
use kernels::cuda::Pieces;
use kernels::gather::cuda::{Gather, MOST_BLOCKS, Settling, Unsettled, promise};
use kernels::gemm::cuda::{Layout, Products};
use kernels::norm::cuda::{Kept, Norms};

/// Half a unit in the last place of a bf16, beside what f32 arithmetic loses.
pub(crate) const BF16: f64 = 1.0 / 256.0;

/// A product of random rows: its pieces and its sums.
pub(crate) fn product(
    card: &Card,
    random: &mut Random,
    rows: usize,
    n: usize,
) -> (Weight, Buffer<f32>, Vec<f32>) {
    let products = Products::load(&card.cuda).expect("the products load");
    let k = 32 * (1 + random.below(9));
    let weight = Weight::random(card, random, n, k, card.cuda.multiprocessors());
    let x = narrowed(&random.floats(rows * k, 1.0));
    let pieces = weight.pieces(card, &products, &x);
    let sums = weight.times(card, &products, &x);
    (weight, pieces, sums)
}

/// Few rows, and in tiles also so many that products are left whole.
fn rows_of(random: &mut Random, layout: Layout) -> usize {
    let few = 1 + random.below(20);
    match layout {
        Layout::Rows => few,
        Layout::Tiles => few + [0, 128][random.below(2)],
    }
}

#[test]
fn norms_add_and_match() {
    let (card, mut random) = (card(), Random::fresh());
    let (norms, lane) = (Norms::load(&card.cuda).expect("the norms load"), &card.lanes.forward);
    for width in [4, 64, 64, 576, 2052, 4096, 4096, 4096, 4096, 8192] {
        let layout =
            if width % 32 == 0 && random.below(2) == 0 { Layout::Tiles } else { Layout::Rows };
        let rows = rows_of(&mut random, layout);
        let (weight_of, pieces, sums) = product(&card, &mut random, rows, width);
        let (x, weight) = (random.floats(rows * width, 2.0), random.floats(width, 1.5));
        let added: Vec<f32> = x.iter().zip(&sums).map(|(a, b)| a + b).collect();
        let (mut on_card, factors) = (card.put(&x), card.put(&weight));
        let mut out = card.put(&vec![0x7fff; layout.elements(rows, width)]);
        let stride = width + 12;
        let mut taken = card.put(&vec![7; rows * stride]);
        let (norms, shape) = (norms.clone(), weight_of.shape);
        lane.launch(
            "norm",
            (
                lane.queue(),
                on_card.write(lane).view(),
                pieces.read(lane).view(),
                factors.read(lane).view(),
                out.write(lane).view(),
                taken.write(lane).view(),
            ),
            move |(queue, mut x, at, weight, out, taken)| {
                let delta = Some(Pieces { at, shape, rows: rows as u32 });
                let kept = Some(Kept { to: taken, first: 8, stride });
                norms.add_norm(queue, x.all(), delta, (weight, 1e-5), (out, layout), kept);
            },
        );
        assert!(card.get(&on_card) == added, "the residual sum of width {width}");
        let taken = card.get(&taken);
        for (row, there) in taken.chunks_exact(stride).enumerate() {
            assert!(there[8..][..width] == narrowed(&added[row * width..][..width]), "row {row}");
            assert!(
                there[..8].iter().chain(&there[8 + width..]).all(|&x| x == 7),
                "beside row {row}"
            );
        }
        let mut want = Vec::new();
        for row in added.chunks_exact(width) {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let inverse = 1.0 / (squares / width as f64 + 1e-5).sqrt();
            want.extend(
                row.iter().zip(&weight).map(|(&x, &w)| f64::from(x) * inverse * f64::from(w)),
            );
        }
        // f32 sums of squares of one sign lose far less than half a unit of a bf16.
        let got = widened(&lined(layout, &card.get(&out), (rows, width)));
        close("norm", &got, &want, |i| want[i].abs() * (BF16 + 1e-4));
    }
}

#[test]
fn swiglu_matches() {
    let (card, mut random) = (card(), Random::fresh());
    let activations = Activations::load(&card.cuda).expect("the activations load");
    let lane = &card.lanes.forward;
    let layouts = [Layout::Rows, Layout::Tiles];
    for (width, layout) in [32, 96, 1536, 12_288].into_iter().flat_map(|w| layouts.map(|l| (w, l)))
    {
        let rows = rows_of(&mut random, layout);
        let (weight, pieces, sums) = product(&card, &mut random, rows, 2 * width);
        let mut out = card.put(&vec![0x7fff; layout.elements(rows, width)]);
        let (activations, shape) = (activations.clone(), weight.shape);
        lane.launch(
            "swiglu",
            (lane.queue(), pieces.read(lane).view(), out.write(lane).view()),
            move |(queue, at, out)| {
                let both = Pieces { at, shape, rows: rows as u32 };
                activations.swiglu(queue, both, (out, layout));
            },
        );
        let columns = gates_and_ups(width);
        let want: Vec<f64> = (0..rows * width)
            .map(|i| {
                let row = &sums[i / width * 2 * width..];
                let [gate, up] = columns[i % width].map(|column| f64::from(row[column]));
                gate / (1.0 + (-gate).exp()) * up
            })
            .collect();
        let got = widened(&lined(layout, &card.get(&out), (rows, width)));
        close("swiglu", &got, &want, |i| want[i].abs() * (BF16 + 1e-5) + 1e-30);
    }
}

#[test]
fn rows_and_words_are_brought_as_they_are() {
    let (card, mut random) = (card(), Random::fresh());
    let gather = Gather::load(&card.cuda).expect("what gathers loads");
    let (lane, width, rows) = (&card.lanes.forward, 264, 90);
    let from = narrowed(&random.floats(rows * width, 3.0));
    let numbers: Vec<u32> = (0..31).map(|_| random.below(rows) as u32).collect();
    let words: Vec<u32> = (0..1000).collect();
    let (matrix, picked, told) = (card.put(&from), card.put(&numbers), card.put(&words));
    let none = card.put::<u32>(&[]);
    let mut out = card.put(&vec![7u16; numbers.len() * width]);
    let (mut first, mut rest) = (card.put(&[7; 300]), card.put(&[7; 700]));
    lane.launch(
        "gather",
        (
            lane.queue(),
            (matrix.read(lane).view(), picked.read(lane).view(), out.write(lane).view()),
            (
                (told.read(lane).view(), none.read(lane).view()),
                first.write(lane).view(),
                rest.write(lane).view(),
            ),
        ),
        move |(queue, (matrix, numbers, out), ((told, none), first, rest))| {
            gather.rows(queue, (matrix, width), numbers, out);
            let settling = Settling { marks: none, refused: none, anchors: none };
            gather.words(queue, (told, settling), first, rest);
        },
    );
    let want: Vec<u16> =
        numbers.iter().flat_map(|&row| from[row as usize * width..][..width].to_vec()).collect();
    assert!(card.get(&out) == want);
    assert_eq!([card.get(&first), card.get(&rest)].concat(), words);
}

/// Any words, some of which depend on blocks, at any places; the others may look as if they did.
#[test]
fn marked_words_become_what_became_of_their_blocks() {
    let (card, mut random) = (card(), Random::fresh());
    let gather = Gather::load(&card.cuda).expect("what gathers loads");
    let lane = &card.lanes.forward;
    for len in [1usize, 31, 32, 33, 700] {
        let blocks = 1 + random.below(MOST_BLOCKS);
        let refused: Vec<u32> = (0..blocks).map(|_| random.below(16) as u32).collect();
        let anchors: Vec<u32> = (0..blocks).map(|_| random.bits() as u32).collect();
        let (mut told, mut want, mut marks) = (vec![], vec![], vec![0; len.div_ceil(32)]);
        for i in 0..len {
            let (block, most) = (random.below(blocks), 16 + random.below((1 << 24) - 16));
            let word = match random.below(3) {
                0 => {
                    let word = random.bits() as u32;
                    told.push(word);
                    want.push(word);
                    continue;
                }
                1 => (Unsettled::Less(most), most as u32 - refused[block]),
                _ => (Unsettled::Anchor, anchors[block]),
            };
            told.push(word.0.behind(block));
            want.push(word.1);
            marks[i / 32] |= 1 << (i % 32);
        }
        let first = random.below(len + 1);
        let (a, b, c, d) =
            (card.put(&told), card.put(&marks), card.put(&refused), card.put(&anchors));
        let (mut low, mut high) = (card.put(&vec![7; first]), card.put(&vec![7; len - first]));
        let gather = gather.clone();
        lane.launch(
            "words",
            (
                lane.queue(),
                (a.read(lane).view(), b.read(lane).view()),
                (c.read(lane).view(), d.read(lane).view()),
                (low.write(lane).view(), high.write(lane).view()),
            ),
            move |(queue, (told, marks), (refused, anchors), (low, high))| {
                gather.words(queue, (told, Settling { marks, refused, anchors }), low, high);
            },
        );
        assert_eq!([card.get(&low), card.get(&high)].concat(), want);
    }
}

#[test]
fn promised_words_are_resolved_and_others_stay() {
    let (card, mut random) = (card(), Random::fresh());
    let gather = Gather::load(&card.cuda).expect("what gathers loads");
    let lane = &card.lanes.forward;
    let made: Vec<u32> = (0..50).map(|_| random.bits() as u32 >> 1).collect();
    let mut word = |_| match random.below(2) {
        0 => (random.below(1 << 20) as u32, None),
        _ => {
            let number = random.below(made.len());
            (promise(number), Some(made[number]))
        }
    };
    let told: Vec<(u32, Option<u32>)> = (0..300).map(&mut word).collect();
    let (from, words) = (card.put(&made), told.iter().map(|&(word, _)| word).collect::<Vec<_>>());
    let mut words = card.put(&words);
    lane.launch(
        "resolve",
        (lane.queue(), from.read(lane).view(), words.write(lane).view()),
        move |(queue, from, words)| gather.resolve(queue, from, words),
    );
    let want: Vec<u32> = told.iter().map(|&(word, kept)| kept.unwrap_or(word)).collect();
    assert_eq!(card.get(&words), want);
}

/// Blocks of any widths, behind one another, as many as rows have room.
#[test]
fn acceptance_is_the_host_s() {
    let (card, mut random) = (card(), Random::fresh());
    let acceptance = Acceptance::load(&card.cuda).expect("the acceptance loads");
    let lane = &card.lanes.forward;
    for (most, widest) in [(1, 1), (16, 16), (32, 3), (33, 40), (64, 1), (200, 9), (1024, 300)] {
        let mut widths = Vec::new();
        while widths.iter().sum::<usize>() < most {
            let left = most - widths.iter().sum::<usize>();
            widths.push((1 + random.below(widest)).min(left));
        }
        let number = |i: usize| std::iter::repeat_n(i as u32, widths[i]);
        let spans: Vec<u32> = (0..widths.len()).flat_map(number).collect();
        // Long runs of what is accepted, too.
        let odds = [2, 30][random.below(2)];
        let mut ids = || (0..most).map(|_| u32::from(random.below(odds) == 0)).collect();
        let (tokens, choices): (Vec<u32>, Vec<u32>) = (ids(), ids());
        let (a, b, c) = (card.put(&tokens), card.put(&spans), card.put(&choices));
        let (mut refused, mut anchors) =
            (card.put(&vec![7; widths.len()]), card.put(&vec![7; widths.len()]));
        let acceptance = acceptance.clone();
        lane.launch(
            "accept",
            (
                lane.queue(),
                (a.read(lane).view(), b.read(lane).view(), c.read(lane).view()),
                (refused.write(lane).view(), anchors.write(lane).view()),
            ),
            move |(queue, (tokens, spans, choices), (refused, anchors))| {
                let accepted = Accepted { refused, anchors };
                acceptance.launch(queue, (tokens, spans), choices, accepted);
            },
        );
        let (refused, anchors) = (card.get(&refused), card.get(&anchors));
        let mut start = 0;
        for (i, &width) in widths.iter().enumerate() {
            let block = start..start + width;
            let accepted = accept(&tokens[block.clone()][1..], &choices[block.clone()]);
            assert_eq!(refused[i] as usize, width - 1 - accepted, "block {i} of {widths:?}");
            assert_eq!(anchors[i], choices[block][accepted], "block {i} of {widths:?}");
            start += width;
        }
    }
}
