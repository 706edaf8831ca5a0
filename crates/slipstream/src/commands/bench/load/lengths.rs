//! Lengths drawn from a distribution, and the generator that draws everything of a load.

use std::fmt;
use std::str::FromStr;

/// Random numbers from a seed: SplitMix64 (Steele et al. 2014).
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A whole number below `end`, which is at least 1. Its bias is below 2⁻⁴⁰ for the ends that
    /// occur here.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number in `(0, 1]`.
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box and Muller 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.unit(), self.unit());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// How long prompts or outputs are, in tokens; at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lengths {
    /// Always as long.
    Fixed(usize),
    /// Every length from the first to the last is as likely.
    Uniform(usize, usize),
    /// The logarithm is normal with this standard deviation; half of them are below the median.
    Lognormal { median: f64, sigma: f64 },
}

impl Lengths {
    /// A length of at most `most`, which is at least 1.
    ///
    /// Only [`Lengths::Lognormal`], which has no end of its own, is cut there.
    pub(super) fn draw(self, draws: &mut Draws, most: usize) -> usize {
        match self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(least, greatest) => least + draws.below(greatest - least + 1),
            Lengths::Lognormal { median, sigma } => {
                let length = median * (sigma * draws.normal()).exp();
                (length.round() as usize).clamp(1, most)
            }
        }
    }

    /// The longest that can be drawn; `None` when there is no end.
    pub(super) fn longest(self) -> Option<usize> {
        match self {
            Lengths::Fixed(length) | Lengths::Uniform(_, length) => Some(length),
            Lengths::Lognormal { .. } => None,
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(length) => write!(f, "fixed:{length}"),
            Lengths::Uniform(least, most) => write!(f, "uniform:{least}..{most}"),
            Lengths::Lognormal { median, sigma } => write!(f, "lognormal:{median},{sigma}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        const FORMS: &str = "give fixed:128, uniform:32..512 or lognormal:200,0.7 (median, sigma)";
        let (name, rest) = text.split_once(':').ok_or(FORMS)?;
        let whole = |text: &str| text.parse().ok().filter(|&length: &usize| length >= 1);
        let positive = |text: &str| text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
        let found = match name {
            "fixed" => whole(rest).map(Lengths::Fixed),
            "uniform" => rest.split_once("..").and_then(|(least, most)| {
                let (least, most) = (whole(least)?, whole(most)?);
                (least <= most).then_some(Lengths::Uniform(least, most))
            }),
            "lognormal" => rest.split_once(',').and_then(|(median, sigma)| {
                let (median, sigma) = (positive(median)?, positive(sigma)?);
                (median >= 1.0).then_some(Lengths::Lognormal { median, sigma })
            }),
            _ => None,
        };
        found.ok_or_else(|| format!("{FORMS}; lengths are at least 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 20_000;

    fn drawn(lengths: &str, seed: u64) -> Vec<usize> {
        let lengths: Lengths = lengths.parse().expect("a distribution");
        let mut draws = Draws::new(seed);
        (0..COUNT).map(|_| lengths.draw(&mut draws, 100_000)).collect()
    }

    #[test]
    fn fixed_and_uniform_lengths_keep_their_bounds_and_reach_them() {
        assert!(drawn("fixed:7", 1).iter().all(|&length| length == 7));
        let uniform = drawn("uniform:3..9", 2);
        // Each of the seven lengths comes up 2857 times on average, with a deviation of 50.
        for length in 3..=9 {
            let count = uniform.iter().filter(|&&l| l == length).count();
            assert!((2550..3160).contains(&count), "{length}: {count} times");
        }
        assert!(uniform.iter().all(|length| (3..=9).contains(length)));
    }

    #[test]
    fn lognormal_lengths_have_the_median_and_the_spread_asked_for() {
        let mut lengths = drawn("lognormal:200,0.5", 3);
        lengths.sort_unstable();
        // Quantiles of the normal distribution: 0, and one deviation to each side.
        for (share, expected) in [(0.5, 200.0), (0.841, 329.7), (0.159, 121.3)] {
            let found = lengths[(COUNT as f64 * share) as usize] as f64;
            assert!((found / expected - 1.0).abs() < 0.05, "{share}: {found}, not {expected}");
        }
        let lengths: Lengths = "lognormal:200,2".parse().expect("a distribution");
        let mut draws = Draws::new(4);
        assert!((0..COUNT).all(|_| (1..=300).contains(&lengths.draw(&mut draws, 300))));
    }

    #[test]
    fn a_seed_repeats_and_another_does_not() {
        assert_eq!(drawn("lognormal:80,1", 5), drawn("lognormal:80,1", 5));
        assert_ne!(drawn("uniform:1..100", 5), drawn("uniform:1..100", 6));
    }

    #[test]
    fn what_is_written_is_read_back_and_the_rest_is_refused() {
        for text in ["fixed:1", "uniform:32..512", "lognormal:200,0.7"] {
            assert_eq!(text.parse::<Lengths>().expect(text).to_string(), text);
        }
        for text in [
            "128",
            "fixed:0",
            "fixed:-1",
            "fixed:",
            "uniform:9..3",
            "uniform:0..4",
            "uniform:4",
            "lognormal:200",
            "lognormal:0,1",
            "lognormal:200,0",
            "lognormal:nan,1",
            "normal:1,2",
        ] {
            let problem = text.parse::<Lengths>().expect_err(text);
            assert!(problem.contains("uniform:32..512"), "{text}: {problem}");
        }
    }
}
