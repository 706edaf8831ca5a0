//! What a step costs: curves measured at start-up, learned from landed steps, or both. Seconds
//! come in as arguments; only their ratios matter.

/// Share of a new reading in a point of a curve. Readings wander with the length of the contexts.
const NEW: f64 = 0.1;

/// Seconds as a function of a count. Between known points it is linear, and the origin counts as
/// one. What lies beyond them is taken to be cheap, so that it is tried and becomes known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostCurve {
    /// By count, ascending; at most one a bucket.
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bucket: u32,
    count: f64,
    seconds: f64,
}

/// Counts up to 4 stand alone, above that each octave has two buckets.
fn bucket(count: usize) -> u32 {
    let octave = count.max(1).ilog2();
    let upper = octave > 0 && count >> (octave - 1) & 1 == 1;
    2 * octave + u32::from(upper)
}

impl CostCurve {
    /// A curve through measured points `(count, seconds)`.
    pub fn measured(points: impl IntoIterator<Item = (usize, f64)>) -> CostCurve {
        let mut curve = CostCurve::default();
        points.into_iter().for_each(|(count, seconds)| curve.learn(count, seconds));
        curve
    }

    /// Takes in that `count` took `seconds`. Readings that say nothing are ignored: a count of 0,
    /// a time that is not a positive number.
    pub fn learn(&mut self, count: usize, seconds: f64) {
        if count == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let (bucket, count) = (bucket(count), count as f64);
        match self.points.binary_search_by_key(&bucket, |point| point.bucket) {
            Ok(at) => {
                let point = &mut self.points[at];
                point.count += NEW * (count - point.count);
                point.seconds += NEW * (seconds - point.seconds);
            }
            Err(at) => self.points.insert(at, Point { bucket, count, seconds }),
        }
    }

    /// Seconds that `count` is expected to take; 0 for 0.
    pub fn seconds(&self, count: usize) -> f64 {
        let count = count as f64;
        self.at(self.points.partition_point(|point| point.count < count), count)
    }

    /// Seconds of `from`, of one more, and so on.
    pub(crate) fn rising(&self, from: usize) -> impl Iterator<Item = f64> {
        let mut at = 0;
        (from..).map(move |count| {
            let count = count as f64;
            while self.points.get(at).is_some_and(|point| point.count < count) {
                at += 1;
            }
            self.at(at, count)
        })
    }

    /// Seconds of a count of which point `at` is the first not below it.
    fn at(&self, at: usize, count: f64) -> f64 {
        let origin = Point { bucket: 0, count: 0.0, seconds: 0.0 };
        let below = at.checked_sub(1).map_or(origin, |i| self.points[i]);
        match self.points.get(at) {
            Some(above) => {
                let share = (count - below.count) / (above.count - below.count);
                below.seconds + share * (above.seconds - below.seconds)
            }
            None => below.seconds + self.last_slope() * (count - below.count),
        }
    }

    /// Seconds for each further count beyond the last point: as between the last two.
    fn last_slope(&self) -> f64 {
        match self.points.as_slice() {
            [.., a, b] => ((b.seconds - a.seconds) / (b.count - a.count)).max(0.0),
            _ => 0.0,
        }
    }
}

/// What the two passes of a step cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCost {
    /// The target's pass and all that comes with it, by its tokens.
    pub verify: CostCurve,
    /// The drafter's pass, by the rows it drafts for.
    pub draft: CostCurve,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_ascend_and_double() {
        let buckets: Vec<u32> = [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16].map(bucket).to_vec();
        assert_eq!(buckets, [0, 2, 3, 4, 4, 5, 5, 6, 6, 7, 8]);
    }

    #[test]
    fn a_measured_curve_goes_through_its_points() {
        let curve = CostCurve::measured([(1, 4.0), (64, 4.0), (128, 6.0), (256, 12.0)]);
        let counts = [0, 1, 32, 64, 96, 128, 256, 512];
        let at = counts.map(|count| curve.seconds(count));
        let risen: Vec<f64> = curve.rising(0).take(513).collect();
        assert_eq!(counts.map(|count| risen[count]), at);
        let slope = (12.0 - 6.0) / 128.0;
        assert_eq!(at, [0.0, 4.0, 4.0, 4.0, 5.0, 6.0, 12.0, 12.0 + 256.0 * slope]);
    }

    #[test]
    fn the_unknown_is_cheap_until_it_is_tried() {
        let mut curve = CostCurve::default();
        assert_eq!(curve.seconds(8), 0.0);
        curve.learn(8, 4.0);
        assert_eq!([4, 8, 99].map(|count| curve.seconds(count)), [2.0, 4.0, 4.0]);
        curve.learn(1, 3.0);
        assert_eq!(curve.seconds(1), 3.0);
        assert!(curve.seconds(4) > 3.0);
    }

    #[test]
    fn a_point_follows_its_readings() {
        let mut curve = CostCurve::measured([(8, 4.0)]);
        (0..100).for_each(|_| curve.learn(8, 6.0));
        assert!((curve.seconds(8) - 6.0).abs() < 1e-3);
        for (count, seconds) in [(0, 1.0), (8, f64::NAN), (8, 0.0), (8, -1.0)] {
            curve.learn(count, seconds);
        }
        assert!((curve.seconds(8) - 6.0).abs() < 1e-3);
    }
}
