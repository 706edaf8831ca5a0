//! Storage formats of checkpoint tensors: plain floats and the block formats of GGUF
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! Every block format is affine: an element is `scale · (code − zero) + min`, with a code of 2 to
//! 8 bits and a scale (and, for some, a min) per group of 16 or 32 elements. `Coding` states
//! the parameters, `blocks` reads the bytes; nothing else knows a format's bit layout.

pub(crate) mod blocks;
mod quantize;

pub use quantize::quantize_q8_0;
pub(crate) use quantize::{byte_scale, nearest_byte};

use blocks::Block;

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the formats' own names
pub enum Format {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// 32 codes of 4 bits around 8, one half scale.
    Q4_0,
    /// 32 codes of 4 bits, half scale and min.
    Q4_1,
    /// 32 codes of 5 bits around 16, one half scale.
    Q5_0,
    /// 32 codes of 5 bits, half scale and min.
    Q5_1,
    /// 32 signed bytes, one half scale.
    Q8_0,
    /// 256 codes of 2 bits; per 16, a 4-bit scale and min times two halves.
    Q2_K,
    /// 256 codes of 3 bits around 4; per 16, a signed 6-bit scale times a half.
    Q3_K,
    /// 256 codes of 4 bits; per 32, a 6-bit scale and min times two halves.
    Q4_K,
    /// 256 codes of 5 bits; per 32, a 6-bit scale and min times two halves.
    Q5_K,
    /// 256 codes of 6 bits around 32; per 16, a signed byte scale times a half.
    Q6_K,
}

impl Format {
    /// Elements in one block (1 for plain floats). Blocks lie along the last dimension.
    pub const fn block(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::Q8_0 => 32,
            Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::Q2_K => 84,
            Format::Q3_K => 110,
            Format::Q4_K => 144,
            Format::Q5_K => 176,
            Format::Q6_K => 210,
        }
    }

    /// Bytes of `elements` elements; `None` when they do not fill whole blocks or overflow.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block()) {
            return None;
        }
        (elements / self.block()).checked_mul(self.block_bytes())
    }

    /// The format's usual name, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q8_0 => "Q8_0",
            Format::Q2_K => "Q2_K",
            Format::Q3_K => "Q3_K",
            Format::Q4_K => "Q4_K",
            Format::Q5_K => "Q5_K",
            Format::Q6_K => "Q6_K",
        }
    }

    /// Expands whole blocks to `f32`. `src` must hold exactly `self.bytes(out.len())` bytes.
    ///
    /// # Panics
    /// When the lengths do not match.
    pub fn dequantize(self, src: &[u8], out: &mut [f32]) {
        assert!(
            self.bytes(out.len()) == Some(src.len()),
            "{} elements of {} do not take {} bytes",
            out.len(),
            self.name(),
            src.len()
        );
        let Some(coding) = self.coding() else {
            self.widen(src, out);
            return;
        };
        let mut block = Block::new();
        let blocks = src.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block()));
        for (bytes, values) in blocks {
            block.read(self, bytes);
            block.expand(coding, values);
        }
    }

    /// Widens plain floats.
    fn widen(self, src: &[u8], out: &mut [f32]) {
        match self {
            Format::F32 => {
                for (v, b) in out.iter_mut().zip(src.as_chunks::<4>().0) {
                    *v = f32::from_le_bytes(*b);
                }
            }
            Format::F16 => {
                for (v, b) in out.iter_mut().zip(src.as_chunks::<2>().0) {
                    *v = half_to_f32(u16::from_le_bytes(*b));
                }
            }
            Format::BF16 => {
                for (v, b) in out.iter_mut().zip(src.as_chunks::<2>().0) {
                    *v = bf16_to_f32(u16::from_le_bytes(*b));
                }
            }
            _ => unreachable!("{} is no plain float", self.name()),
        }
    }

    /// The parameters of a block format; `None` for plain floats.
    pub(crate) const fn coding(self) -> Option<Coding> {
        let (bits, groups, min, zero) = match self {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q4_0 => (4, 1, Min::None, 8),
            Format::Q4_1 | Format::Q4_K => (4, 1, Min::PerGroup, 0),
            Format::Q5_0 => (5, 1, Min::None, 16),
            Format::Q5_1 | Format::Q5_K => (5, 1, Min::PerGroup, 0),
            Format::Q8_0 => (8, 1, Min::None, 128),
            Format::Q2_K => (2, 2, Min::PerGroup, 0),
            Format::Q3_K => (3, 2, Min::None, 4),
            Format::Q6_K => (6, 2, Min::None, 32),
        };
        Some(Coding { bits, groups, min, zero, span: self.block() / 32 })
    }
}

/// Whether a block format adds a min.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Min {
    /// Elements are `scale · (code − zero)`.
    None,
    /// Elements are `scale · code + min`.
    PerGroup,
}

/// The parameters of a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coding {
    /// Bits of a code.
    pub(crate) bits: usize,
    /// Groups (scales) in 32 elements: 1 or 2.
    pub(crate) groups: usize,
    /// Whether groups have a min.
    pub(crate) min: Min,
    /// The code of the value 0: 0 or a power of two.
    pub(crate) zero: u8,
    /// Runs of 32 elements that share one pair of half-precision factors: 1 or 8. With 8, each
    /// group has small integer factors besides.
    pub(crate) span: usize,
}

/// Narrows to a bf16 (bits), to the nearest, ties to even, as cards round; every NaN becomes one.
#[inline(always)] // so that it is compiled for the instruction set of its caller
pub fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Widens a bf16 (bits) exactly.
#[inline(always)] // so that it is compiled for the instruction set of its caller
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens an IEEE half (bits) exactly.
pub(crate) fn half_to_f32(half: u16) -> f32 {
    // 2^112 moves a half's exponent bias (15) to a single's (127); it also normalizes subnormals.
    let magnitude = f32::from_bits(u32::from(half & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of every format and their expansion by the `gguf` package; see the script beside.
    const FIXTURE: &[u8] = include_bytes!("../fixtures/quants.bin");

    const ALL: [Format; 13] = [
        Format::F32,
        Format::F16,
        Format::BF16,
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

    #[test]
    fn every_format_expands_as_the_reference_does() {
        let mut rest = FIXTURE;
        let mut take = |len: usize| {
            let (head, tail) = rest.split_at(len);
            rest = tail;
            head
        };
        for format in ALL {
            let name = std::str::from_utf8(take(8)).unwrap().trim_end_matches('\0');
            assert_eq!(name, format.name());
            let bytes = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            let elements = u32::from_le_bytes(take(4).try_into().unwrap()) as usize;
            let data = take(bytes);
            let mut expected = vec![0.0; elements];
            Format::F32.dequantize(take(4 * elements), &mut expected);
            let mut out = vec![0.0; elements];
            format.dequantize(data, &mut out);
            assert_eq!(out, expected, "{name}");
        }
        assert!(rest.is_empty(), "every record was read");
    }

    #[test]
    fn halves_widen_exactly() {
        for half in 0..=u16::MAX {
            let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
            let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 1023));
            let wide = half_to_f32(half);
            match exponent {
                31 if fraction == 0.0 => assert_eq!(f64::from(wide), sign * f64::INFINITY),
                31 => assert!(wide.is_nan()),
                0 => assert_eq!(f64::from(wide), sign * fraction * 2f64.powi(-24)),
                _ => {
                    let value = sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15);
                    assert_eq!(f64::from(wide), value, "{half:#06x}");
                }
            }
            assert_eq!(wide.is_sign_negative(), sign < 0.0);
        }
    }

    #[test]
    fn bytes_counts_whole_blocks() {
        assert_eq!(Format::Q4_K.bytes(512), Some(288));
        assert_eq!(Format::Q4_K.bytes(500), None);
        assert_eq!(Format::F16.bytes(7), Some(14));
        assert_eq!(Format::F32.bytes(usize::MAX), None);
    }

    #[test]
    #[should_panic(expected = "32 elements of Q8_0 do not take 33 bytes")]
    fn a_wrong_length_panics() {
        Format::Q8_0.dequantize(&[0; 33], &mut [0.0; 32]);
    }
}
