//! Where a value lies on an axis, and which values are worth a tick.

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From 0.
    Linear,
    /// Factors of ten are as wide.
    Log,
}

/// An axis: values and the pixels they lie at.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    kind: Kind,
    values: [f64; 2],
    pixels: [f64; 2],
}

impl Scale {
    /// An axis that has room for all of `values` between the two `pixels`. A logarithmic one leaves
    /// out values that are not above 0.
    pub(super) fn new(kind: Kind, values: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Scale {
        let usable = |value: &f64| value.is_finite() && (kind == Kind::Linear || *value > 0.0);
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            (least, most) = (least.min(value), most.max(value));
        }
        let values = match kind {
            Kind::Linear if most > 0.0 => [0.0, most],
            Kind::Linear => [0.0, 1.0],
            Kind::Log if least < most => [least, most],
            Kind::Log if least == most => [least / 2.0, most * 2.0],
            Kind::Log => [1.0, 10.0],
        };
        Scale { kind, values, pixels }
    }

    /// The axis with room for its outermost ticks.
    pub(super) fn rounded(mut self) -> Scale {
        let [least, most] = self.values;
        match self.kind {
            Kind::Linear => {
                let step = step(most);
                self.values = [0.0, (most / step - 1e-9).ceil() * step];
            }
            Kind::Log => {
                let below = marks(least / 10.0, least * (1.0 + 1e-9)).last().copied();
                let above = marks(most * (1.0 - 1e-9), most * 10.0).first().copied();
                self.values = [below.unwrap_or(least), above.unwrap_or(most)];
            }
        }
        self
    }

    /// The place of a value; the axis's end for one that lies beyond it.
    pub(super) fn at(&self, value: f64) -> f64 {
        let place = |value: f64| match self.kind {
            Kind::Linear => value,
            Kind::Log => value.max(self.values[0]).ln(),
        };
        let [from, to] = self.values.map(place);
        let share = ((place(value) - from) / (to - from)).clamp(0.0, 1.0);
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }

    /// Values for ticks, ascending; at most a dozen.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let [least, most] = self.values;
        match self.kind {
            Kind::Linear => {
                let step = step(most);
                (0..=(most / step + 1e-9) as usize).map(|i| i as f64 * step).collect()
            }
            Kind::Log => {
                let all = marks(least * (1.0 - 1e-9), most * (1.0 + 1e-9));
                if all.len() <= 12 {
                    return all;
                }
                let tens = |mark: &f64| (mark.log10() - mark.log10().round()).abs() < 1e-9;
                all.into_iter().filter(tens).collect()
            }
        }
    }
}

/// 1, 2 or 5 times a power of ten, such that four to ten of them reach `most`.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / 4.0).log10().floor());
    [5.0, 2.0].into_iter().map(|m| m * power).find(|step| step * 4.0 <= most).unwrap_or(power)
}

/// 1, 2 and 5 times powers of ten from `least` to `most`.
fn marks(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let marks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(power)));
    marks.filter(|mark| (least..=most).contains(mark)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIXELS: [f64; 2] = [10.0, 110.0];

    #[test]
    fn linear_axes_start_at_nought_and_end_at_a_tick() {
        let scale = Scale::new(Kind::Linear, [3.0, 87.0].into_iter(), PIXELS).rounded();
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!((scale.at(0.0), scale.at(50.0), scale.at(100.0)), (10.0, 60.0, 110.0));
        let empty = Scale::new(Kind::Linear, [0.0].into_iter(), PIXELS).rounded();
        assert_eq!(empty.at(0.0), 10.0);
    }

    #[test]
    fn logarithmic_axes_make_factors_even() {
        let scale = Scale::new(Kind::Log, [1.2, 0.0, 90.0].into_iter(), PIXELS).rounded();
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!((scale.at(10.0) - 60.0).abs() < 1e-9);
        assert_eq!(scale.at(0.0), 10.0, "what has no logarithm lies at the end");
        let wide = Scale::new(Kind::Log, [0.001, 1e6].into_iter(), PIXELS).rounded();
        assert!(wide.ticks().len() <= 12);
    }

    #[test]
    fn every_range_has_a_few_ticks() {
        for exponent in -30..30 {
            let most = 1.37f64.powi(exponent);
            let scale = Scale::new(Kind::Linear, [most].into_iter(), PIXELS).rounded();
            let ticks = scale.ticks();
            assert!((4..=12).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(ticks[ticks.len() - 1] >= most * (1.0 - 1e-6), "{most}: {ticks:?}");
        }
    }
}
