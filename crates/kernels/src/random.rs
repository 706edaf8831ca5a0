//! Random inputs of the tests: fresh on every run, from a seed that a failing test prints.

/// SplitMix64 (Steele et al. 2014).
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose seed is the clock, or `SLIPSTREAM_TEST_SEED` to repeat a failure.
    pub(crate) fn fresh() -> Random {
        let seed = match std::env::var("SLIPSTREAM_TEST_SEED") {
            Ok(seed) => seed.parse().expect("SLIPSTREAM_TEST_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().expect("a clock past 1970").as_nanos() as u64,
        };
        println!("to repeat: SLIPSTREAM_TEST_SEED={seed}");
        Random(seed)
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A float in `[low, high)`.
    pub(crate) fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1u64 << 24) as f32)
    }

    /// `len` floats in `[-scale, scale)`.
    pub(crate) fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.uniform(-scale, scale)).collect()
    }

    /// The numbers below `end` in random order.
    pub(crate) fn permutation(&mut self, end: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..end as u32).collect();
        for i in (1..end).rev() {
            ids.swap(i, self.below(i + 1));
        }
        ids
    }
}
