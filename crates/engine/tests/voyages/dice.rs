//! What chance decides, and what it came to.

use std::collections::BTreeMap;

/// A small generator (SplitMix64, Steele et al. 2014).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    /// Once in `sides` times.
    pub(crate) fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())].clone()
    }
}

/// How often what was met.
#[derive(Debug, Default)]
pub(crate) struct Log(BTreeMap<&'static str, u64>);

impl Log {
    pub(crate) fn note(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(crate) fn add(&mut self, other: &Log) {
        other.0.iter().for_each(|(what, times)| self.note(what, *times));
    }

    /// Those of `wanted` that were never met.
    pub(crate) fn missing(&self, wanted: &[&'static str]) -> Vec<&'static str> {
        let met = |what: &&&str| self.0.get(**what).is_some_and(|times| *times > 0);
        wanted.iter().filter(|what| !met(what)).copied().collect()
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(what, times)| writeln!(f, "{times:12} {what}"))
    }
}
