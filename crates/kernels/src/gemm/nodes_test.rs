//! Whose copy of a weight a thread reads: weights whose copies differ, as no real ones do, show it. One of two memory
//! nodes is this machine, the other one it has not.

use super::panel::Panels;
use super::*;
use crate::embed::embed;
use crate::random::Random;
use device::Nodes;
use std::collections::HashSet;
use std::sync::{Barrier, Mutex};
use std::thread;

const K: usize = 256;
/// Of two parts.
const N: usize = UNIT + 75;
const ROWS: usize = 3;

const FORMATS: [Format; 5] = [Format::F32, Format::BF16, Format::Q4_1, Format::Q8_0, Format::Q6_K];

/// A matrix, another one, and a weight that is the first on node 0 and the second on node 1.
struct Case {
    single: [Weight; 2],
    both: Weight,
}

impl Case {
    fn new(random: &mut Random, cpu: &Cpu, format: Format) -> Case {
        let row_bytes = format.bytes(K).expect("whole blocks");
        let data = [0, 1].map(|_| stored(random, format));
        let pack = |data: &Vec<u8>| Weight::pack(&Cpu::new(1), format, N, K, RowOrder::Plain, data);
        let row = |i: usize| {
            let node = usize::from(thread::current().name() == Some("node-1"));
            &data[node][i * row_bytes..][..row_bytes]
        };
        let panels = Panels::pack(cpu, format, N, K, &row);
        Case { single: data.each_ref().map(pack), both: Weight { n: N, k: K, format, panels } }
    }
}

/// A stored matrix of numbers near 1.
fn stored(random: &mut Random, format: Format) -> Vec<u8> {
    let floats = random.floats(N * K, 1.0);
    match format {
        Format::F32 => floats.into_iter().flat_map(f32::to_le_bytes).collect(),
        Format::BF16 => floats
            .into_iter()
            .flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        Format::Q8_0 => crate::format::quantize_q8_0(&floats),
        // Any bits are a block; 0x3c in every byte makes its scales neither huge nor infinite.
        _ => {
            let bytes = format.bytes(N * K).expect("whole blocks");
            (0..bytes).map(|_| 0x2c + (random.bits() % 16) as u8).collect()
        }
    }
}

/// What becomes of `x` in each way that weights are read.
fn all(cpu: &Cpu, weight: &Weight, x: &[f32]) -> [Vec<u32>; 4] {
    let (mut scratch, mut next) = (Scratch::default(), Scratch::default());
    scratch.fill(cpu, &Given::new(x, ROWS), [weight]);
    let mut made = [(); 5].map(|()| vec![f32::NAN; ROWS * N]);
    let [product, head, gate, up, activated] = &mut made;
    scratch.multiply(cpu, &mut [Product::new(weight, product)]);
    for (columns, found) in stretches(cpu, &scratch, weight).into_iter().flatten() {
        for (row, found) in head.chunks_exact_mut(N).zip(found.chunks_exact(columns.len())) {
            row[columns.clone()].copy_from_slice(found);
        }
    }
    let (weights, biases) = ([weight, weight], [None, None]);
    let down = Weight::pack(cpu, Format::F32, 1, N, RowOrder::Plain, &[0; 4 * N]);
    let gated = Gated { weights, biases, products: [gate, up], activated };
    scratch.gate(cpu, gated, &mut next, &down);
    let [product, head, .., activated] = made;
    let mut rows = vec![f32::NAN; N * K];
    embed(cpu, weight, &(0..N as u32).collect::<Vec<_>>(), &mut rows);
    [product, head, activated, rows].map(|values| values.into_iter().map(f32::to_bits).collect())
}

/// All stretches of a product, part after part.
fn stretches(cpu: &Cpu, scratch: &Scratch, weight: &Weight) -> Vec<Vec<(Range<usize>, Vec<f32>)>> {
    scratch.stretches(cpu, (N, weight), &mut Vec::new(), &|found: &mut Vec<_>, stretch| {
        let rows: Vec<&[f32]> = stretch.rows().collect();
        found.push((stretch.columns.clone(), rows.concat()));
    })
}

/// The caller and both workers are on node 1; node 0 has no thread but in the dealing.
#[test]
fn threads_of_a_node_read_its_copy_alone() {
    let mut random = Random::fresh();
    let cpu = Cpu::on(&Nodes::of([vec![5000], (0..4096).collect()]), 3);
    assert_eq!(cpu.nodes(), 2);
    for format in FORMATS {
        let (case, x) = (Case::new(&mut random, &cpu, format), random.floats(ROWS * K, 1.0));
        let [first, second] = case.single.each_ref().map(|weight| all(&Cpu::new(2), weight, &x));
        let name = format.name();
        for (first, second) in first.iter().zip(&second) {
            assert_ne!(first, second, "{name}: the matrices differ");
        }
        assert_eq!(all(&cpu, &case.both, &x), second, "{name}");
        assert_eq!(all(&Cpu::new(2), &case.both, &x), first, "{name}: threads of one node");
    }
}

/// The caller is on node 0, the worker on node 1, and who takes a part looks at what came of it.
#[test]
fn a_part_is_made_of_the_copy_of_whoever_takes_it() {
    let mut random = Random::fresh();
    let cpu = Cpu::on(&Nodes::of([(0..4096).collect(), (4096..8192).collect()]), 2);
    for format in FORMATS {
        let (case, x) = (Case::new(&mut random, &cpu, format), random.floats(K, 1.0));
        let product = |weight: &Weight| {
            let mut y = vec![f32::NAN; N];
            gemm(&Cpu::new(1), &mut Scratch::default(), &x, 1, &mut [Product::new(weight, &mut y)]);
            y
        };
        let expected = case.single.each_ref().map(product);
        let (came, both) = (Mutex::new(HashSet::new()), Barrier::new(2));
        let look = |own: &mut Vec<bool>, stretch: Stretch<'_>| {
            let new = came.lock().unwrap().insert(thread::current().id());
            if new {
                // Neither thread may take all parts.
                both.wait();
            }
            let node = usize::from(thread::current().name() == Some("cpu-1"));
            let expected = &expected[node][stretch.columns.clone()];
            let mut made = stretch.rows().flatten().zip(expected);
            own.push(made.all(|(a, b)| a.to_bits() == b.to_bits()));
        };
        let mut scratch = Scratch::default();
        scratch.fill(&cpu, &Given::new(&x, 1), [&case.both]);
        let own = scratch.stretches(&cpu, (N, &case.both), &mut Vec::new(), &look);
        let all = own.iter().flatten().all(|&own| own);
        assert!(own.len() > 1 && all, "{}: {own:?}", format.name());
    }
}
