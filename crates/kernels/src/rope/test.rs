//! The rotation against f64, and its independence of the rows beside it.

use super::*;
use crate::random::Random;

fn inv_freq(rotary: usize, theta: f32) -> Vec<f32> {
    (0..rotary / 2).map(|i| theta.powf(-2.0 * i as f32 / rotary as f32)).collect()
}

#[test]
fn angles_are_those_of_the_rounded_product() {
    let mut random = Random::fresh();
    let positions: Vec<u32> =
        [0, 1, 131_072].into_iter().chain((0..50).map(|_| random.below(131_072) as u32)).collect();
    let frequencies = inv_freq(64, 10_000.0);
    let mut angles = Angles::default();
    angles.fill(&[7], &frequencies, 1.0);
    angles.fill(&positions, &frequencies, 1.25);
    assert_eq!((angles.cos.len(), angles.sin.len()), (positions.len() * 32, positions.len() * 32));
    for (r, &p) in positions.iter().enumerate() {
        for (i, &f) in frequencies.iter().enumerate() {
            let angle = (p as f32 * f) as f64;
            assert!((angles.cos[r * 32 + i] as f64 - 1.25 * angle.cos()).abs() < 2e-7);
            assert!((angles.sin[r * 32 + i] as f64 - 1.25 * angle.sin()).abs() < 2e-7);
        }
    }
}

#[test]
fn rotates_half_split_pairs_and_leaves_the_rest() {
    let mut random = Random::fresh();
    for (head_dim, rotary) in [(64, 64), (10, 6), (7, 2), (80, 32)] {
        let (rows, heads) = (1 + random.below(4), 1 + random.below(4));
        let positions: Vec<u32> = (0..rows).map(|_| random.below(5000) as u32).collect();
        let frequencies = inv_freq(rotary, 500.0);
        let mut angles = Angles::default();
        angles.fill(&positions, &frequencies, 1.0);
        let x = random.floats(rows * heads * head_dim, 2.0);
        let mut y = x.clone();
        for (h, head) in y.chunks_mut(head_dim).enumerate() {
            angles.rotate(h / heads, head);
        }
        for (h, (x, y)) in x.chunks(head_dim).zip(y.chunks(head_dim)).enumerate() {
            let half = rotary / 2;
            for i in 0..half {
                let angle = (positions[h / heads] as f32 * frequencies[i]) as f64;
                let (a, b) = (x[i] as f64, x[i + half] as f64);
                let rotated = a * angle.cos() - b * angle.sin();
                assert!((y[i] as f64 - rotated).abs() < 1e-6);
                let rotated = b * angle.cos() + a * angle.sin();
                assert!((y[i + half] as f64 - rotated).abs() < 1e-6);
            }
            assert_eq!(x[rotary..], y[rotary..]);
        }
    }
}
