//! Attention against f64, and the bits of a row in other chunks, beside other requests and in other
//! pages.

use crate::card;
use crate::card::{Card, close, lined, narrowed, widened};
use crate::random::Random;
use crate::rope::Step;
use kernels::attention::Sight;
use kernels::attention::cuda::{Attended, Attention, Out, SPLIT, TILE, Tail, Tiling, tiles};
use kernels::gemm::cuda::Layout;
use kernels::rope::cuda::{Heads, StepRows};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Causal,
    Block(Sight),
}

/// A request whose keys and values are known by position; rows of q of its last positions.
struct Request {
    context: usize,
    rows: usize,
    k: Vec<u16>,
    v: Vec<u16>,
    q: Vec<u16>,
}

struct Case {
    heads: Heads,
    window: Option<usize>,
    kind: Kind,
    requests: Vec<Request>,
}

impl Case {
    fn new(
        random: &mut Random,
        (heads, window, kind): (Heads, Option<usize>, Kind),
        shapes: &[(usize, usize)],
    ) -> Case {
        let mut floats = |len: usize, scale| narrowed(&random.floats(len, scale));
        let requests = shapes
            .iter()
            .map(|&(context, rows)| Request {
                context,
                rows,
                k: floats((context + rows) * heads.kv * heads.dim, 1.5),
                v: floats((context + rows) * heads.kv * heads.dim, 1.0),
                q: floats(rows * heads.q * heads.dim, 1.5),
            })
            .collect();
        Case { heads, window, kind, requests }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.heads.dim as f32).sqrt()
    }

    /// One launch for the rows `from .. to` of each request, over pages in random places; what is in no
    /// page yet is NaN. The rows of each request in turn.
    fn run(
        &self,
        card: &Card,
        random: &mut Random,
        page_size: usize,
        part: (usize, usize),
    ) -> Vec<Vec<u16>> {
        let Heads { q: heads, kv, dim } = self.heads;
        let (width, kv_width) = (heads * dim, kv * dim);
        let rows_of = |r: &Request| part.0.min(r.rows)..part.1.min(r.rows);
        let mut shape = Vec::new();
        for r in &self.requests {
            let rows = rows_of(r);
            // A block's rows come whole: its context is what lies before it.
            let before = if self.kind == Kind::Causal { rows.start } else { 0 };
            shape.push((r.context + before, rows.len()));
        }
        let step = Step::new(random, page_size, &shape);
        let pool = (step.pages.len() + 3) * page_size * kv_width;
        let (mut keys, mut values) = (vec![0x7fff; pool], vec![0x7fff; pool]);
        let (mut q, mut tail_k, mut tail_v) = (Vec::new(), Vec::new(), Vec::new());
        let mut spans = Vec::new();
        let mut most = 0;
        for (i, (r, &(length, rows))) in self.requests.iter().zip(&shape).enumerate() {
            let stored = if self.kind == Kind::Causal { length + rows } else { length };
            for position in 0..stored {
                let slot = step.slot(i, position);
                for head in 0..kv {
                    let place = (slot / page_size * kv + head) * page_size + slot % page_size;
                    let from = position * kv_width + head * dim;
                    keys[place * dim..][..dim].copy_from_slice(&r.k[from..][..dim]);
                    values[place * dim..][..dim].copy_from_slice(&r.v[from..][..dim]);
                }
            }
            let here = rows_of(r);
            spans.push((q.len() / width, rows, i));
            q.extend_from_slice(&r.q[here.start * width..here.end * width]);
            tail_k.extend_from_slice(&r.k[r.context * kv_width..][..rows * kv_width]);
            tail_v.extend_from_slice(&r.v[r.context * kv_width..][..rows * kv_width]);
            most = most.max(stored.div_ceil(SPLIT));
        }
        let splits = most + 1 + random.below(3);
        let (mut tiles, tiling) = tiles(self.heads, &spans);
        // And some of no rows.
        tiles.resize(tiles.len() + random.below(3) * TILE, 0);
        let out = self.launch(
            card,
            &step,
            splits,
            (&tiles, tiling),
            [&q, &keys, &values, &tail_k, &tail_v],
        );
        spans.iter().map(|&(at, rows, _)| out[at * width..(at + rows) * width].to_vec()).collect()
    }

    fn launch(
        &self,
        card: &Card,
        step: &Step,
        splits: usize,
        (tiles, tiling): (&[u32], Tiling),
        given: [&[u16]; 5],
    ) -> Vec<u16> {
        let attention = Attention::load(&card.cuda).expect("the attention loads");
        let lane = &card.lanes.forward;
        let (heads, window, kind, scale) = (self.heads, self.window, self.kind, self.scale());
        let page_size = step.page_size;
        let rows = step.spans.len();
        let [q, keys, values, tail_k, tail_v] = given.map(|given| card.put(given));
        let (arrays, tiles) = (step.put(card), card.put(tiles));
        let mut parts = card.put(&vec![f32::NAN; Attention::parts(heads, rows)]);
        // Written where a launch's first row may stand, in rows or in tiles.
        let layout = if rows > 64 { Layout::Tiles } else { Layout::Rows };
        let (first, width) = (rows % 3, heads.q * heads.dim);
        let mut out = card.put(&vec![0x7fff; layout.elements(first + rows, width)]);
        let readings = arrays.each_ref().map(|array| array.read(lane));
        lane.launch(
            "attention",
            (
                (
                    lane.queue(),
                    q.read(lane).view(),
                    keys.read(lane).view(),
                    values.read(lane).view(),
                ),
                (tail_k.read(lane).view(), tail_v.read(lane).view(), tiles.read(lane).view()),
                readings.iter().map(|reading| reading.view()).collect::<Vec<_>>(),
                (parts.write(lane).view(), out.write(lane).view()),
            ),
            move |(pool, tail, arrays, (parts, out))| {
                let (queue, q, keys, values) = pool;
                let (tail_keys, tail_values, tiles) = tail;
                let [lengths, spans, offsets, firsts, pages] = arrays[..] else {
                    panic!("five arrays")
                };
                let tail = match kind {
                    Kind::Causal => Tail::Causal,
                    Kind::Block(sight) => {
                        Tail::Block { keys: tail_keys, values: tail_values, sight }
                    }
                };
                let step = StepRows { lengths, spans, offsets, firsts, pages, page_size };
                let attended = Attended {
                    keys,
                    values,
                    tail,
                    step,
                    tiles,
                    tiling,
                    heads,
                    splits,
                    scale,
                    window,
                };
                attention.launch(queue, attended, q, parts, Out { to: out, first, layout });
            },
        );
        lined(layout, &card.get(&out), (first + rows, width)).split_off(first * width)
    }

    /// In f64, the rows of each request in turn.
    fn reference(&self) -> Vec<Vec<f64>> {
        let Heads { q: heads, kv, dim } = self.heads;
        self.requests
            .iter()
            .map(|r| {
                let (q, k, v) = (widened(&r.q), widened(&r.k), widened(&r.v));
                let mut out = Vec::new();
                for row in 0..r.rows {
                    for head in 0..heads {
                        let q = &q[(row * heads + head) * dim..][..dim];
                        let of = |position: usize| (position * kv + head / (heads / kv)) * dim;
                        let own = r.context + row;
                        let seen: Vec<usize> = (0..r.context + r.rows)
                            .filter(|&at| self.kind == Kind::Block(Sight::BothWays) || at <= own)
                            .filter(|&at| {
                                self.window.is_none_or(|window| at.abs_diff(own) < window)
                            })
                            .collect();
                        let scores: Vec<f64> = seen
                            .iter()
                            .map(|&at| {
                                let dot: f64 = q
                                    .iter()
                                    .zip(&k[of(at)..])
                                    .map(|(&a, &b)| f64::from(a) * f64::from(b))
                                    .sum();
                                dot * f64::from(self.scale())
                            })
                            .collect();
                        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                        let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                        out.extend((0..dim).map(|d| {
                            let terms = seen.iter().zip(&scores);
                            terms
                                .map(|(&at, s)| {
                                    (s - largest).exp() / total * f64::from(v[of(at) + d])
                                })
                                .sum::<f64>()
                        }));
                    }
                }
                out
            })
            .collect()
    }
}

const HEADS: [Heads; 4] = [
    Heads { q: 9, kv: 3, dim: 64 },
    Heads { q: 8, kv: 2, dim: 128 },
    Heads { q: 2, kv: 2, dim: 64 },
    Heads { q: 6, kv: 2, dim: 256 },
];
const KINDS: [Kind; 3] = [Kind::Causal, Kind::Block(Sight::BothWays), Kind::Block(Sight::Behind)];

#[test]
fn attention_matches() {
    let (card, mut random) = (card(), Random::fresh());
    for heads in HEADS {
        for kind in KINDS {
            for window in [None, Some(1), Some(50), Some(300)] {
                let shapes = [
                    (0, 1),
                    (random.below(40), 16),
                    (127, 2),
                    (256, 1),
                    (300 + random.below(300), 1 + random.below(30)),
                ];
                let case = Case::new(&mut random, (heads, window, kind), &shapes);
                let page_size = [1, 8, 16, 64][random.below(4)];
                let got = case.run(&card, &mut random, page_size, (0, usize::MAX));
                for (got, want) in got.iter().zip(case.reference()) {
                    // Weights are rounded to bf16, one in 2⁹ each, of values below 1; then the result.
                    close(&format!("{heads:?} {kind:?} {window:?}"), &widened(got), &want, |_| {
                        1.0 / 512.0 + 1.0 / 512.0 + 1e-5
                    });
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_what_is_beside_it() {
    let (card, mut random) = (card(), Random::fresh());
    for heads in HEADS {
        for window in [None, Some(70)] {
            let shapes = [(0, 50), (200 + random.below(200), 40), (130, 3)];
            in_chunks(&card, &mut random, (heads, window), &shapes, &[1, 7, 16]);
            for kind in KINDS {
                alone(&card, &mut random, (heads, window, kind), &shapes);
            }
        }
    }
}

/// As much of it as a checker follows that slows it down a hundredfold.
#[test]
fn few_rows_do_not_depend_on_what_is_beside_them() {
    let (card, mut random) = (card(), Random::fresh());
    let shapes = [(0, 20), (200 + random.below(100), 20), (130, 3)];
    in_chunks(&card, &mut random, (HEADS[1], Some(70)), &shapes, &[7]);
    alone(&card, &mut random, (HEADS[1], None, Kind::Block(Sight::BothWays)), &shapes);
    alone(&card, &mut random, (HEADS[3], Some(70), Kind::Causal), &shapes[1..]);
}

/// Holds rows that come in chunks, and in other pages, to those that come at once.
fn in_chunks(
    card: &Card,
    random: &mut Random,
    (heads, window): (Heads, Option<usize>),
    shapes: &[(usize, usize)],
    sizes: &[usize],
) {
    let case = Case::new(random, (heads, window, Kind::Causal), shapes);
    let whole = case.run(card, random, 16, (0, usize::MAX));
    let most = shapes.iter().map(|&(_, rows)| rows).max().expect("a request");
    for &chunk in sizes {
        let mut chunks = vec![Vec::new(); shapes.len()];
        for from in (0..most).step_by(chunk) {
            let part = case.run(card, random, 8, (from, from + chunk));
            chunks.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
        }
        assert!(chunks == whole, "{heads:?} in chunks of {chunk}, window {window:?}");
    }
}

/// Holds each request alone, in other pages, to itself beside the others.
fn alone(
    card: &Card,
    random: &mut Random,
    (heads, window, kind): (Heads, Option<usize>, Kind),
    shapes: &[(usize, usize)],
) {
    let mut case = Case::new(random, (heads, window, kind), shapes);
    let whole = case.run(card, random, 16, (0, usize::MAX));
    for alone in (0..shapes.len()).rev() {
        let requests = vec![case.requests.swap_remove(alone)];
        let one = Case { requests, heads, window, kind };
        let got = one.run(card, random, 64, (0, usize::MAX));
        assert!(got[0] == whole[alone], "{heads:?} {kind:?} alone, window {window:?}");
    }
}

/// Where there are many tiles, ranks take turns in a block of threads, which merges what they found or leaves it to
/// others; where there are few, each has its own. The bits are the same.
#[test]
fn many_requests_have_the_bits_of_one() {
    let (card, mut random) = (card(), Random::fresh());
    for heads in [HEADS[0], HEADS[1], HEADS[3]] {
        for kind in KINDS {
            in_a_crowd(&card, &mut random, (heads, None, kind), (700, 3));
            in_a_crowd(&card, &mut random, (heads, Some(100), kind), (300, 3));
            // Too many for tiles whose ranks are merged at once.
            in_a_crowd(&card, &mut random, (heads, None, kind), (200, 20));
        }
    }
}

/// As much of it as a checker follows that slows it down a hundredfold.
#[test]
fn few_of_many_requests_have_the_bits_of_one() {
    let (card, mut random) = (card(), Random::fresh());
    in_a_crowd(&card, &mut random, (HEADS[1], None, Kind::Causal), (200, 3));
    in_a_crowd(&card, &mut random, (HEADS[1], Some(70), Kind::Causal), (100, 20));
}

/// Holds 100 requests with contexts and rows of up to `most` to f64, and some of them to what they are alone.
fn in_a_crowd(
    card: &Card,
    random: &mut Random,
    (heads, window, kind): (Heads, Option<usize>, Kind),
    most: (usize, usize),
) {
    let shapes: Vec<(usize, usize)> =
        (0..100).map(|_| (random.below(most.0), 1 + random.below(most.1))).collect();
    let mut case = Case::new(random, (heads, window, kind), &shapes);
    let whole = case.run(card, random, 16, (0, usize::MAX));
    for (got, want) in whole.iter().zip(case.reference()) {
        // As in `attention_matches`.
        close(&format!("{heads:?} {kind:?}"), &widened(got), &want, |_| {
            1.0 / 512.0 + 1.0 / 512.0 + 1e-5
        });
    }
    for at in [97, 50, 3] {
        let one = Case { requests: vec![case.requests.remove(at)], heads, window, kind };
        let got = one.run(card, random, 8, (0, usize::MAX));
        assert!(got[0] == whole[at], "{heads:?} {kind:?}: request {at} alone");
    }
}
