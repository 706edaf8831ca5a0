//! Products against f64, and the promise that a row's bits depend on nothing but the row.

mod sets;
mod shapes;

use super::cpu::{Isa, PRODUCTS, multiply};
use super::input::{Form, Forms, Input};
use super::*;
use crate::activation::swiglu;
use crate::format::blocks::Block;
use crate::format::{Min, half_to_f32};

const BLOCKS: [Format; 10] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2_K,
    Format::Q3_K,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
];
const FLOATS: [Format; 3] = [Format::F32, Format::F16, Format::BF16];

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    /// Seeded by the clock; the seed is printed, and so shown when the test fails.
    fn fresh() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = now.as_nanos() as u64;
        println!("seed {seed}");
        Random(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in [-1, 1).
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// An input with outliers and zeros.
    fn input(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| match self.bits() % 20 {
                0 => 0.0,
                1 => 30.0 * self.unit(),
                _ => self.unit(),
            })
            .collect()
    }

    /// A stored matrix: random codes, finite factors of both signs.
    fn matrix(&mut self, format: Format, elements: usize) -> Vec<u8> {
        match format {
            Format::F32 => (0..elements).flat_map(|_| self.unit().to_le_bytes()).collect(),
            Format::BF16 => (0..elements)
                .flat_map(|_| ((self.unit().to_bits() >> 16) as u16).to_le_bytes())
                .collect(),
            Format::F16 => (0..elements).flat_map(|_| self.half().to_le_bytes()).collect(),
            _ => self.blocks(format, elements, |random| random.bits() as u8),
        }
    }

    /// A stored matrix of a block format: half-precision factors of both signs, all else as `byte` says.
    fn blocks(
        &mut self,
        format: Format,
        elements: usize,
        byte: impl Fn(&mut Random) -> u8,
    ) -> Vec<u8> {
        let halves: &[usize] = match format {
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q2_K => &[80, 82],
            Format::Q3_K => &[108],
            Format::Q6_K => &[208],
            _ => &[0],
        };
        let mut data: Vec<u8> = (0..format.bytes(elements).unwrap()).map(|_| byte(self)).collect();
        for block in data.chunks_exact_mut(format.block_bytes()) {
            for &at in halves {
                block[at..at + 2].copy_from_slice(&self.half().to_le_bytes());
            }
        }
        data
    }

    /// Bits of a half with magnitude between 2^-8 and 1.
    fn half(&mut self) -> u16 {
        let bits = self.bits();
        ((bits & 0x83ff) + ((7 + (bits >> 16) % 8) << 10)) as u16
    }
}

/// A matrix as stored and as packed.
struct Case {
    format: Format,
    n: usize,
    k: usize,
    data: Vec<u8>,
    weight: Weight,
}

impl Case {
    fn new(random: &mut Random, format: Format, n: usize, k: usize) -> Case {
        Case::of(format, n, k, random.matrix(format, n * k))
    }

    fn of(format: Format, n: usize, k: usize, data: Vec<u8>) -> Case {
        let weight = Weight::pack(&Cpu::new(2), format, n, k, RowOrder::Plain, &data);
        Case { format, n, k, data, weight }
    }

    fn all(random: &mut Random) -> Vec<Case> {
        let blocks = BLOCKS.iter().flat_map(|&f| {
            [(1, f.block()), (37, 3 * f.block()), (16, 2 * f.block())].map(|(n, k)| (f, n, k))
        });
        let floats =
            FLOATS.iter().flat_map(|&f| [(1, 1), (37, 97), (16, 64)].map(|(n, k)| (f, n, k)));
        let shapes: Vec<_> = blocks.chain(floats).collect();
        shapes.into_iter().map(|(f, n, k)| Case::new(random, f, n, k)).collect()
    }

    fn run(&self, isa: Isa, threads: usize, x: &[f32]) -> Vec<f32> {
        let rows = x.len() / self.k;
        let mut y = vec![f32::NAN; rows * self.n];
        let (cpu, mut input) = (Cpu::new(threads), Input::default());
        input.fill(&cpu, &Given::new(x, rows), Forms::of(isa, [&self.weight]));
        multiply(isa, &cpu, &input, &mut [Product::new(&self.weight, &mut y)]);
        y
    }

    /// Row `i` of the weight by [`Format::dequantize`], and for each element the magnitude of
    /// what is added up to make it (`|scale · code| + |min|`).
    fn row(&self, i: usize) -> (Vec<f32>, Vec<f64>) {
        let bytes = self.format.bytes(self.k).unwrap();
        let stored = &self.data[i * bytes..(i + 1) * bytes];
        let mut values = vec![0.0; self.k];
        self.format.dequantize(stored, &mut values);
        let Some(coding) = self.format.coding() else {
            let magnitudes = values.iter().map(|&v| f64::from(v.abs())).collect();
            return (values, magnitudes);
        };
        let mut magnitudes = Vec::new();
        for stored in stored.chunks_exact(self.format.block_bytes()) {
            let mut block = Block::new();
            block.read(self.format, stored);
            for (e, &code) in block.codes[..self.format.block()].iter().enumerate() {
                let g = e * coding.groups / 32;
                let scale = f64::from(half_to_f32(block.d)) * f64::from(block.scale[g]);
                let min = match coding.min {
                    Min::None => 0.0,
                    Min::PerGroup => f64::from(half_to_f32(block.m)) * f64::from(block.min[g]),
                };
                let code = f64::from(code) - f64::from(coding.zero);
                magnitudes.push((scale * code).abs() + min.abs());
            }
        }
        (values, magnitudes)
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// `x` as a product uses it, computed apart in f64: after quantization to signed bytes, rounded to
/// `bf16`, or as it is. Twice the most that an element may have moved by that.
fn used(isa: Isa, format: Format, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    match Form::of(isa, format) {
        Form::Transposed => {
            return (x.iter().map(|&v| f64::from(v)).collect(), vec![0.0; x.len()]);
        }
        Form::Paired => {
            let rounded = x.iter().map(|&v| {
                // Seven bits behind the first one.
                let step = f64::from(v).abs().log2().floor().exp2() / 128.0;
                if v == 0.0 {
                    (0.0, 0.0)
                } else {
                    (step * (f64::from(v) / step).round_ties_even(), step)
                }
            });
            return rounded.unzip();
        }
        Form::Quantized => {}
    }
    let (mut values, mut steps) = (Vec::new(), Vec::new());
    for run in x.chunks_exact(32) {
        let scale = run.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
        for &v in run {
            let q = if scale == 0.0 { 0.0 } else { (v * (1.0 / scale)).round_ties_even() };
            values.push(f64::from(scale) * f64::from(q));
            steps.push(f64::from(scale));
        }
    }
    (values, steps)
}

/// Demands of every instruction set that its product with the rows of `x` is the exact one with the
/// quantized input, but for rounding, and the one with `x` itself, but for that and quantization.
fn matches_f64(case: &Case, x: &[f32], rows: usize) {
    for isa in Isa::available() {
        set_matches_f64(case, isa, x, rows);
    }
}

fn set_matches_f64(case: &Case, isa: Isa, x: &[f32], rows: usize) {
    let (n, k) = (case.n, case.k);
    let y = case.run(isa, 2, x);
    let (used, steps) = used(isa, case.format, x);
    // f32 sums of `k` floats, or of a few roundings a run of 32.
    let terms = if case.format.coding().is_some() { k / 32 + 6 } else { k + 1 };
    for i in 0..n {
        let (w, magnitudes) = case.row(i);
        for r in 0..rows {
            let (mut exact, mut plain, mut rounding, mut quantization) = (0.0, 0.0, 0.0, 0.0);
            for j in 0..k {
                let (w, at) = (f64::from(w[j]), r * k + j);
                exact += w * used[at];
                plain += w * f64::from(x[at]);
                rounding += magnitudes[j] * used[at].abs();
                // Half a step, and the rounding of x / scale.
                quantization += w.abs() * 0.5001 * steps[at];
            }
            rounding *= terms as f64 * f64::from(f32::EPSILON) / 2.0;
            let y = f64::from(y[r * n + i]);
            let what = format!("{} [{n}, {k}] {isa:?} y[{r}, {i}]", case.format.name());
            assert!((y - exact).abs() <= rounding, "{what}: {y}, not {exact}");
            let bound = rounding + quantization;
            assert!((y - plain).abs() <= bound, "{what}: {y}, not {plain} ± {bound}");
        }
    }
}

#[test]
fn products_match_f64() {
    let mut random = Random::fresh();
    for case in Case::all(&mut random) {
        let rows = 3;
        let x = random.input(rows * case.k);
        matches_f64(&case, &x, rows);
    }
}

#[test]
fn a_rows_bits_depend_on_the_row_alone() {
    let mut random = Random::fresh();
    for case in Case::all(&mut random) {
        let (n, k) = (case.n, case.k);
        let x = random.input(64 * k);
        for isa in Isa::available() {
            let alone: Vec<f32> = x.chunks_exact(k).flat_map(|row| case.run(isa, 1, row)).collect();
            for rows in [1, 2, 3, 5, 8, 11, 16, 17, 64] {
                let y = case.run(isa, 1 + rows % 3, &x[..rows * k]);
                let what = format!("{} [{n}, {k}] {isa:?} {rows} rows", case.format.name());
                assert_eq!(bits(&y), bits(&alone[..rows * n]), "{what}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let mut random = Random::fresh();
    for format in BLOCKS.into_iter().chain(FLOATS) {
        let case = Case::new(&mut random, format, 333, 256);
        let x = random.input(9 * case.k);
        let expected = bits(&case.run(Isa::detect(), 1, &x));
        for threads in [2, 3] {
            let y = case.run(Isa::detect(), threads, &x);
            assert_eq!(bits(&y), expected, "{} on {threads} threads", format.name());
        }
    }
}

#[test]
fn a_launch_of_many_products_equals_each_alone() {
    let mut random = Random::fresh();
    let (rows, k) = (5, 256);
    let x = random.input(rows * k);
    let cases: Vec<_> = BLOCKS
        .into_iter()
        .chain(FLOATS)
        .enumerate()
        .map(|(i, format)| Case::new(&mut random, format, 16 * i + 7, k))
        .collect();
    let mut outputs: Vec<_> = cases.iter().map(|c| vec![f32::NAN; rows * c.n]).collect();
    let mut products: Vec<_> =
        cases.iter().zip(&mut outputs).map(|(case, y)| Product::new(&case.weight, y)).collect();
    gemm(&Cpu::new(2), &mut Scratch::default(), &x, rows, &mut products);
    for (case, y) in cases.iter().zip(&outputs) {
        let alone = case.run(Isa::detect(), 1, &x);
        assert_eq!(bits(y), bits(&alone), "{}", case.format.name());
    }
}

/// Each column of each row is in one stretch, with the bits that it has in the whole.
#[test]
fn stretches_are_those_of_the_whole() {
    let mut random = Random::fresh();
    for format in BLOCKS.into_iter().chain(FLOATS) {
        let (rows, k, n) = (1 + random.bits() as usize % 19, 256, 900);
        let x = random.input(rows * k);
        let case = Case::new(&mut random, format, n, k);
        for isa in Isa::available() {
            let whole = case.run(isa, 2, &x);
            for first in [1, 50, 128, 129, 512, 513, n] {
                let cpu = Cpu::new(1 + first % 3);
                let mut input = Input::default();
                input.fill(&cpu, &Given::new(&x, rows), Forms::of(isa, [&case.weight]));
                let look = |found: &mut Vec<_>, stretch: Stretch<'_>| {
                    assert_eq!(stretch.rows().count(), rows);
                    found.push((
                        stretch.columns.clone(),
                        stretch.rows().flatten().copied().collect(),
                    ));
                };
                let weight = (first, &case.weight);
                let parts: Vec<Vec<(_, Vec<f32>)>> =
                    cpu::stretches(isa, &cpu, &input, weight, &mut Vec::new(), &look);
                let mut end = 0;
                for (columns, found) in parts.iter().flatten() {
                    assert_eq!((columns.start, columns.start % UNIT), (end, 0));
                    end = columns.end;
                    for (found, whole) in found.chunks(columns.len()).zip(whole.chunks(n)) {
                        let name = format.name();
                        assert_eq!(bits(found), bits(&whole[columns.clone()]), "{name} {isa:?}");
                    }
                }
                assert_eq!(end, first);
            }
        }
    }
}

#[test]
fn every_loop_does_the_products_that_are_counted() {
    for isa in Isa::available() {
        // Each product is 1 · 2.
        assert_eq!(isa.products(5), (5 * PRODUCTS / 2 * 2) as i32, "{isa:?}");
    }
    assert_eq!(integer_products(&Cpu::new(3), 7), (3 * 7 * PRODUCTS) as u64);
}

#[test]
fn scratch_keeps_nothing_from_launch_to_launch() {
    let mut random = Random::fresh();
    let cases = [
        Case::new(&mut random, Format::Q4_1, 40, 320),
        Case::new(&mut random, Format::F32, 40, 31),
        Case::new(&mut random, Format::Q8_0, 40, 64),
    ];
    let (cpu, mut scratch) = (Cpu::new(2), Scratch::default());
    for rows in [17, 1, 3, 64, 6] {
        for case in &cases {
            let x = random.input(rows * case.k);
            let mut y = vec![f32::NAN; rows * case.n];
            let mut products = [Product::new(&case.weight, &mut y)];
            gemm(&cpu, &mut scratch, &x, rows, &mut products);
            assert_eq!(bits(&y), bits(&case.run(Isa::detect(), 1, &x)));
        }
    }
}

#[test]
fn what_is_not_finite_spreads_over_its_row_and_no_further() {
    let mut random = Random::fresh();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for format in BLOCKS.into_iter().chain(FLOATS) {
            let case = Case::new(&mut random, format, 16, 256);
            let clean_x = random.input(3 * case.k);
            let mut x = clean_x.clone();
            x[case.k + 40] = bad;
            for isa in Isa::available() {
                let (clean, y) = (case.run(isa, 1, &clean_x), case.run(isa, 1, &x));
                let rows: Vec<_> = y.chunks_exact(16).collect();
                let name = format.name();
                assert!(rows[1].iter().all(|v| !v.is_finite()), "{name} {isa:?}: {:?}", rows[1]);
                assert_eq!(bits(rows[0]), bits(&clean[..16]), "{name} {isa:?}");
                assert_eq!(bits(rows[2]), bits(&clean[32..]), "{name} {isa:?}");
            }
        }
    }
}

#[test]
fn tiny_inputs_count_as_zero_or_themselves() {
    let mut random = Random::fresh();
    let case = Case::new(&mut random, Format::Q8_0, 16, 32);
    for tiny in [0.0, f32::from_bits(1), 1e-38, 1e-35] {
        let y = case.run(Isa::detect(), 1, &[tiny; 32]);
        for (i, &y) in y.iter().enumerate() {
            let exact = case.row(i).0.iter().map(|&w| f64::from(w) * f64::from(tiny)).sum::<f64>();
            assert!((f64::from(y) - exact).abs() < 1e-34, "{tiny:e}: {y:e}, not {exact:e}");
        }
    }
}

#[test]
fn rows_and_embeddings_are_the_stored_values() {
    let mut random = Random::fresh();
    for case in Case::all(&mut random) {
        let ids: Vec<u32> = (0..case.n as u32).rev().collect();
        let mut out = vec![f32::NAN; case.n * case.k];
        crate::embed::embed(&Cpu::new(2), &case.weight, &ids, &mut out);
        for (row, &id) in out.chunks_exact(case.k).zip(&ids) {
            let expected = case.row(id as usize).0;
            assert_eq!(bits(row), bits(&expected), "{} row {id}", case.format.name());
        }
    }
}

#[test]
fn interleaved_heads_come_out_half_split() {
    let mut random = Random::fresh();
    let (heads, d, k) = (3, 8, 64);
    for format in [Format::Q4_1, Format::BF16] {
        let data = random.matrix(format, heads * d * k);
        let pack = |order| Weight::pack(&Cpu::new(1), format, heads * d, k, order, &data);
        let weights = [RowOrder::Plain, RowOrder::Interleaved { heads }].map(pack);
        let ids: Vec<u32> = (0..(heads * d) as u32).collect();
        let [plain, packed] = weights.map(|weight| {
            let mut rows = vec![0.0; heads * d * k];
            crate::embed::embed(&Cpu::new(1), &weight, &ids, &mut rows);
            rows
        });
        let row = |i: usize| i * k..(i + 1) * k;
        for head in 0..heads {
            for i in 0..d / 2 {
                for h in 0..2 {
                    let from = &plain[row(head * d + 2 * i + h)];
                    let to = &packed[row(head * d + i + h * d / 2)];
                    assert_eq!(from, to, "head {head}, pair {i}, half {h}");
                }
            }
        }
    }
}

#[test]
fn packed_weights_are_hardly_larger_than_stored() {
    let mut random = Random::fresh();
    for (format, most) in [
        (Format::F32, 1.0),
        (Format::F16, 1.0),
        (Format::BF16, 1.0),
        (Format::Q4_0, 1.0),
        (Format::Q4_1, 1.0),
        (Format::Q5_0, 1.0),
        (Format::Q5_1, 1.0),
        (Format::Q8_0, 1.0),
        (Format::Q2_K, 1.2),
        (Format::Q3_K, 1.04),
        (Format::Q4_K, 1.03),
        (Format::Q5_K, 1.03),
        (Format::Q6_K, 1.0),
    ] {
        let case = Case::new(&mut random, format, 32, 512);
        let ratio = case.weight.bytes() as f64 / case.data.len() as f64;
        assert!(ratio <= most, "{}: {ratio}", format.name());
    }
}

#[test]
fn empty_launches_are_fine() {
    let mut random = Random::fresh();
    let case = Case::new(&mut random, Format::Q4_1, 16, 32);
    let (cpu, mut scratch) = (Cpu::new(2), Scratch::default());
    gemm(&cpu, &mut scratch, &[], 0, &mut []);
    gemm(&cpu, &mut scratch, &[], 0, &mut [Product::new(&case.weight, &mut [])]);
    crate::embed::embed(&cpu, &case.weight, &[], &mut []);
    // A sum of nothing is zero.
    let weight = Weight::pack(&cpu, Format::F32, 3, 0, RowOrder::Plain, &[]);
    let mut y = [f32::NAN; 6];
    gemm(&cpu, &mut scratch, &[], 2, &mut [Product::new(&weight, &mut y)]);
    assert_eq!(y, [0.0; 6]);
}

#[test]
fn bias_is_added_to_every_row() {
    let bias: Vec<f32> = (0..333).map(|i| i as f32).collect();
    let mut y: Vec<f32> = (0..333 * 120).map(|i| (i / 333) as f32).collect();
    add_bias(&Cpu::new(3), &mut y, &bias);
    assert!(y.iter().enumerate().all(|(i, &v)| v == (i / 333 + i % 333) as f32));
}

#[test]
#[should_panic(expected = "40 is not whole blocks of Q4_0")]
fn part_of_a_block_panics() {
    Weight::pack(&Cpu::new(1), Format::Q4_0, 1, 40, RowOrder::Plain, &[0; 18]);
}

#[test]
#[should_panic(expected = "row 16 of a weight of 16 rows")]
fn an_unknown_id_panics() {
    let case = Case::new(&mut Random::fresh(), Format::Q8_0, 16, 32);
    crate::embed::embed(&Cpu::new(1), &case.weight, &[16], &mut [0.0; 32]);
}

/// One launch gives what products, biases, activation and the next product's input give one after another.
#[test]
fn a_gated_half_layer_is_its_parts() {
    let mut random = Random::fresh();
    for format in BLOCKS.into_iter().chain(FLOATS) {
        // Of floats an odd width; of blocks one that the parts do not share evenly.
        let (k, n) = if format.block() > 1 { (256, 5 * 256) } else { (96, 203) };
        let cases = [0, 1].map(|_| Case::new(&mut random, format, n, k));
        let down = Case::new(&mut random, format, 40, n);
        let biases = [random.input(n), random.input(n)];
        for (rows, threads) in [(1, 2), (3, 1), (8, 2), (13, 3)] {
            let (cpu, x) = (Cpu::new(threads), random.input(rows * k));
            let [gate, up] = [0, 1].map(|i| {
                let mut y = cases[i].run(Isa::detect(), 1, &x);
                add_bias(&cpu, &mut y, &biases[i]);
                y
            });
            let mut activated = vec![0.0; rows * n];
            swiglu(&gate, &up, &mut activated);
            let expected = down.run(Isa::detect(), 1, &activated);

            let (mut scratch, mut next) = (Scratch::default(), Scratch::default());
            scratch.fill(&cpu, &Given::new(&x, rows), cases.iter().map(|case| &case.weight));
            let mut made = [(); 3].map(|()| vec![f32::NAN; rows * n]);
            let [own_gate, own_up, own] = &mut made;
            let gated = Gated {
                weights: [&cases[0].weight, &cases[1].weight],
                biases: [Some(&biases[0]), Some(&biases[1])],
                products: [own_gate, own_up],
                activated: own,
            };
            scratch.gate(&cpu, gated, &mut next, &down.weight);
            let mut y = vec![f32::NAN; rows * down.n];
            next.multiply(&cpu, &mut [Product::new(&down.weight, &mut y)]);
            let what = format!("{}, {rows} rows on {threads} threads", format.name());
            assert_eq!(bits(&made[2]), bits(&activated), "{what}");
            assert_eq!(bits(&y), bits(&expected), "{what}");
        }
    }
}
