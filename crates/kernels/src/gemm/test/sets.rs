//! Instruction sets beside each other: which bits they share.

use super::shapes::drawn;
use super::{BLOCKS, Case, Random, bits};
use crate::format::{Format, half_to_f32};
use crate::gemm::cpu::Isa;
use crate::gemm::input::{Form, Quantized};

/// Demands the same bits of every set that shares them. Plain floats have bits of their own without
/// a fused multiply-add, and where pairs of them are added at a time.
fn agree(case: &Case, x: &[f32]) {
    let form = |isa: &Isa| Form::of(*isa, case.format);
    let same = |isa: &Isa| match form(isa) {
        Form::Quantized => true,
        Form::Paired => false,
        Form::Transposed => *isa != Isa::Portable,
    };
    let sets: Vec<Isa> = Isa::available().filter(same).collect();
    for pair in sets.windows(2) {
        let [a, b] = [case.run(pair[0], 1, x), case.run(pair[1], 1, x)];
        let what = format!("{} [{}, {}] {pair:?}", case.format.name(), case.n, case.k);
        assert_eq!(bits(&a), bits(&b), "{what}");
    }
}

#[test]
fn sets_agree() {
    let mut random = Random::fresh();
    for case in Case::all(&mut random).iter().chain(&drawn(&mut random)) {
        let x = random.input(15 * case.k);
        agree(case, &x);
    }
}

#[test]
fn sets_agree_where_codes_and_inputs_are_largest() {
    let mut random = Random::fresh();
    for format in BLOCKS {
        let (n, k) = (16, 2 * format.block());
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let case = Case::of(format, n, k, random.blocks(format, n * k, |_| byte));
            for sign in [1.0, -1.0] {
                agree(&case, &vec![sign; k]);
            }
        }
    }
}

#[test]
fn every_half_is_widened_exactly() {
    let halves = 0..=u16::MAX;
    let n = halves.len();
    let weights = Case::of(Format::F16, n, 1, halves.clone().flat_map(u16::to_le_bytes).collect());
    // Of the 32 bytes beside each half, one is not zero.
    let block = |half: u16| half.to_le_bytes().into_iter().chain([1]).chain([0; 31]);
    let scales = Case::of(Format::Q8_0, n, 32, halves.clone().flat_map(block).collect());
    let mut x = [0.0; 32];
    // The quantized input is 127 · 1.
    x[0] = 127.0;
    for isa in Isa::available() {
        let (weights, scales) = (weights.run(isa, 2, &[1.0]), scales.run(isa, 2, &x));
        for (half, (weight, scale)) in halves.clone().zip(weights.into_iter().zip(scales)) {
            let exact = half_to_f32(half);
            let same = |v: f32, exact: f32| v == exact || v.is_nan() && exact.is_nan();
            assert!(same(weight, exact), "{isa:?}: {weight}, not {exact} from {half:#06x}");
            assert!(same(scale, 127.0 * exact), "{isa:?}: {scale}, not 127 · {exact}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn quantizing_in_vectors_changes_no_bit() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return;
    }
    let mut random = Random::fresh();
    for trial in 0..4096 {
        // Down to what counts as zero, and up to the largest.
        let size = 2.0f32.powi(random.bits() as i32 % 140 - 6);
        let mut x: [f32; 32] = std::array::from_fn(|_| random.unit() * size);
        match trial % 8 {
            0 => x[random.bits() as usize % 32] = f32::INFINITY,
            1 => x.fill(random.unit() * size),
            _ => {}
        }
        let plain = Quantized::new(&x);
        // SAFETY: the CPU has AVX2.
        let wide = unsafe { crate::gemm::avx2::quantize(&x) };
        if plain.scale.is_finite() {
            assert_eq!(wide, plain, "{x:?}");
        }
        assert_eq!(wide.scale.to_bits(), plain.scale.to_bits(), "{x:?}");
    }
}

/// FNV-1a of the outputs' bits.
fn digest(values: &[f32]) -> u64 {
    values
        .iter()
        .flat_map(|v| v.to_bits().to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[test]
fn block_formats_give_the_same_bits_on_every_machine() {
    const DIGESTS: [u64; 10] = [
        0xb067_65ce_04c7_1965,
        0x10d7_628f_cbf5_2ed0,
        0x6946_db07_b391_b64b,
        0x344e_207a_9445_6546,
        0x0310_65ef_2581_d935,
        0x26c4_5843_73f0_03ea,
        0x2791_df5a_d372_4306,
        0xfdeb_eeed_3b2a_3371,
        0x74ba_5c90_ccde_c543,
        0xf934_63ec_0d02_73dc,
    ];
    for isa in Isa::available() {
        let digests = BLOCKS.map(|format| {
            let mut random = Random(1);
            let case = Case::new(&mut random, format, 37, 3 * format.block());
            let x = random.input(13 * case.k);
            digest(&case.run(isa, 2, &x))
        });
        assert_eq!(digests, DIGESTS, "{isa:?}: {digests:#018x?}");
    }
}
