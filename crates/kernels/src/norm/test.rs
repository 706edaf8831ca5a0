//! The norms against f64, and their independence of the rows beside them.

use super::*;
use crate::gemm::Scratch;
use crate::random::Random;
use device::Cpu;

fn rms_norm(cpu: &Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    Scratch::default().fill(cpu, &Normed::of(x, weight, eps, out), []);
}

fn add_rms_norm(
    cpu: &Cpu,
    x: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    Scratch::default().fill(cpu, &Normed::of_sum(x, delta, weight, eps, out), []);
}

fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / row.len() as f64;
            let inverse = 1.0 / (mean + eps as f64).sqrt();
            row.iter().zip(weight).map(move |(&v, &w)| v as f64 * inverse * w as f64)
        })
        .collect()
}

fn assert_close(y: &[f32], expected: &[f64]) {
    for (y, e) in y.iter().zip(expected) {
        assert!((*y as f64 - e).abs() <= 1e-6 * (1.0 + e.abs()), "{y} is not {e}");
    }
}

#[test]
fn matches_f64_at_odd_widths() {
    let mut random = Random::fresh();
    for width in [1, 3, 16, 63, 64, 65, 576, 577, 1000] {
        let rows = 1 + random.below(5);
        let (x, weight) = (random.floats(rows * width, 3.0), random.floats(width, 2.0));
        let mut out = vec![f32::NAN; x.len()];
        rms_norm(&Cpu::new(1), &x, &weight, 1e-5, &mut out);
        assert_close(&out, &reference(&x, &weight, 1e-5));
    }
}

#[test]
fn adds_the_residual_first_and_works_in_place() {
    let mut random = Random::fresh();
    let (width, rows) = (97, 7);
    let mut x = random.floats(rows * width, 3.0);
    let (delta, weight) = (random.floats(rows * width, 3.0), random.floats(width, 2.0));
    let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
    let mut out = vec![f32::NAN; x.len()];
    add_rms_norm(&Cpu::new(1), &mut x, &delta, &weight, 1e-6, &mut out);
    assert_eq!(x, sum);
    assert_close(&out, &reference(&sum, &weight, 1e-6));
    x.chunks_mut(width).for_each(|x| norm_in_place(x, &weight, 1e-6));
    assert_eq!(x, out);
}

#[test]
fn a_row_does_not_depend_on_rows_or_threads() {
    let mut random = Random::fresh();
    let (width, rows) = (576, 61);
    let (x, weight) = (random.floats(rows * width, 3.0), random.floats(width, 2.0));
    let delta = random.floats(rows * width, 3.0);
    let mut alone = vec![0.0; x.len()];
    for r in 0..rows {
        let range = r * width..(r + 1) * width;
        let mut row = x[range.clone()].to_vec();
        let out = &mut alone[range.clone()];
        add_rms_norm(&Cpu::new(1), &mut row, &delta[range], &weight, 1e-5, out);
    }
    for threads in 1..=3 {
        let (mut x, mut out) = (x.clone(), vec![0.0; x.len()]);
        add_rms_norm(&Cpu::new(threads), &mut x, &delta, &weight, 1e-5, &mut out);
        assert_eq!(out, alone, "{threads} threads");
    }
}
