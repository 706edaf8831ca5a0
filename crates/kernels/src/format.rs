//! Storage formats of checkpoint tensors: plain floats and the block formats of GGUF
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // the formats' own names
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
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
        let _ = (src, out);
        unimplemented!()
    }
}
