//! Plain floats to 8-bit blocks.

use super::Format;

/// Quantizes to [`Format::Q8_0`]: blocks of 32 with scale `largest / 127` rounded to half
/// precision, codes rounded to the nearest. An element is off by at most half a scale, or by what
/// the scale's rounding adds. `values` must be whole blocks and finite.
///
/// # Panics
/// When `values` are not whole blocks.
pub fn quantize_q8_0(values: &[f32]) -> Vec<u8> {
    let block = Format::Q8_0.block();
    assert!(values.len().is_multiple_of(block), "{} values are not whole blocks", values.len());
    let mut out = Vec::with_capacity(values.len() / block * Format::Q8_0.block_bytes());
    for values in values.chunks_exact(block) {
        let largest = values.iter().fold(0.0, |a: f32, v| a.max(v.abs()));
        let scale = half_from_f32(largest / 127.0);
        let exact = super::half_to_f32(scale);
        let inverse = if exact == 0.0 { 0.0 } else { exact.recip() };
        out.extend_from_slice(&scale.to_le_bytes());
        // A scale that was rounded down could push the largest code past 127.
        let code = |v: &f32| (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        out.extend(values.iter().map(|v| code(v) as u8));
    }
    out
}

/// What signed bytes are multiplied by that hold `x`, the largest magnitude as 127. A NaN or infinity in `x`
/// makes it NaN or infinite, and so every product with it.
#[inline(always)] // so that it is compiled for the instruction set of its caller
pub(crate) fn byte_scale(x: &[f32]) -> f32 {
    // Magnitudes order like their bits, and NaN comes last.
    let largest = x.iter().fold(0, |m: i32, v| m.max(v.abs().to_bits() as i32));
    f32::from_bits(largest as u32) / 127.0
}

/// The nearest signed byte, ties to even, of what lies within the range of one.
#[inline(always)] // so that it is compiled for the instruction set of its caller
pub(crate) fn nearest_byte(x: f32) -> i8 {
    // Adding 1.5 · 2²³ leaves the nearest integer in the low bits.
    (x + 12_582_912.0).to_bits() as i8
}

/// Narrows to an IEEE half (bits), to the nearest, ties to even.
fn half_from_f32(value: f32) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    let magnitude = if size.is_nan() {
        0x7e00
    } else if size >= 65520.0 {
        0x7c00
    } else if size < 2.0f32.powi(-14) {
        // Subnormal halves are multiples of 2⁻²⁴.
        (size * 2.0f32.powi(24)).round_ties_even() as u16
    } else {
        let bits = size.to_bits();
        let rounded = bits + 0xfff + (bits >> 13 & 1);
        ((rounded - (112 << 23)) >> 13) as u16
    };
    sign | magnitude
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::half_to_f32;
    use crate::random::Random;

    #[test]
    fn every_half_survives_and_the_nearest_is_taken() {
        for bits in 0..=u16::MAX {
            let wide = half_to_f32(bits);
            if !wide.is_nan() {
                assert_eq!(half_from_f32(wide), bits);
            }
        }
        for bits in 0..0x7bffu16 {
            let (low, high) = (half_to_f32(bits), half_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(half_from_f32(middle), bits + (bits & 1), "ties go to even");
            assert_eq!(half_from_f32(middle.next_down()), bits);
            assert_eq!(half_from_f32(middle.next_up()), bits + 1);
        }
    }

    #[test]
    fn elements_are_off_by_half_a_scale_at_most() {
        let mut random = Random::fresh();
        let mut values = random.floats(32 * 50, 3.0);
        values[..32].fill(0.0);
        let mut back = vec![0.0; values.len()];
        Format::Q8_0.dequantize(&quantize_q8_0(&values), &mut back);
        for (values, back) in values.chunks(32).zip(back.chunks(32)) {
            let largest = values.iter().fold(0.0, |a: f32, v| a.max(v.abs()));
            // Half a code, and 127 codes times the rounding of the scale (2⁻¹¹).
            let bound = largest / 127.0 * 0.5 * 1.001 + largest * 2.0f32.powi(-11);
            for (v, b) in values.iter().zip(back) {
                assert!((v - b).abs() <= bound, "{v} became {b}, bound {bound}");
            }
        }
    }
}
