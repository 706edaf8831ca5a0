//! Every level against f64 and against the others, bit for bit.

use super::*;
use crate::random::Random;

struct Exp<'a>(&'a [f32], &'a mut [f32]);

impl Kernel for Exp<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let (from, _) = self.0.as_chunks();
        let (to, _) = self.1.as_chunks_mut();
        for (from, to) in from.iter().zip(to) {
            lanes.store(lanes.exp(lanes.load(from)), to);
        }
    }
}

fn exp(level: Level, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    level.dispatch(Exp(x, &mut y));
    y
}

#[test]
fn exp_is_within_its_stated_error() {
    let mut random = Random::fresh();
    let x: Vec<f32> = (0..160_000).map(|_| random.uniform(-87.0, 88.0)).collect();
    for (x, y) in x.iter().zip(exp(Level::best(), &x)) {
        let exact = (*x as f64).exp();
        assert!((y as f64 / exact - 1.0).abs() < 3e-7, "exp({x}) gave {y}, not {exact}");
    }
}

#[test]
fn exp_at_the_edges() {
    let mut x = [0.0; LANES];
    x[..9].copy_from_slice(&[
        0.0,
        -0.0,
        -87.0,
        -87.00001,
        -1e30,
        f32::NEG_INFINITY,
        88.0,
        f32::INFINITY,
        f32::NAN,
    ]);
    for level in Level::available() {
        let y = exp(level, &x);
        assert_eq!(y[..2], [1.0, 1.0]);
        assert!(y[2] > 1.6e-38 && y[2] < 1.7e-38);
        assert_eq!(y[3..6], [0.0; 3]);
        assert_eq!(y[6], y[7]);
        assert!(y[8].is_nan());
    }
}

#[test]
fn every_level_and_lane_gives_the_same_bits() {
    let mut random = Random::fresh();
    let x: Vec<f32> = (0..4096).map(|_| random.uniform(-90.0, 90.0)).collect();
    let expected = exp(Level::best(), &x);
    for level in Level::available() {
        let bits = |y: &[f32]| y.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&exp(level, &x)), bits(&expected), "{level:?}");
        for shift in 1..LANES {
            let moved = exp(level, &x[shift..shift + 4080]);
            assert_eq!(bits(&moved), bits(&expected[shift..shift + 4080]), "{level:?}");
        }
    }
}

struct Sums<'a>(&'a [f32; LANES]);

impl Kernel for Sums<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> (f32, f32) {
        let v = lanes.load(self.0);
        (lanes.sum(v), lanes.largest(v))
    }
}

#[test]
fn sum_and_largest() {
    let mut x: [f32; LANES] = std::array::from_fn(|i| i as f32);
    for level in Level::available() {
        x[15] = 15.0;
        assert_eq!(level.dispatch(Sums(&x)), (120.0, 15.0));
        x[15] = f32::NAN;
        assert_eq!(level.dispatch(Sums(&x)).1, 14.0);
    }
}

/// What every operation makes of two vectors, and what `ge` does.
struct Operations<'a>(&'a [f32; LANES], &'a [f32; LANES]);

impl Kernel for Operations<'_> {
    type Output = ([[f32; LANES]; 9], u16);
    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Self::Output {
        let (a, b) = (lanes.load(self.0), lanes.load(self.1));
        let all = [
            lanes.add(a, b),
            lanes.sub(a, b),
            lanes.mul(a, b),
            lanes.div(a, b),
            lanes.fma(a, b, a),
            lanes.max(a, b),
            lanes.min(a, b),
            lanes.scale(a, b),
            lanes.zero_below(a, a, b),
        ];
        let mut out = [[0.0; LANES]; 9];
        for (v, out) in all.into_iter().zip(&mut out) {
            lanes.store(v, out);
        }
        (out, lanes.ge(a, b))
    }
}

#[test]
fn every_operation_gives_the_same_bits() {
    const EDGES: [f32; 10] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::MIN_POSITIVE,
        1e-45,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut random = Random::fresh();
    for _ in 0..2_000 {
        let mut vector = || -> [f32; LANES] {
            std::array::from_fn(|_| match random.below(3) {
                0 => EDGES[random.below(EDGES.len())],
                1 => f32::from_bits(random.bits() as u32),
                _ => random.uniform(-100.0, 100.0),
            })
        };
        let (a, b) = (vector(), vector());
        // Processors disagree about the bits of a NaN that they make.
        let bits = |v: f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
        let results = |level: Level| {
            let (values, mask) = level.dispatch(Operations(&a, &b));
            (values.map(|values| values.map(bits)), mask)
        };
        let expected = results(Level::available().last().expect("plain Rust"));
        for level in Level::available() {
            assert_eq!(results(level), expected, "{level:?} of {a:?} and {b:?}");
        }
    }
}
