//! How far the chances of simulated drafts spread about what is usual at their place: how much confidences tell.

use super::units::Units;

/// How far chances spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Sum of the parameters of the beta distribution that chances are drawn from; infinite where all chances are its
    /// mean.
    concentration: f64,
}

impl Spread {
    /// Every chance is what is usual at its place.
    pub const NONE: Spread = Spread { concentration: f64::INFINITY };

    /// Chances that have the correlation `r` with what becomes of drafts, where what is usual is the same. They are
    /// drawn from the beta distribution of the usual chance m as its mean, and of parameters m·k and (1 − m)·k with
    /// k = 1 / r² − 1: its variance is m(1 − m) / (k + 1), which is r² of the variance m(1 − m) of what becomes of
    /// drafts; and since a draft is right with its own chance, that variance is also the covariance of the two.
    ///
    /// # Panics
    /// When `r` is not within 0 to 1, 1 excluded: who knows what becomes of every draft proposes no wrong one.
    pub fn of_correlation(r: f64) -> Spread {
        assert!((0.0..1.0).contains(&r), "a correlation is from 0 to below 1, not {r}");
        Spread { concentration: 1.0 / (r * r) - 1.0 }
    }

    /// The chance of one draft, where `usual` is so at its place: it is the mean of all there. Drawn from `units`.
    pub(super) fn chance(self, usual: f64, units: &mut Units) -> f64 {
        let k = self.concentration;
        if k.is_infinite() || usual <= 0.0 || usual >= 1.0 {
            return usual;
        }
        // A draw from the beta distribution is the share of one from gamma's in the sum of two.
        let (right, wrong) = (units.ln_gamma(usual * k), units.ln_gamma((1.0 - usual) * k));
        1.0 / (1.0 + (wrong - right).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::choose::Draw;

    fn chance(spread: Spread, usual: f64, position: u32) -> f64 {
        let draw = Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 4, position };
        spread.chance(usual, &mut Units::of(&draw, 0))
    }

    #[test]
    fn chances_have_the_mean_and_variance_asked_for() {
        // Of n numbers from 0 to 1 the mean strays by at most 0.5 / √n, and so does that of their squares about the
        // true mean; five times that never happens.
        let count = 50_000;
        let strays = 2.5 / f64::from(count).sqrt();
        for (usual, r) in [(0.7, 0.1), (0.7, 0.6), (0.02, 0.5), (0.97, 0.9), (0.5, 0.999)] {
            let spread = Spread::of_correlation(r);
            let (mut sum, mut squares) = (0.0, 0.0);
            for position in 0..count {
                let chance = chance(spread, usual, position);
                assert!((0.0..=1.0).contains(&chance), "{chance}");
                sum += chance;
                squares += (chance - usual).powi(2);
            }
            let (mean, variance) = (sum / f64::from(count), squares / f64::from(count));
            assert!((mean - usual).abs() < strays, "{usual}, r {r}: mean {mean}");
            let wanted = r * r * usual * (1.0 - usual);
            assert!((variance - wanted).abs() < strays, "{usual}, r {r}: variance {variance}");
        }
    }

    #[test]
    fn nothing_spreads_where_nothing_is_told_or_all_is_sure() {
        assert_eq!(Spread::of_correlation(0.0), Spread::NONE);
        for usual in [0.0, 0.3, 1.0] {
            assert_eq!(chance(Spread::NONE, usual, 1), usual);
        }
        let spread = Spread::of_correlation(0.9);
        assert_eq!([0.0, 1.0].map(|usual| chance(spread, usual, 1)), [0.0, 1.0]);
    }

    #[test]
    fn extremes_have_chances() {
        for r in [1e-200, 1e-150, 1e-12, 1.0 - f64::EPSILON / 2.0] {
            for usual in [f64::MIN_POSITIVE, 1e-18, 0.5, 1.0 - 1e-16] {
                for position in 0..50 {
                    let chance = chance(Spread::of_correlation(r), usual, position);
                    assert!((0.0..=1.0).contains(&chance), "r {r}, usual {usual}: {chance}");
                }
            }
        }
    }
}
