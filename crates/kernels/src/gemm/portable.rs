//! The inner loops in plain Rust: for CPUs without loops of their own, and the reference for
//! those that have. Block formats give the same bits everywhere; plain floats are multiplied and
//! added with two roundings here, since a fused operation in software would be far too slow.

use super::cpu::{SUMS, Stored};
use super::input::Quantized;
use super::panel::{LANES, LINE, RUN, group_factors, unpack_codes};
use crate::format::{Format, Min, bf16_to_f32, half_to_f32};

/// See [`Isa::products`](super::cpu::Isa::products).
pub(super) fn products(rounds: usize) -> i32 {
    let mut sums = [[0; LANES]; SUMS];
    for _ in 0..rounds {
        let (a, b) = (std::hint::black_box([1u8; 4]), std::hint::black_box([2i8; 4]));
        for lane in sums.as_flattened_mut() {
            *lane += a.iter().zip(&b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>();
        }
    }
    sums.as_flattened().iter().sum()
}

/// Block formats. `x` is a tile of quantized input.
pub(super) fn blocks<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[Quantized],
    out: &mut [[f32; LANES]],
) {
    let coding = T::CODING;
    assert_eq!(out.len(), ROWS, "the rows of the tile");
    out.fill([0.0; LANES]);
    let units = panel.chunks_exact(coding.unit_bytes());
    for (unit, x) in units.zip(x.chunks_exact(coding.span * ROWS)) {
        let runs = unit[coding.header_bytes()..].chunks_exact(coding.run_bytes());
        for (run, x) in runs.zip(x.chunks_exact(ROWS)) {
            let codes: [[u8; RUN]; LANES] =
                std::array::from_fn(|lane| unpack_codes(coding.bits, run, lane));
            let factors: [_; 2] =
                std::array::from_fn(|g| group_factors(coding, unit, run, g.min(coding.groups - 1)));
            for (x, out) in x.iter().zip(out.iter_mut()) {
                for lane in 0..LANES {
                    for (g, (scale, min)) in factors[..coding.groups].iter().enumerate() {
                        let sum = coding.sum(g);
                        let group = RUN / coding.groups * g..RUN / coding.groups * (g + 1);
                        let products = codes[lane][group.clone()].iter().zip(&x.q[group]);
                        let dot = products
                            .fold(i32::from(coding.zero) * x.neg_sums[sum], |dot, (&c, &q)| {
                                dot + i32::from(c) * i32::from(q)
                            });
                        let total = (dot as f32 * x.scale).mul_add(scale[lane], out[lane]);
                        out[lane] = match coding.min {
                            Min::None => total,
                            Min::PerGroup => min[lane].mul_add(x.scaled_sums[sum], total),
                        };
                    }
                }
            }
        }
    }
}

/// Plain floats. `x` is a tile of transposed input.
pub(super) fn floats<T: Stored, const ROWS: usize>(
    panel: &[u8],
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    assert_eq!(out.len(), ROWS, "the rows of the tile");
    out.fill([0.0; LANES]);
    let units = panel.chunks_exact(2 * LANES * T::FORMAT.block_bytes());
    for (unit, x) in units.zip(x.chunks_exact(2 * ROWS)) {
        for (weights, x) in pair::<T>(unit).iter().zip(x.chunks_exact(ROWS)) {
            for (out, &x) in out.iter_mut().zip(x) {
                for (out, weight) in out.iter_mut().zip(weights) {
                    *out += weight * x;
                }
            }
        }
    }
}

/// The two elements of each row in one unit.
fn pair<T: Stored>(unit: &[u8]) -> [[f32; LANES]; 2] {
    let half = |i: usize| u16::from_le_bytes([unit[2 * i], unit[2 * i + 1]]);
    std::array::from_fn(|j| {
        std::array::from_fn(|lane| match T::FORMAT {
            Format::F32 => {
                let at = j * LINE + 4 * lane;
                f32::from_le_bytes(unit[at..at + 4].try_into().expect("4 bytes"))
            }
            Format::F16 => half_to_f32(half(j * LANES + lane)),
            _ => bf16_to_f32(half(2 * lane + j)),
        })
    })
}
