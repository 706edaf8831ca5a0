//! Attention against f64, and the independence of a row's bits from everything beside it.

use super::*;
use crate::kv_store::KvFormat;
use crate::random::Random;

/// Requests whose keys and values are known by position, and the queries of their last rows.
struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
    format: KvFormat,
    requests: Vec<Request>,
}

struct Request {
    context: usize,
    rows: usize,
    /// `[context + rows, kv_heads · dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[rows, heads · dim]`.
    q: Vec<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Causal,
    Block(Sight),
}

const KINDS: [Kind; 3] = [Kind::Causal, Kind::Block(Sight::BothWays), Kind::Block(Sight::Behind)];

impl Case {
    /// `shapes` holds (context, rows) of each request.
    fn new(
        random: &mut Random,
        (heads, kv_heads, dim): (usize, usize, usize),
        window: Option<usize>,
        shapes: &[(usize, usize)],
    ) -> Case {
        let requests = shapes
            .iter()
            .map(|&(context, rows)| Request {
                context,
                rows,
                k: random.floats((context + rows) * kv_heads * dim, 1.5),
                v: random.floats((context + rows) * kv_heads * dim, 1.0),
                q: random.floats(rows * heads * dim, 1.5),
            })
            .collect();
        Case { heads, kv_heads, dim, window, format: KvFormat::F32, requests }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// The requests' rows, `chunk` at a time, in one launch a chunk over pages of `page_size` in
    /// random places; slots not stored yet hold NaN. Returns the rows of each request in turn.
    fn run(
        &self,
        random: &mut Random,
        level: Level,
        kind: Kind,
        (page_size, chunk, threads): (usize, usize, usize),
    ) -> Vec<f32> {
        let cpu = Cpu::new(threads);
        let (row, kv_row) = (self.heads * self.dim, self.kv_heads * self.dim);
        let needed = |r: &Request| (r.context + r.rows).div_ceil(page_size);
        let pages = random.permutation(self.requests.iter().map(needed).sum::<usize>() + 3);
        let mut pool = KvPool::new(self.format, 1, pages.len(), page_size, self.kv_heads, self.dim);
        let all: Vec<u32> = (0..(pages.len() * page_size) as u32).collect();
        let nan = vec![f32::NAN; all.len() * kv_row];
        pool.store(&cpu, 0, &all, &nan, &nan);
        let mut outs = vec![Vec::new(); self.requests.len()];
        let most = self.requests.iter().map(|r| r.rows).max().unwrap();
        for done in (0..most).step_by(chunk) {
            let (mut spans, mut q, mut first_page) = (Vec::new(), Vec::new(), 0);
            let (mut k, mut v) = (Vec::new(), Vec::new());
            for request in &self.requests {
                let (from, to) = (done.min(request.rows), (done + chunk).min(request.rows));
                let (context, stored) = match kind {
                    Kind::Causal => (request.context + from, request.context + to),
                    Kind::Block(_) => (request.context, request.context),
                };
                let slot =
                    |t| pages[first_page + t / page_size] as usize * page_size + t % page_size;
                let slots: Vec<u32> = (0..stored).map(|t| slot(t) as u32).collect();
                let stored = ..stored * kv_row;
                pool.store(&cpu, 0, &slots, &request.k[stored], &request.v[stored]);
                let own = (request.context + from) * kv_row..(request.context + to) * kv_row;
                k.extend_from_slice(&request.k[own.clone()]);
                v.extend_from_slice(&request.v[own]);
                spans.push(Span { start: q.len() / row, len: to - from, context, first_page });
                q.extend_from_slice(&request.q[from * row..to * row]);
                first_page += needed(request);
            }
            let tail = match kind {
                Kind::Causal => Tail::Causal,
                Kind::Block(sight) => Tail::Block { k: &k, v: &v, sight },
            };
            let y = self.launch(&cpu, level, &pool, &pages, &spans, tail, &q);
            for (span, out) in spans.iter().zip(&mut outs) {
                out.extend_from_slice(&y[span.start * row..(span.start + span.len) * row]);
            }
        }
        outs.concat()
    }

    #[allow(clippy::too_many_arguments)] // the fields of a launch
    fn launch(
        &self,
        cpu: &Cpu,
        level: Level,
        pool: &KvPool,
        pages: &[u32],
        spans: &[Span],
        tail: Tail<'_>,
        q: &[f32],
    ) -> Vec<f32> {
        let launch = Launch {
            pool,
            layer: pool.layer(0),
            pages,
            spans,
            tail,
            heads: self.heads,
            scale: self.scale(),
            window: self.window,
        };
        launch.check(q.len(), q.len());
        let mut out = vec![f32::NAN; q.len()];
        cpu::attention(cpu, level, &launch, q, &mut out);
        out
    }

    /// The definition, in f64.
    fn reference(&self, kind: Kind) -> Vec<f64> {
        let mut out = Vec::new();
        for request in &self.requests {
            for (i, q) in request.q.chunks(self.dim).enumerate() {
                let (row, head) = (i / self.heads, i % self.heads / (self.heads / self.kv_heads));
                let position = request.context + row;
                let end = match kind {
                    Kind::Block(Sight::BothWays) => {
                        let ahead = self.window.unwrap_or(usize::MAX);
                        (request.context + request.rows).min(position.saturating_add(ahead))
                    }
                    Kind::Causal | Kind::Block(Sight::Behind) => position + 1,
                };
                let start = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
                let at = |t: usize| (t * self.kv_heads + head) * self.dim;
                let scores: Vec<f64> = (start..end)
                    .map(|t| {
                        let k = &request.k[at(t)..at(t) + self.dim];
                        let dot: f64 = q.iter().zip(k).map(|(&q, &k)| q as f64 * k as f64).sum();
                        dot * self.scale() as f64
                    })
                    .collect();
                let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let p: Vec<f64> = scores.iter().map(|s| (s - m).exp()).collect();
                let sum: f64 = p.iter().sum();
                out.extend((0..self.dim).map(|d| {
                    let weighed = |(p, t): (&f64, usize)| p * request.v[at(t) + d] as f64;
                    p.iter().zip(start..end).map(weighed).sum::<f64>() / sum
                }));
            }
        }
        out
    }
}

const WHOLE: usize = usize::MAX / 2;

/// The largest difference from `reference`; NaN counts as one.
fn worst(y: &[f32], reference: &[f64]) -> f64 {
    let errors = y.iter().zip(reference).map(|(y, e)| (*y as f64 - e).abs());
    errors.fold(0.0, |a, b| if a >= b { a } else { b })
}

#[test]
fn matches_f64() {
    let mut random = Random::fresh();
    let shapes = [(0, 1), (700, 1), (255, 3), (256, 9), (31, 40), (0, 300)];
    for geometry in [(9, 3, 64), (2, 2, 5), (4, 1, 80), (5, 1, 20)] {
        for window in [None, Some(1), Some(20), Some(300)] {
            let case = Case::new(&mut random, geometry, window, &shapes);
            for kind in KINDS {
                for page_size in [1, 16] {
                    let how = (page_size, WHOLE, 2);
                    let y = case.run(&mut random, Level::best(), kind, how);
                    let worst = worst(&y, &case.reference(kind));
                    assert!(worst < 3e-6, "{geometry:?} {window:?} {kind:?}: off by {worst}");
                }
            }
        }
    }
}

/// Keys and values that a format stores without an error are read without one: whole numbers, of which the
/// largest of each head is 127.
#[test]
fn what_is_stored_exactly_matches_f64() {
    let mut random = Random::fresh();
    let shapes = [(0, 1), (700, 1), (255, 3), (31, 40)];
    for geometry in [(9, 3, 64), (2, 2, 5), (5, 1, 20)] {
        for (format, window) in [KvFormat::Bf16, KvFormat::Int8]
            .into_iter()
            .flat_map(|format| [(format, None), (format, Some(20))])
        {
            let mut case = Case::new(&mut random, geometry, window, &shapes);
            case.format = format;
            let dim = case.dim;
            for request in &mut case.requests {
                // Small queries, since such keys are large.
                request.q.iter_mut().for_each(|q| *q /= 64.0);
                let vectors =
                    request.k.chunks_exact_mut(dim).chain(request.v.chunks_exact_mut(dim));
                for vector in vectors {
                    let largest = vector.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
                    vector.iter_mut().for_each(|x| *x = (*x / largest * 127.0).round());
                }
            }
            for kind in KINDS {
                for page_size in [1, 16] {
                    let how = (page_size, WHOLE, 2);
                    let y = case.run(&mut random, Level::best(), kind, how);
                    let worst = worst(&y, &case.reference(kind));
                    assert!(worst < 3e-4, "{format:?} {geometry:?} {kind:?}: off by {worst}");
                }
            }
        }
    }
}

#[test]
fn a_format_costs_what_its_steps_are() {
    let mut random = Random::fresh();
    let shapes = [(700, 1), (255, 3), (31, 40)];
    let mut case = Case::new(&mut random, (9, 3, 64), None, &shapes);
    let reference = case.reference(Kind::Causal);
    // The values lie within 1, the scores within some units: a step of the one and of the other.
    for (format, most) in [(KvFormat::Bf16, 1e-2), (KvFormat::Int8, 2e-2)] {
        case.format = format;
        let y = case.run(&mut random, Level::best(), Kind::Causal, (16, WHOLE, 2));
        let worst = worst(&y, &reference);
        assert!((1e-5..most).contains(&worst), "{format:?}: off by {worst}");
    }
}

#[test]
fn bits_do_not_depend_on_pages_chunks_threads_or_instructions() {
    let mut random = Random::fresh();
    let shapes = [(700, 1), (250, 12), (0, 70)];
    let kinds = [((9, 3, 64), None), ((3, 1, 20), None), ((4, 2, 16), Some(90))];
    for ((geometry, window), format) in
        kinds.into_iter().flat_map(|kind| KvFormat::ALL.map(|format| (kind, format)))
    {
        let mut case = Case::new(&mut random, geometry, window, &shapes);
        case.format = format;
        let expected = case.run(&mut random, Level::best(), Kind::Causal, (16, WHOLE, 1));
        for how in [
            (1, WHOLE, 1),
            (2, WHOLE, 2),
            (64, WHOLE, 3),
            (512, WHOLE, 2),
            (16, 1, 1),
            (16, 1, 2),
            (1, 5, 3),
            (64, 33, 2),
        ] {
            let y = case.run(&mut random, Level::best(), Kind::Causal, how);
            assert!(
                y == expected,
                "(page size, chunk, threads) {how:?} of {geometry:?}, {format:?}"
            );
        }
        for level in Level::available() {
            let y = case.run(&mut random, level, Kind::Causal, (16, WHOLE, 1));
            assert!(y == expected, "{level:?} of {geometry:?}, {format:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_other_requests() {
    let mut random = Random::fresh();
    let shapes = [(300, 16), (0, 8), (513, 1), (40, 16), (100, 16), (256, 16)];
    for window in [None, Some(64)] {
        for kind in KINDS {
            let mut case = Case::new(&mut random, (6, 2, 64), window, &shapes);
            let together = case.run(&mut random, Level::best(), kind, (16, WHOLE, 3));
            let mut alone = Vec::new();
            for request in std::mem::take(&mut case.requests) {
                case.requests = vec![request];
                alone.extend(case.run(&mut random, Level::best(), kind, (64, WHOLE, 2)));
            }
            assert!(together == alone, "{kind:?} {window:?}");
        }
    }
}

#[test]
fn a_later_row_that_is_not_finite_leaves_the_earlier_ones_alone() {
    let mut random = Random::fresh();
    for format in KvFormat::ALL {
        let mut case = Case::new(&mut random, (3, 1, 64), None, &[(100, 8)]);
        case.format = format;
        let expected = case.run(&mut random, Level::best(), Kind::Causal, (16, WHOLE, 1));
        case.requests[0].k[105 * 64..].fill(f32::NAN);
        case.requests[0].v[105 * 64..].fill(f32::INFINITY);
        let y = case.run(&mut random, Level::best(), Kind::Causal, (16, WHOLE, 1));
        assert_eq!(y[..5 * 3 * 64], expected[..5 * 3 * 64], "{format:?}");
        assert!(y[5 * 3 * 64..].iter().all(|y| y.is_nan()), "{format:?}");
    }
}

#[test]
#[should_panic(expected = "needs 17 tokens' pages of the pool's 2")]
fn a_span_past_its_pages_panics() {
    let pool = KvPool::new(KvFormat::F32, 1, 2, 16, 1, 4);
    let launch = Launch {
        pool: &pool,
        layer: pool.layer(0),
        pages: &[1],
        spans: &[Span { start: 0, len: 1, context: 16, first_page: 0 }],
        tail: Tail::Causal,
        heads: 1,
        scale: 1.0,
        window: None,
    };
    attention(&Cpu::new(1), &launch, &[0.0; 4], &mut [0.0; 4]);
}
