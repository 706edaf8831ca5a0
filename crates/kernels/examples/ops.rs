//! Times attention, the choice of tokens and the small operations at the default target's shape
//! (SmolLM2-135M): `cargo run --release -p slipstream-kernels --example ops [threads]`.

use device::Cpu;
use kernels::attention::{Launch, Sight, Span, Tail, attention};
use kernels::choose::{Draw, choose, log_probs};
use kernels::gemm::Scratch;
use kernels::heads::{Finish, Projected};
use kernels::kv_store::{KvFormat, KvPool};
use kernels::norm::Normed;
use kernels::rope::Angles;
use std::time::Instant;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const HIDDEN: usize = HEADS * DIM;
const LAYERS: usize = 30;

/// Repeats `body` (given the round) for 0.3 s after a warm-up and prints the median time.
fn time(name: &str, mut body: impl FnMut(usize)) {
    let begin = Instant::now();
    let mut samples = Vec::new();
    for round in 0.. {
        let start = Instant::now();
        body(round);
        samples.push(start.elapsed().as_secs_f64() * 1e6);
        if begin.elapsed().as_secs_f64() > 0.3 && round > 10 {
            break;
        }
    }
    samples.sort_by(f64::total_cmp);
    println!("{name:<44} {:>9.1} us  (best {:.1})", samples[samples.len() / 2], samples[0]);
}

/// Numbers without a pattern that arithmetic could profit from.
fn floats(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn time_attention(cpu: &Cpu, format: KvFormat) {
    let pages = 64;
    let mut pool = KvPool::new(format, LAYERS, pages, 16, KV_HEADS, DIM);
    let slots: Vec<u32> = (0..1024).collect();
    let kv = floats(1024 * KV_HEADS * DIM);
    for layer in 0..LAYERS {
        pool.store(cpu, layer, &slots, &kv, &kv);
    }
    // Neighbouring pages of a request are seldom neighbours in memory.
    let ids: Vec<u32> = (0..pages as u32).map(|p| p * 37 % pages as u32).collect();
    for (context, rows) in [(127, 1), (511, 1), (1000, 1), (500, 8), (1000, 8), (0, 512), (0, 1024)]
    {
        let q = floats(rows * HIDDEN);
        let mut out = vec![0.0; q.len()];
        let name = format!("attention over {}, {rows} rows after {context}", format.name());
        time(&name, |round| {
            let launch = Launch {
                pool: &pool,
                layer: pool.layer(round % LAYERS),
                pages: &ids,
                spans: &[Span { start: 0, len: rows, context, first_page: 0 }],
                tail: Tail::Causal,
                heads: HEADS,
                scale: 0.125,
                window: None,
            };
            attention(cpu, &launch, &q, &mut out);
        });
    }
    let (q, kv) = (floats(16 * HIDDEN), floats(16 * KV_HEADS * DIM));
    let mut out = vec![0.0; q.len()];
    time("attention, block of 16 after 500", |round| {
        let launch = Launch {
            pool: &pool,
            layer: pool.layer(round % 6),
            pages: &ids,
            spans: &[Span { start: 0, len: 16, context: 500, first_page: 0 }],
            tail: Tail::Block { k: &kv, v: &kv, sight: Sight::BothWays },
            heads: HEADS,
            scale: 0.125,
            window: None,
        };
        attention(cpu, &launch, &q, &mut out);
    });
    for rows in [1, 512] {
        let kv = floats(rows * KV_HEADS * DIM);
        time(&format!("store, {rows} rows"), |round| {
            pool.store(cpu, round % LAYERS, &slots[..rows], &kv, &kv);
        });
    }
}

fn time_choose(cpu: &Cpu) {
    let vocab = 49_152;
    // A sum of uniform numbers is near enough to the bell of real logits.
    let parts: Vec<Vec<f32>> = (0..4).map(|_| floats(8 * vocab)).collect();
    let mut logits: Vec<f32> = (0..8 * vocab).map(|i| 3.0 * parts[0][i]).collect();
    for (i, x) in logits.iter_mut().enumerate() {
        *x += 3.0 * (parts[1][(i + 7) % parts[1].len()] + parts[2][(i + 99) % parts[2].len()]);
    }
    for row in 0..8 {
        logits[row * vocab + 1234] = 14.0;
    }
    let plain =
        Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 42, position: 100 };
    let warm = Draw { temperature: 0.7, ..plain };
    for (name, draw) in [
        ("greedy", plain),
        ("T 0.7", warm),
        ("T 0.7, top-k 50", Draw { top_k: 50, ..warm }),
        ("T 0.7, top-p 0.9", Draw { top_p: 0.9, ..warm }),
        ("T 1.5, min-p 0.05", Draw { temperature: 1.5, min_p: 0.05, ..plain }),
    ] {
        for rows in [1, 8] {
            let mut out = vec![0; rows];
            time(&format!("choose, {rows} rows, {name}"), |round| {
                let draws = vec![Draw { position: round as u32, ..draw }; rows];
                choose(cpu, &logits[..rows * vocab], vocab, vocab, &draws, &[], &mut out);
            });
        }
    }
    time("log_probs, top 5", |_| {
        log_probs(&logits[..vocab], vocab, 7, 5);
    });
}

fn time_small(cpu: &Cpu) {
    let weight = floats(HIDDEN);
    let frequencies: Vec<f32> = (0..DIM / 2).map(|i| 1e4f32.powf(-(i as f32) / 32.0)).collect();
    for rows in [1, 8, 512] {
        let (mut x, delta) = (floats(rows * HIDDEN), floats(rows * HIDDEN));
        let mut scratch = Scratch::default();
        let mut out = vec![0.0; x.len()];
        time(&format!("add + norm, {rows} rows"), |_| {
            let normed = Normed::of_sum(&mut x, &delta, &weight, 1e-5, &mut out);
            scratch.fill(cpu, &normed, []);
        });
        let mut angles = Angles::default();
        let positions: Vec<u32> = (0..rows as u32).collect();
        time(&format!("angles, {rows} rows"), |_| angles.fill(&positions, &frequencies, 1.0));
        let (mut k, mut v) = (floats(rows * KV_HEADS * DIM), floats(rows * KV_HEADS * DIM));
        for (name, norm) in [("rope", None), ("head norms and rope", Some(&weight[..DIM]))] {
            time(&format!("{name}, {rows} rows"), |_| {
                let of = |x| Projected { x, bias: None, norm };
                let finish = Finish { rows, head_dim: DIM, eps: 1e-5, angles: &angles };
                finish.run(cpu, of(&mut out), of(&mut k), of(&mut v), None);
            });
        }
    }
}

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a number of threads"));
    let cpu = Cpu::new(threads);
    println!("{threads} threads");
    for format in KvFormat::ALL {
        time_attention(&cpu, format);
    }
    time_choose(&cpu);
    time_small(&cpu);
}
