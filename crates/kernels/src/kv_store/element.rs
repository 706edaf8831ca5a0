//! What a stored key or value is made of, and how it is read back into lanes.

use crate::format::{bf16_from_f32, bf16_to_f32, byte_scale, nearest_byte};
use crate::lanes::{LANES, Lanes};
use std::str::FromStr;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// As computed.
    #[default]
    F32,
    /// The upper half of an `f32`, rounded to nearest, ties to even.
    Bf16,
    /// Signed bytes with one `f32` scale for a head's key and one for its value, so that the largest
    /// magnitude is 127.
    Int8,
}

impl KvFormat {
    /// All formats, widest first.
    pub const ALL: [KvFormat; 3] = [KvFormat::F32, KvFormat::Bf16, KvFormat::Int8];

    /// Its name: `f32`, `bf16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::Bf16 => "bf16",
            KvFormat::Int8 => "int8",
        }
    }

    /// Bytes of the factors of one key or value of one head.
    pub(super) fn scale_bytes(self) -> usize {
        match self {
            KvFormat::F32 | KvFormat::Bf16 => 0,
            KvFormat::Int8 => size_of::<f32>(),
        }
    }

    /// Bytes of one element.
    pub(super) fn element_bytes(self) -> usize {
        match self {
            KvFormat::F32 => size_of::<f32>(),
            KvFormat::Bf16 => size_of::<Bf16>(),
            KvFormat::Int8 => size_of::<i8>(),
        }
    }
}

impl FromStr for KvFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<KvFormat, String> {
        let found = KvFormat::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("give {}", KvFormat::ALL.map(KvFormat::name).join(", ")))
    }
}

/// The upper half of an `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bf16(u16);

/// One stored element. A head's key or value is `scale · element`.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// Whether scales are stored; without them every scale is 1.
    const SCALED: bool;

    /// The scale of a key or value.
    fn scale(x: &[f32]) -> f32;

    /// `x · inverse` as stored, where `inverse` is what one element is multiplied by: 1 over the scale.
    fn encode(x: f32, inverse: f32) -> Self;

    /// Sixteen elements, exactly.
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::F;
}

impl Element for f32 {
    const SCALED: bool = false;

    fn scale(_: &[f32]) -> f32 {
        1.0
    }

    #[inline(always)]
    fn encode(x: f32, _: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[f32; LANES]) -> L::F {
        lanes.load(from)
    }
}

impl Element for Bf16 {
    const SCALED: bool = false;

    fn scale(_: &[f32]) -> f32 {
        1.0
    }

    #[inline(always)]
    fn encode(x: f32, _: f32) -> Bf16 {
        Bf16(bf16_from_f32(x))
    }

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[Bf16; LANES]) -> L::F {
        let mut wide = [0.0; LANES];
        for (wide, element) in wide.iter_mut().zip(from) {
            *wide = widen(*element);
        }
        lanes.load(&wide)
    }
}

#[inline(always)]
pub(super) fn widen(element: Bf16) -> f32 {
    bf16_to_f32(element.0)
}

impl Element for i8 {
    const SCALED: bool = true;

    fn scale(x: &[f32]) -> f32 {
        byte_scale(x)
    }

    #[inline(always)]
    fn encode(x: f32, inverse: f32) -> i8 {
        nearest_byte(x * inverse)
    }

    #[inline(always)]
    fn load<L: Lanes>(lanes: L, from: &[i8; LANES]) -> L::F {
        let mut wide = [0.0; LANES];
        for (wide, element) in wide.iter_mut().zip(from) {
            *wide = f32::from(*element);
        }
        lanes.load(&wide)
    }
}
