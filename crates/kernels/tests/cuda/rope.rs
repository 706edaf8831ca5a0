//! Places, the begin of a pass, rotations and the store into pages: against the CPU's angles and f64.

use crate::card;
use crate::card::{Buffer, Card, close, narrowed, widened};
use crate::random::Random;
use crate::small::{BF16, product};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::Shape;
use kernels::rope::Angles;
use kernels::rope::cuda::{Embedded, Heads, Layers, Placed, Rotations, StepRows, Stored, Turns};

/// Rows of requests at random lengths, over pages in random places.
pub(crate) struct Step {
    pub(crate) page_size: usize,
    pub(crate) lengths: Vec<u32>,
    pub(crate) spans: Vec<u32>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) firsts: Vec<u32>,
    pub(crate) pages: Vec<u32>,
}

impl Step {
    /// `requests` holds (length, rows) of each.
    pub(crate) fn new(random: &mut Random, page_size: usize, requests: &[(usize, usize)]) -> Step {
        let mut step = Step {
            page_size,
            lengths: requests.iter().map(|r| r.0 as u32).collect(),
            spans: Vec::new(),
            offsets: Vec::new(),
            firsts: Vec::new(),
            pages: Vec::new(),
        };
        let mut first = 0;
        for (request, &(length, rows)) in requests.iter().enumerate() {
            step.spans.extend((0..rows).map(|_| request as u32));
            step.offsets.extend(0..rows as u32);
            step.firsts.push(first);
            first += (length + rows).div_ceil(page_size) as u32;
        }
        step.pages = random.permutation(first as usize + 3)[..first as usize].to_vec();
        step
    }

    pub(crate) fn position(&self, row: usize) -> u32 {
        self.lengths[self.spans[row] as usize] + self.offsets[row]
    }

    /// The slot of a request's position.
    pub(crate) fn slot(&self, request: usize, position: usize) -> usize {
        let page = self.pages[self.firsts[request] as usize + position / self.page_size] as usize;
        page * self.page_size + position % self.page_size
    }

    /// Its arrays on the card: lengths, spans, offsets, firsts, pages.
    pub(crate) fn put(&self, card: &Card) -> [Buffer<u32>; 5] {
        [&self.lengths, &self.spans, &self.offsets, &self.firsts, &self.pages].map(|a| card.put(a))
    }
}

/// The placed rows of a step: positions, slots, angles.
fn placed(card: &Card, step: &Step, frequencies: &[f32]) -> (Vec<u32>, Buffer<u32>, Buffer<f32>) {
    let rotations = Rotations::load(&card.cuda).expect("the rotations load");
    let (lane, rows, page_size) = (&card.lanes.forward, step.spans.len(), step.page_size);
    let arrays = step.put(card);
    let inverse = card.put(frequencies);
    let mut positions = card.put(&vec![u32::MAX; rows]);
    let mut slots = card.put(&vec![u32::MAX; rows]);
    let mut angles = card.put(&vec![f32::NAN; rows * 2 * frequencies.len()]);
    let readings = arrays.each_ref().map(|array| array.read(lane));
    lane.launch(
        "places",
        (
            lane.queue(),
            readings.iter().map(|reading| reading.view()).collect::<Vec<_>>(),
            inverse.read(lane).view(),
            positions.write(lane).view(),
            slots.write(lane).view(),
            angles.write(lane).view(),
        ),
        move |(queue, arrays, inverse, positions, slots, angles)| {
            let [lengths, spans, offsets, firsts, pages] = arrays[..] else {
                panic!("five arrays")
            };
            let step = StepRows { lengths, spans, offsets, firsts, pages, page_size };
            rotations.places(queue, step, (inverse, 1.0), Placed { positions, slots, angles });
        },
    );
    (card.get(&positions), slots, angles)
}

/// As [`placed`], and the residual stream of rows with these ids: a pass begins with both.
fn begun(
    card: &Card,
    step: &Step,
    frequencies: &[f32],
    (table, width, ids): (&[u16], usize, &[u32]),
) -> ([Vec<u32>; 2], [Vec<f32>; 2]) {
    let rotations = Rotations::load(&card.cuda).expect("the rotations load");
    let (lane, rows, page_size) = (&card.lanes.forward, step.spans.len(), step.page_size);
    let mut arrays = Vec::from(step.put(card));
    arrays.push(card.put(ids));
    let (table, inverse) = (card.put(table), card.put(frequencies));
    let mut places = [(); 2].map(|()| card.put(&vec![u32::MAX; rows]));
    let mut floats =
        [rows * 2 * frequencies.len(), rows * width].map(|len| card.put(&vec![f32::NAN; len]));
    let readings: Vec<_> = arrays.iter().map(|array| array.read(lane)).collect();
    let ([positions, slots], [angles, x]) = (&mut places, &mut floats);
    lane.launch(
        "begin",
        (
            lane.queue(),
            readings.iter().map(|reading| reading.view()).collect::<Vec<_>>(),
            (table.read(lane).view(), inverse.read(lane).view()),
            (positions.write(lane).view(), slots.write(lane).view()),
            (angles.write(lane).view(), x.write(lane).view()),
        ),
        move |(queue, arrays, (table, inverse), (positions, slots), (angles, x))| {
            let [lengths, spans, offsets, firsts, pages, ids] = arrays[..] else {
                panic!("six arrays")
            };
            let step = StepRows { lengths, spans, offsets, firsts, pages, page_size };
            let to = Placed { positions, slots, angles };
            rotations.begin(queue, step, (inverse, 1.0), to, Embedded { table, width, ids, x });
        },
    );
    drop(readings);
    (places.each_ref().map(|a| card.get(a)), floats.each_ref().map(|a| card.get(a)))
}

/// The heads of layers, the rows they are made for, and where these stand.
pub(crate) struct Case {
    pub(crate) heads: Heads,
    layers: usize,
    step: Step,
    positions: Vec<u32>,
    pub(crate) slots: Buffer<u32>,
    pub(crate) angles: Buffer<f32>,
}

/// Added to the mean squares of heads.
pub(crate) const EPS: f32 = 1e-6;

impl Case {
    fn random(
        card: &Card,
        random: &mut Random,
        (heads, layers): (Heads, usize),
        page_size: usize,
    ) -> Case {
        // Few rows, or so many that products are left whole.
        let long = (random.below(90_000), 1 + random.below(9) + [0, 128][random.below(2)]);
        let requests = [(random.below(5000), 5), (0, 1), long];
        let step = Step::new(random, page_size, &requests);
        Case::new(card, (heads, layers), step)
    }

    pub(crate) fn new(card: &Card, (heads, layers): (Heads, usize), step: Step) -> Case {
        let frequencies: Vec<f32> = (0..heads.dim / 2)
            .map(|i| 10_000f32.powf(-2.0 * i as f32 / heads.dim as f32))
            .collect();
        let (positions, slots, angles) = placed(card, &step, &frequencies);
        let case = Case { heads, layers, step, positions, slots, angles };
        case.check_places(card, &frequencies);
        case
    }

    fn slot(&self, row: usize) -> usize {
        self.step.slot(self.step.spans[row] as usize, self.positions[row] as usize)
    }

    fn check_places(&self, card: &Card, frequencies: &[f32]) {
        let rows = self.step.spans.len();
        let want: Vec<u32> = (0..rows).map(|row| self.step.position(row)).collect();
        assert_eq!(self.positions, want);
        let want: Vec<u32> = (0..rows).map(|row| self.slot(row) as u32).collect();
        assert_eq!(card.get(&self.slots), want);
        let mut on_cpu = Angles::default();
        on_cpu.fill(&self.positions, frequencies, 1.0);
        let half = frequencies.len();
        for (row, got) in card.get(&self.angles).chunks_exact(2 * half).enumerate() {
            let part = row * half..(row + 1) * half;
            let want = [&on_cpu.cos[part.clone()], &on_cpu.sin[part]].concat();
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            // One f32 rounding of two f64 functions, which may differ in their last bit.
            close("angles", got, &want, |_| 6e-8);
        }
    }

    /// Elements of a layer's keys, and of its values.
    fn pool(&self) -> usize {
        let pages = self.step.pages.iter().max().map_or(1, |&page| page as usize + 1);
        pages * self.step.page_size * self.heads.kv * self.heads.dim
    }

    pub(crate) fn layers(&self) -> Layers {
        let (pages_apart, norms_apart) = (self.pool(), 2 * self.heads.dim);
        Layers { count: self.layers, pages_apart, norms_apart }
    }

    /// Room for q, keys and values.
    pub(crate) fn room(&self, card: &Card) -> [Buffer<u16>; 3] {
        let q = self.step.spans.len() * self.heads.q * self.heads.dim;
        let pools = self.layers * self.pool();
        [q, pools, pools].map(|elements| card.put(&vec![0x7fff; elements]))
    }

    /// q, keys and values of the rows' projections.
    pub(crate) fn store(
        &self,
        card: &Card,
        (shape, pieces): (Shape, &Buffer<f32>),
        norms: &[f32],
    ) -> [Vec<u16>; 3] {
        let rotations = Rotations::load(&card.cuda).expect("the rotations load");
        let (lane, heads) = (&card.lanes.forward, self.heads);
        let (rows, page_size, layers) = (self.step.spans.len(), self.step.page_size, self.layers());
        let [mut q, mut keys, mut values] = self.room(card);
        let norms = card.put(norms);
        lane.launch(
            "store",
            (
                lane.queue(),
                pieces.read(lane).view(),
                norms.read(lane).view(),
                (self.angles.read(lane).view(), self.slots.read(lane).view()),
                (q.write(lane).view(), keys.write(lane).view(), values.write(lane).view()),
            ),
            move |(queue, at, norms, (angles, slots), (q, keys, values))| {
                let projected = Pieces { at, shape, rows: rows as u32 };
                let turns = Turns { norms, eps: EPS, angles, slots };
                let to = Stored { q, keys, values, page_size, layers };
                rotations.store(queue, (heads, projected), turns, to);
            },
        );
        [card.get(&q), card.get(&keys), card.get(&values)]
    }

    pub(crate) fn check_heads(
        &self,
        got: &[Vec<u16>; 3],
        sums: &[f32],
        norms: &[f32],
        angles: &[f32],
    ) {
        let (Heads { q, kv, dim }, page_size) = (self.heads, self.step.page_size);
        let all = q + 2 * kv;
        for (at, x) in sums.chunks_exact(dim).enumerate() {
            let (row, head) = (at / (self.layers * all), at % all);
            let layer = at / all % self.layers;
            let norms = if norms.is_empty() { norms } else { &norms[layer * 2 * dim..][..2 * dim] };
            let (want, from) = rotated(x, head, (q, kv), norms, &angles[row * dim..][..dim]);
            let (slot, kv_head) = (self.slot(row), if head < q { 0 } else { (head - q) % kv });
            let place = (slot / page_size * kv + kv_head) * page_size + slot % page_size;
            let place = layer * (self.pool() / dim) + place;
            let place = if from == 0 { row * q + head } else { place };
            let there = widened(&got[from][place * dim..][..dim]);
            // A pair may cancel, so the bound follows the larger of its two terms.
            let most = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            close("head", &there, &want, |i| want[i].abs() * BF16 + most * 1e-6);
        }
    }
}

#[test]
fn rows_are_placed_and_heads_rotated_and_stored() {
    let (card, mut random) = (card(), Random::fresh());
    // The last ones of several layers.
    let shapes = [
        (64, 9, 3, 16, 1),
        (128, 4, 1, 8, 1),
        (128, 32, 8, 16, 1),
        (64, 0, 2, 1, 1),
        (256, 5, 1, 8, 1),
        (256, 0, 3, 1, 1),
        (64, 0, 3, 16, 3),
        (128, 0, 8, 8, 5),
    ];
    for (dim, q, kv, page_size, layers) in shapes {
        let heads = Heads { q, kv, dim };
        let case = Case::random(&card, &mut random, (heads, layers), page_size);
        let (rows, columns) = (case.step.spans.len(), layers * (q + 2 * kv) * dim);
        let (weight, pieces, sums) = product(&card, &mut random, rows, columns);
        let angles = card.get(&case.angles);
        for with_norms in [layers * 2 * dim, 0] {
            let norms = random.floats(with_norms, 1.5);
            let got = case.store(&card, (weight.shape, &pieces), &norms);
            case.check_heads(&got, &sums, &norms, &angles);
        }
    }
}

/// Rows begin where they are placed, whatever the width, and with the embeddings of their ids.
#[test]
fn a_pass_begins_with_places_and_embeddings() {
    let (card, mut random) = (card(), Random::fresh());
    for (width, half) in [(4, 64), (4 * (1 + random.below(1200)), 32), (4096, 64), (8192, 128)] {
        let requests = [(random.below(90_000), 1 + random.below(9)), (0, 1), (77, 140)];
        let step = Step::new(&mut random, 16, &requests);
        let frequencies: Vec<f32> =
            (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
        let tokens = 90;
        let table = narrowed(&random.floats(tokens * width, 3.0));
        let ids: Vec<u32> = step.spans.iter().map(|_| random.below(tokens) as u32).collect();
        let ([positions, slots], [angles, x]) =
            begun(&card, &step, &frequencies, (&table, width, &ids));
        let alone = placed(&card, &step, &frequencies);
        assert_eq!((positions, slots), (alone.0, card.get(&alone.1)), "rows of {width}");
        assert!(angles == card.get(&alone.2), "the angles beside rows of {width}");
        let want: Vec<f32> =
            ids.iter().flat_map(|&id| widened(&table[id as usize * width..][..width])).collect();
        assert!(x == want, "rows of {width}");
    }
}

/// What becomes of one head in f64, and where it goes: q, keys or values.
fn rotated(
    x: &[f32],
    head: usize,
    (heads, kv_heads): (usize, usize),
    norms: &[f32],
    angles: &[f32],
) -> (Vec<f64>, usize) {
    let dim = x.len();
    let mut x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    if head >= heads + kv_heads {
        return (x, 2);
    }
    if !norms.is_empty() {
        let weight = &norms[if head < heads { 0 } else { dim }..][..dim];
        let inverse = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / dim as f64 + 1e-6).sqrt();
        x.iter_mut().zip(weight).for_each(|(x, &w)| *x *= inverse * f64::from(w));
    }
    let (cosines, sines) = angles.split_at(dim / 2);
    for (i, (&cos, &sin)) in cosines.iter().zip(sines).enumerate() {
        let (cos, sin) = (f64::from(cos), f64::from(sin));
        let (a, b) = (x[i], x[i + dim / 2]);
        (x[i], x[i + dim / 2]) = (a * cos - b * sin, b * cos + a * sin);
    }
    (x, usize::from(head >= heads))
}
