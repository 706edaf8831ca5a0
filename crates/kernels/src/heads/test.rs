//! Finished heads against f64, what is stored against what is left, and both on other numbers of threads.

use super::*;
use crate::kv_store::{KvFormat, Stored};
use crate::random::Random;

const EPS: f32 = 1e-5;

/// Projected heads and what is done to them.
struct Case {
    heads: usize,
    x: Vec<f32>,
    bias: Option<Vec<f32>>,
    norm: Option<Vec<f32>>,
}

impl Case {
    fn new(random: &mut Random, rows: usize, heads: usize, dim: usize) -> Case {
        let x = random.floats(rows * heads * dim, 2.0);
        let bias = (random.below(2) == 0).then(|| random.floats(heads * dim, 1.0));
        let norm = (random.below(2) == 0).then(|| random.floats(dim, 2.0));
        Case { heads, x, bias, norm }
    }

    fn projected<'a>(&'a self, x: &'a mut [f32]) -> Projected<'a> {
        Projected { x, bias: self.bias.as_deref(), norm: self.norm.as_deref() }
    }

    /// Every head with its bias, as numbers.
    fn biased(&self, dim: usize) -> Vec<Vec<f64>> {
        let bias = |at: usize| self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
        let heads = self.x.chunks(dim).enumerate();
        let one = |(h, head): (usize, &[f32])| {
            let at = h % self.heads * dim;
            head.iter().enumerate().map(|(i, &x)| f64::from(x) + bias(at + i)).collect()
        };
        heads.map(one).collect()
    }

    /// The same normed, and rotated by the angles of its row.
    fn turned(&self, dim: usize, rows: usize, angles: &Angles) -> Vec<Vec<f64>> {
        let (mut heads, half) = (self.biased(dim), angles.cos.len() / rows);
        for (h, x) in heads.iter_mut().enumerate() {
            if let Some(norm) = &self.norm {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / dim as f64;
                let inverse = (mean + f64::from(EPS)).sqrt().recip();
                x.iter_mut().zip(norm).for_each(|(x, w)| *x *= inverse * f64::from(*w));
            }
            for i in 0..half {
                let at = h / self.heads * half + i;
                let (cos, sin) = (f64::from(angles.cos[at]), f64::from(angles.sin[at]));
                let (a, b) = (x[i], x[i + half]);
                (x[i], x[i + half]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        heads
    }
}

fn assert_close(found: &[f32], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.iter().map(Vec::len).sum::<usize>());
    for (found, expected) in found.iter().zip(expected.iter().flatten()) {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= 1e-5 * (1.0 + expected.abs()), "{found} is not {expected}");
    }
}

fn contents(pool: &KvPool) -> [&[f32]; 2] {
    match &pool.layer(0).0 {
        Stored::F32(pages) => [&pages.k, &pages.v],
        _ => panic!("a pool of f32"),
    }
}

#[test]
fn heads_are_biased_normed_rotated_and_stored() {
    let mut random = Random::fresh();
    for round in 0..40 {
        let (rows, dim) = (1 + random.below(9), [6, 64, 80][round % 3]);
        let (heads, kv_heads) = (1 + random.below(6), 1 + random.below(3));
        let positions: Vec<u32> = (0..rows).map(|_| random.below(4000) as u32).collect();
        let frequencies: Vec<f32> = (0..dim / 2).map(|i| 50f32.powf(-(i as f32) / 20.0)).collect();
        let mut angles = Angles::default();
        angles.fill(&positions, &frequencies, 1.0);
        let cases = [heads, kv_heads].map(|n| Case::new(&mut random, rows, n, dim));
        let values = Case { norm: None, ..Case::new(&mut random, rows, kv_heads, dim) };
        let slots = random.permutation(64)[..rows].to_vec();
        let finish = Finish { rows, head_dim: dim, eps: EPS, angles: &angles };
        let run = |threads: usize, pool: Option<&mut KvPool>| {
            let mut out = [&cases[0], &cases[1], &values].map(|case| case.x.clone());
            let store = pool.map(|pool| Store { pool, layer: 0, slots: &slots });
            let [q, k, v] = &mut out;
            let (q, k) = (cases[0].projected(q), cases[1].projected(k));
            finish.run(&Cpu::new(threads), q, k, values.projected(v), store);
            out
        };
        let pool = || KvPool::new(KvFormat::F32, 1, 4, 16, kv_heads, dim);
        let (mut stored, mut apart) = (pool(), pool());
        let out = run(2, Some(&mut stored));
        assert_close(&out[0], &cases[0].turned(dim, rows, &angles));
        assert_close(&out[1], &cases[1].turned(dim, rows, &angles));
        assert_close(&out[2], &values.biased(dim));
        apart.store(&Cpu::new(1), 0, &slots, &out[1], &out[2]);
        assert_eq!(contents(&stored), contents(&apart), "what is stored is what is left");
        assert_eq!(run(1, None), out, "without a store, on one thread");
    }
}

#[test]
#[should_panic(expected = "slot 64 in a pool of 4 pages of 16")]
fn a_slot_outside_the_pool_panics() {
    let (mut k, mut v, mut angles) = ([0.0; 4], [0.0; 4], Angles::default());
    angles.fill(&[0], &[1.0], 1.0);
    let mut pool = KvPool::new(KvFormat::F32, 1, 4, 16, 1, 4);
    let store = Some(Store { pool: &mut pool, layer: 0, slots: &[64] });
    let [k, v] = [&mut k, &mut v].map(|x| Projected { x, bias: None, norm: None });
    let finish = Finish { rows: 1, head_dim: 4, eps: EPS, angles: &angles };
    finish.run(&Cpu::new(1), Projected::none(), k, v, store);
}
