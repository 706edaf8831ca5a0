//! The random numbers: Philox 4×32-10 and what is made of its words.

use crate::lanes::LANES;

/// Tokens whose numbers 16 counters make.
pub(super) const BLOCK: usize = 4 * LANES;

/// One word for each of 16 counters.
type Words = [u32; LANES];

/// Philox 4×32 with 10 rounds on 16 counters, word by word (Salmon et al. 2011, "Parallel random
/// numbers: as easy as 1, 2, 3").
///
/// The words sit in the low halves of 64-bit lanes, whose high halves are never looked at: a
/// product needs no shuffling then, its low half being the lane itself and its high half a shift.
#[inline(always)]
fn philox(counters: [Words; 4], mut key: [u32; 2]) -> [Words; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = [[0u64; LANES]; 4];
    for i in 0..LANES {
        c0[i] = counters[0][i].into();
        c1[i] = counters[1][i].into();
        c2[i] = counters[2][i].into();
        c3[i] = counters[3][i].into();
    }
    for _ in 0..10 {
        let (k0, k1) = (u64::from(key[0]), u64::from(key[1]));
        for i in 0..LANES {
            let p0 = 0xd251_1f53 * u64::from(c0[i] as u32);
            let p2 = 0xcd9e_8d57 * u64::from(c2[i] as u32);
            (c0[i], c1[i]) = ((p2 >> 32) ^ c1[i] ^ k0, p2);
            (c2[i], c3[i]) = ((p0 >> 32) ^ c3[i] ^ k1, p0);
        }
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    let mut words = [[0; LANES]; 4];
    for i in 0..LANES {
        words[0][i] = c0[i] as u32;
        words[1][i] = c1[i] as u32;
        words[2][i] = c2[i] as u32;
        words[3][i] = c3[i] as u32;
    }
    words
}

/// The words of tokens `block · 64 .. + 64`.
#[inline(always)]
pub(super) fn words(seed: u64, position: u32, block: u32) -> [Words; 4] {
    let mut counters = [block * LANES as u32; LANES];
    for (i, counter) in counters.iter_mut().enumerate() {
        *counter += i as u32;
    }
    let zero = [0; LANES];
    philox([counters, [position; LANES], zero, zero], [seed as u32, (seed >> 32) as u32])
}

/// The word of one token.
pub(super) fn word(seed: u64, position: u32, token: u32) -> u32 {
    let within = token as usize % BLOCK;
    words(seed, position, token / BLOCK as u32)[within / LANES][within % LANES]
}

/// `(word + ½) · 2⁻³²`, rounded; 1 is kept out. Fine steps near 0 matter: there the noise is large.
pub(super) fn uniform(word: u32) -> f32 {
    ((f64::from(word) + 0.5) / 4_294_967_296.0).min(1.0 - f64::from(f32::EPSILON) / 2.0) as f32
}

/// More than any noise: `uniform` is at least 2⁻³³, and `-ln(2⁻³³)` is 22.87.
pub(super) const MOST: f32 = 22.9;

/// Standard Gumbel noise, `-ln(-ln(1 - u))`.
pub(super) fn gumbel(word: u32) -> f64 {
    -(-(-f64::from(uniform(word))).ln_1p()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counter, key and result of the lines `philox4x32 10` of Random123's `kat_vectors`.
    const KNOWN: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];

    #[test]
    fn philox_gives_the_published_answers_in_every_lane() {
        for lane in 0..LANES {
            for (counter, key, expected) in KNOWN {
                let mut counters = [[7; LANES]; 4];
                for (words, c) in counters.iter_mut().zip(counter) {
                    words[lane] = c;
                }
                assert_eq!(philox(counters, key).map(|words| words[lane]), expected);
            }
        }
    }

    #[test]
    fn the_noise_is_finite_and_bounded() {
        for word in [0, 1, 255, 256, 1 << 31, u32::MAX - 1, u32::MAX] {
            let u = uniform(word);
            assert!(0.0 < u && u < 1.0, "{word} gave {u}");
            assert!(gumbel(word).is_finite() && gumbel(word) < f64::from(MOST));
        }
        assert!(gumbel(0) > 22.8);
    }
}
