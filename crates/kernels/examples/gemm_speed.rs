//! Measures products with packed weights: bytes of weight a second at one row, operations a
//! second at more.
//!
//!     cargo run --release -p slipstream-kernels --example gemm_speed [threads [format]]
//!
//! Each shape is held in as many copies as exceed the caches, as the layers of a model do.

use device::Cpu;
use kernels::format::Format;
use kernels::gemm::{Product, RowOrder, Scratch, Weight, gemm};
use std::time::{Duration, Instant};

const SHAPES: [(Format, usize, usize); 10] = [
    (Format::Q4_1, 1536, 576),
    (Format::Q4_1, 576, 1536),
    (Format::Q4_1, 576, 576),
    (Format::Q4_0, 1536, 576),
    (Format::Q5_0, 4864, 896),
    (Format::Q8_0, 49152, 576),
    (Format::Q4_K, 2048, 2048),
    (Format::Q6_K, 2048, 2048),
    (Format::BF16, 1536, 576),
    (Format::F32, 1536, 576),
];
const ROWS: [usize; 5] = [1, 4, 8, 16, 512];
/// Bytes of weights a pass reads at least: several times a third-level cache.
const PASS: usize = 100 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map(|t| t.parse().expect("a number of threads"));
    let only = arguments.next();
    let cpu = threads.map_or_else(Cpu::host, Cpu::new);
    let regions = time(&mut std::iter::repeat(()), |()| cpu.parallel(2 * cpu.threads(), &|_| ()));
    let region = fast(regions) * 1e6;
    println!("{} threads, an empty region takes {region:.1} µs", cpu.threads());
    println!("format     n     k   pack GB/s  {}", ROWS.map(|r| format!("{r:>9} rows")).join(" "));
    for (format, n, k) in SHAPES {
        if only.as_ref().is_some_and(|only| only != format.name()) {
            continue;
        }
        let bytes = format.bytes(n * k).expect("whole blocks");
        // Small codes and factors; the speed does not depend on them.
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 % 32) as u8).collect();
        let mut weights = Vec::new();
        let calls = time(&mut (0..PASS.div_ceil(bytes)), |_| {
            weights.push(Weight::pack(&cpu, format, n, k, RowOrder::Plain, &data));
        });
        let pack = bytes as f64 / fast(calls) / 1e9;
        let cells = ROWS.map(|rows| measure(&cpu, &weights, rows));
        println!("{:<5} {n:>6} {k:>5}  {pack:>9.2}  {}", format.name(), cells.join(" "));
    }
}

/// Times `call` for each item, for a quarter of a second at most but ten times at least.
fn time<T>(items: &mut dyn Iterator<Item = T>, mut call: impl FnMut(T)) -> Vec<Duration> {
    let begin = Instant::now();
    let mut calls = Vec::new();
    for item in items {
        let start = Instant::now();
        call(item);
        calls.push(start.elapsed());
        if calls.len() >= 10 && begin.elapsed() > Duration::from_millis(250) {
            break;
        }
    }
    calls
}

/// Seconds of the slowest of the fastest tenth of the calls: on a shared machine the others
/// measure the neighbours.
fn fast(mut calls: Vec<Duration>) -> f64 {
    calls.sort_unstable();
    calls[calls.len() / 10].as_secs_f64()
}

/// The speed of one product.
fn measure(cpu: &Cpu, weights: &[Weight], rows: usize) -> String {
    let (n, k) = (weights[0].n(), weights[0].k());
    let x: Vec<f32> = (0..rows * k).map(|i| (i % 37) as f32 - 18.0).collect();
    let mut y = vec![0.0; rows * n];
    let mut scratch = Scratch::default();
    let calls = time(&mut weights.iter().cycle(), |weight| {
        gemm(cpu, &mut scratch, &x, rows, &mut [Product::new(weight, &mut y)]);
    });
    let seconds = fast(calls);
    if rows == 1 {
        format!("{:>9.1} GB/s", weights[0].bytes() as f64 / seconds / 1e9)
    } else {
        format!("{:>9.0} GOP/s", 2.0 * (n * k * rows) as f64 / seconds / 1e9)
    }
}
