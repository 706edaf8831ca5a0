//! Reads one stored block of a GGUF format into codes and factors.
//!
//! The bit layouts are those of ggml's `block_*` structures. An element's value is
//! `(d · scale[g]) · (code − zero) + (m · min[g])` with `g` its group; formats without integer
//! factors have 1 for them.

use super::{Coding, Format, Min, half_to_f32};

/// One block, taken apart. Formats of 32 elements use the first 32 codes and the first group.
pub(crate) struct Block {
    /// Codes, unsigned.
    pub(crate) codes: [u8; 256],
    /// Bits of the half-precision factor of the scales.
    pub(crate) d: u16,
    /// Bits of the half-precision factor of the mins; 0 for formats without.
    pub(crate) m: u16,
    /// Integer factor of each group's scale.
    pub(crate) scale: [i8; 16],
    /// Integer factor of each group's min.
    pub(crate) min: [i8; 16],
}

impl Block {
    pub(crate) const fn new() -> Block {
        Block { codes: [0; 256], d: 0, m: 0, scale: [1; 16], min: [1; 16] }
    }

    /// Takes apart one block of `format`, which must always be the same for one `Block`.
    pub(crate) fn read(&mut self, format: Format, bytes: &[u8]) {
        assert_eq!(bytes.len(), format.block_bytes(), "one block of {}", format.name());
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match format {
            Format::Q4_0 => {
                self.d = half(0);
                self.nibbles(&bytes[2..]);
            }
            Format::Q4_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.nibbles(&bytes[4..]);
            }
            Format::Q5_0 => {
                self.d = half(0);
                self.nibbles(&bytes[6..]);
                self.fifth_bits(&bytes[2..6]);
            }
            Format::Q5_1 => {
                (self.d, self.m) = (half(0), half(2));
                self.nibbles(&bytes[8..]);
                self.fifth_bits(&bytes[4..8]);
            }
            Format::Q8_0 => {
                self.d = half(0);
                for (code, byte) in self.codes.iter_mut().zip(&bytes[2..]) {
                    *code = byte ^ 0x80; // signed to offset 128
                }
            }
            Format::Q2_K => self.read_q2_k(bytes),
            Format::Q3_K => self.read_q3_k(bytes),
            Format::Q4_K => {
                (self.d, self.m) = (half(0), half(2));
                self.six_bit_factors(&bytes[4..16]);
                self.nibbles_by_64(&bytes[16..]);
            }
            Format::Q5_K => {
                (self.d, self.m) = (half(0), half(2));
                self.six_bit_factors(&bytes[4..16]);
                self.nibbles_by_64(&bytes[48..]);
                for (run, codes) in self.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    for (code, high) in codes.iter_mut().zip(&bytes[16..48]) {
                        *code |= (high >> run & 1) << 4;
                    }
                }
            }
            Format::Q6_K => self.read_q6_k(bytes),
            Format::F32 | Format::F16 | Format::BF16 => {
                unreachable!("{} has no blocks", format.name())
            }
        }
    }

    /// The block's elements as `f32`. Scales and mins are exact in `f32`, and so are their
    /// products with a code; only adding the min rounds.
    pub(crate) fn expand(&self, coding: Coding, out: &mut [f32]) {
        let (d, m) = (half_to_f32(self.d), half_to_f32(self.m));
        let group = 32 / coding.groups;
        for (g, values) in out.chunks_exact_mut(group).enumerate() {
            let scale = d * f32::from(self.scale[g]);
            let min = m * f32::from(self.min[g]);
            for (value, &code) in values.iter_mut().zip(&self.codes[g * group..]) {
                let product = scale * f32::from(i16::from(code) - i16::from(coding.zero));
                *value = if coding.min == Min::PerGroup { product + min } else { product };
            }
        }
    }

    /// 16 bytes: low nibbles are elements 0–15, high ones 16–31.
    fn nibbles(&mut self, bytes: &[u8]) {
        let (low, high) = self.codes.split_at_mut(16);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(&bytes[..16]) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }

    /// 4 bytes: bit `i` of the little-endian word is bit 4 of element `i`.
    fn fifth_bits(&mut self, bytes: &[u8]) {
        for (i, code) in self.codes[..32].iter_mut().enumerate() {
            *code |= (bytes[i / 8] >> (i % 8) & 1) << 4;
        }
    }

    /// 128 bytes: of each 32, the low nibbles are 32 elements and the high ones the next 32.
    fn nibbles_by_64(&mut self, bytes: &[u8]) {
        for (codes, bytes) in self.codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                *low = byte & 15;
                *high = byte >> 4;
            }
        }
    }

    /// 12 bytes: eight 6-bit scales and eight 6-bit mins, which count negative.
    fn six_bit_factors(&mut self, bytes: &[u8]) {
        for i in 0..4 {
            self.scale[i] = (bytes[i] & 63) as i8;
            self.min[i] = -((bytes[i + 4] & 63) as i8);
            self.scale[i + 4] = (bytes[i + 8] & 15 | bytes[i] >> 6 << 4) as i8;
            self.min[i + 4] = -((bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4) as i8);
        }
    }

    /// 64 bytes: of each 32, bits `2j` and `2j + 1` are the low bits of the `j`th 32 elements.
    fn crumbs(&mut self, bytes: &[u8]) {
        for (codes, bytes) in self.codes.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
            for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, byte) in codes.iter_mut().zip(bytes) {
                    *code = byte >> (2 * j) & 3;
                }
            }
        }
    }

    /// `scales[16]` (scale low nibble, min high), `qs[64]`, `d`, `dmin`.
    fn read_q2_k(&mut self, bytes: &[u8]) {
        for (i, byte) in bytes[..16].iter().enumerate() {
            self.scale[i] = (byte & 15) as i8;
            self.min[i] = -((byte >> 4) as i8);
        }
        self.crumbs(&bytes[16..80]);
        self.d = u16::from_le_bytes([bytes[80], bytes[81]]);
        self.m = u16::from_le_bytes([bytes[82], bytes[83]]);
    }

    /// `hmask[32]`, `qs[64]`, `scales[12]`, `d`.
    fn read_q3_k(&mut self, bytes: &[u8]) {
        let (high, scales) = (&bytes[..32], &bytes[96..108]);
        self.crumbs(&bytes[32..96]);
        for (run, codes) in self.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, high) in codes.iter_mut().zip(high) {
                *code |= (high >> run & 1) << 2;
            }
        }
        for i in 0..16 {
            let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
            let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            self.scale[i] = (low | high << 4) as i8 - 32;
        }
        self.d = u16::from_le_bytes([bytes[108], bytes[109]]);
    }

    /// `ql[128]`, `qh[64]`, `scales[16]`, `d`.
    fn read_q6_k(&mut self, bytes: &[u8]) {
        for half in 0..2 {
            let low = &bytes[64 * half..64 * half + 64];
            let high = &bytes[128 + 32 * half..160 + 32 * half];
            for j in 0..4 {
                let codes = &mut self.codes[128 * half + 32 * j..][..32];
                for (l, code) in codes.iter_mut().enumerate() {
                    let nibble = low[l + 32 * (j % 2)] >> (4 * (j / 2)) & 15;
                    *code = nibble | (high[l] >> (2 * j) & 3) << 4;
                }
            }
        }
        for (scale, &byte) in self.scale.iter_mut().zip(&bytes[192..208]) {
            *scale = byte as i8;
        }
        self.d = u16::from_le_bytes([bytes[208], bytes[209]]);
    }
}
