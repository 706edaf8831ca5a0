//! SwiGLU against f64, and its independence of the elements beside it.

use super::*;
use crate::random::Random;

#[test]
fn matches_f64_at_odd_lengths() {
    let mut random = Random::fresh();
    for len in [0, 1, 15, 16, 17, 1536, 9000] {
        let (gate, up) = (random.floats(len, 60.0), random.floats(len, 3.0));
        let mut out = vec![f32::NAN; len];
        swiglu(&gate, &up, &mut out);
        for ((&g, &u), y) in gate.iter().zip(&up).zip(out) {
            let expected = g as f64 / (1.0 + (-g as f64).exp()) * u as f64;
            assert!((y as f64 - expected).abs() <= 1e-6 * expected.abs(), "{y} is not {expected}");
        }
    }
}

#[test]
fn extreme_gates() {
    let gate = [f32::NEG_INFINITY, -1e30, -200.0, 0.0, 200.0, 1e30, f32::NAN];
    let mut out = [1.0; 7];
    swiglu(&gate, &[1.0; 7], &mut out);
    assert_eq!(out[..6], [0.0, 0.0, 0.0, 0.0, 200.0, 1e30]);
    assert!(out[6].is_nan());
}

#[test]
fn an_element_does_not_depend_on_its_place() {
    let mut random = Random::fresh();
    let len = 4_003;
    let (gate, up) = (random.floats(len, 20.0), random.floats(len, 3.0));
    let mut expected = vec![0.0; len];
    for i in 0..len {
        swiglu(&gate[i..=i], &up[i..=i], &mut expected[i..=i]);
    }
    for first in [0, 1, 15, 16, 100] {
        let mut out = vec![0.0; len - first];
        swiglu(&gate[first..], &up[first..], &mut out);
        assert_eq!(out, expected[first..], "from {first}");
    }
}
