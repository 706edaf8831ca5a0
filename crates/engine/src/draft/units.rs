//! Random numbers of simulated drafts: the same in every run.

use kernels::choose::Draw;

/// What SplitMix64 adds from number to number.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers in `[0, 1)` for one draft, by SplitMix64 (Steele et al. 2014).
pub(super) struct Units(u64);

impl Units {
    /// Those of the draft at `place` of the block whose first token is chosen by `draw`: they depend on the
    /// request's seed, where its block begins, and the place.
    pub(super) fn of(draw: &Draw, place: usize) -> Units {
        // One after another: of their sum, neighbouring seeds would share draws.
        let block = [draw.seed, u64::from(draw.position)];
        let mixed = block.into_iter().fold(0u64, |mixed, word| mix(mixed.wrapping_add(word)));
        Units(mixed.wrapping_add(place as u64))
    }

    /// The next one.
    pub(super) fn draw(&mut self) -> f64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A draw from the normal distribution of mean 0 and variance 1, by Box and Muller (1958).
    pub(super) fn normal(&mut self) -> f64 {
        let (length, turn) = (1.0 - self.draw(), self.draw());
        (-2.0 * length.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
    }

    /// The logarithm of a draw from the gamma distribution of `shape`, above 0, and scale 1, by Marsaglia and Tsang
    /// (2000). Below a shape of 1 it is one of a shape greater by 1, times a power of a uniform number, as they say
    /// there: where the shape is small, numbers have no room for such powers, but for their logarithms.
    pub(super) fn ln_gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let power = (1.0 - self.draw()).ln() / shape;
            return power + self.ln_gamma(shape + 1.0);
        }
        let d = shape - 1.0 / 3.0;
        loop {
            let x = self.normal();
            let root = 1.0 + x / (9.0 * d).sqrt();
            if root <= 0.0 {
                continue;
            }
            let v = root.powi(3);
            if (1.0 - self.draw()).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d.ln() + v.ln();
            }
        }
    }
}

/// SplitMix64's number behind `word`.
fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn units(seed: u64, position: u32, place: usize) -> Units {
        let draw = Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, position };
        Units::of(&draw, place)
    }

    #[test]
    fn no_two_requests_or_places_share_a_draw() {
        let mut seen = HashSet::new();
        for (seed, position, place) in
            (0..20).flat_map(|s| (0..40).flat_map(move |p| (0..7).map(move |k| (s, p, k))))
        {
            let mut units = units(seed, position, place);
            for i in 0..4 {
                let fresh = seen.insert(units.draw().to_bits());
                assert!(fresh, "{seed}, {position}, {place}: {i}");
            }
        }
    }

    /// Figures of Slipstream's that were measured with these stay comparable.
    #[test]
    fn the_first_draw_is_what_it_always_was() {
        let known = [0.852468523686951, 0.8394353631622222, 0.8223653328078234, 0.7612808136587442];
        for (place, known) in known.into_iter().enumerate() {
            assert_eq!(units(7, 13, place).draw(), known, "place {place}");
        }
    }

    /// Mean and variance of `count` numbers.
    fn moments(count: usize, mut number: impl FnMut(usize) -> f64) -> [f64; 2] {
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..count {
            let number = number(i);
            sum += number;
            squares += number * number;
        }
        let mean = sum / count as f64;
        [mean, squares / count as f64 - mean * mean]
    }

    #[test]
    fn draws_have_the_mean_and_variance_of_their_distributions() {
        // Means of n draws stray by √(variance / n), variances by √((fourth moment − variance²) / n); five times
        // that never happens. Of the normal distribution the fourth moment is 3, of gamma's 3 shape² + 6 shape.
        let count = 100_000;
        let strays = |variance: f64| 5.0 * (variance / count as f64).sqrt();
        let [mean, variance] = moments(count, |i| units(1, i as u32, 0).normal());
        assert!(mean.abs() < strays(1.0) && (variance - 1.0).abs() < strays(2.0), "{mean}");
        for shape in [0.03, 0.1, 0.6, 1.0, 1.7, 40.0, 1e6] {
            let [mean, variance] = moments(count, |i| units(2, i as u32, 3).ln_gamma(shape).exp());
            let fourth = 3.0 * shape * shape + 6.0 * shape;
            assert!((mean - shape).abs() < strays(shape), "shape {shape}: mean {mean}");
            let off = (variance - shape).abs();
            assert!(off < strays(fourth - shape * shape), "shape {shape}: variance {variance}");
        }
    }

    #[test]
    fn small_shapes_have_logarithms() {
        for (i, shape) in [1e-3, 1e-10, 1e-18, 1e-300].into_iter().enumerate() {
            let found = units(3, 5, i).ln_gamma(shape);
            assert!(found.is_finite() && found < 0.0, "shape {shape}: {found}");
        }
    }
}
