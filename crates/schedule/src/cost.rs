//! What a step costs: curves measured at start-up, learned from landed steps, or both. Seconds
//! come in as arguments; only their ratios matter.
//!
//! A step's time is taken to be a curve's value times the device's *pace*, which wanders with the
//! length of the contexts and with what else the machine does. A width chosen long ago would look
//! cheap or dear only because the pace was another then, so readings are divided by it.

use crate::chances::Chances;

/// Share of a new reading in the pace: contexts of a request grow within a few hundred steps.
const NEW_PACE: f64 = 0.1;
/// The same in a point of a curve: much less, so that a change of pace is told from one of shape.
const NEW_POINT: f64 = 0.02;
/// Of so many first readings of a point the least counts: interruptions only ever add.
const FIRST: u32 = 3;
/// With fewer points than this a curve tells nothing of other counts.
const KNOWN: usize = 2;
/// Readings of other points after which one is old.
const OLD: u32 = 500;
/// Share of an expected count that is in any case.
const CUT: f64 = 0.97;
/// A reading further above what is known than this share of it counts as if it were so far.
const FAR: f64 = 0.5;

/// `known` after a `reading` of which a share of `new` counts.
fn follow(known: f64, reading: f64, new: f64) -> f64 {
    known * (1.0 + new * (reading / known - 1.0).min(FAR))
}

/// Seconds as a function of a count. Between known points it is linear, and the origin counts as
/// one. What lies beyond them is taken to be cheap, so that it is tried and becomes known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostCurve {
    /// By count, ascending; at most one a bucket.
    points: Vec<Point>,
    /// Of buckets without a point, the least of fewer than [`FIRST`] readings. One that was
    /// interrupted would make its count look dear, and what looks dear is not tried again.
    unripe: Vec<Point>,
    /// Counts of which any other costs what the next of them does, ascending; where there is no next, each
    /// count has a cost of its own.
    stairs: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bucket: u32,
    count: f64,
    seconds: f64,
    readings: u32,
    /// Readings of other points since its last.
    age: u32,
}

impl Point {
    fn learn(&mut self, count: f64, seconds: f64) {
        self.age = 0;
        self.readings = self.readings.saturating_add(1);
        self.count += NEW_POINT * (count - self.count);
        self.seconds = match self.readings {
            0..=FIRST => self.seconds.min(seconds),
            _ => follow(self.seconds, seconds, NEW_POINT),
        };
    }
}

/// Counts up to 4 stand alone, above that each octave has two buckets.
fn bucket(count: usize) -> u32 {
    let octave = count.max(1).ilog2();
    let upper = octave > 0 && count >> (octave - 1) & 1 == 1;
    2 * octave + u32::from(upper)
}

impl CostCurve {
    /// A curve that goes up in stairs and knows nothing else: a count costs what the next of `stairs` does, which
    /// ascend.
    pub fn of_stairs(stairs: Vec<usize>) -> CostCurve {
        CostCurve { stairs, ..CostCurve::default() }
    }

    /// The count whose cost a count has.
    fn stair(&self, count: usize) -> usize {
        let at = self.stairs.partition_point(|&stair| stair < count);
        if count == 0 { 0 } else { self.stairs.get(at).copied().unwrap_or(count) }
    }

    /// A curve through measured points `(count, seconds)`.
    pub fn measured(points: impl IntoIterator<Item = (usize, f64)>) -> CostCurve {
        let mut curve = CostCurve::default();
        for (count, seconds) in points {
            curve.learn(count, seconds);
            // Who measures knows what was interrupted.
            for point in std::mem::take(&mut curve.unripe) {
                curve.insert(point);
            }
        }
        curve
    }

    /// Takes in that `count` took `seconds`. Readings that say nothing are ignored: a count of 0,
    /// a time that is not a positive number.
    pub fn learn(&mut self, count: usize, seconds: f64) {
        if count == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let count = self.stair(count);
        let (bucket, count) = (bucket(count), count as f64);
        self.grow_old();
        match self.points.binary_search_by_key(&bucket, |point| point.bucket) {
            Ok(at) => {
                self.points[at].learn(count, seconds);
                self.straighten(at);
            }
            Err(_) => {
                let new = Point { bucket, count, seconds, readings: 1, age: 0 };
                if let Some(point) = self.ripen(new) {
                    self.insert(point);
                }
            }
        }
    }

    /// Forgets the widest point if it looks dear and was not read for long. Perhaps the machine was busy
    /// then, and what looks dear is not tried again while it is known.
    fn grow_old(&mut self) {
        self.points.iter_mut().for_each(|point| point.age = point.age.saturating_add(1));
        if let [.., a, b, last] = self.points.as_slice()
            && last.age > OLD
            && last.seconds > b.seconds + slope(a, b).max(0.0) * (last.count - b.count)
        {
            self.points.pop();
        }
    }

    fn insert(&mut self, point: Point) {
        let at = self.points.partition_point(|other| other.bucket < point.bucket);
        self.points.insert(at, point);
        self.straighten(at);
    }

    /// Takes in a reading of a bucket that has no point. Its point, as soon as there is one: at once
    /// while hardly anything is known.
    fn ripen(&mut self, new: Point) -> Option<Point> {
        if self.points.len() < KNOWN {
            return Some(new);
        }
        let Some(at) = self.unripe.iter().position(|point| point.bucket == new.bucket) else {
            self.unripe.push(new);
            return None;
        };
        let point = &mut self.unripe[at];
        point.learn(new.count, new.seconds);
        (point.readings == FIRST).then(|| self.unripe.swap_remove(at))
    }

    /// Less work never takes longer: a point that says so, because its readings were interrupted
    /// or are old, is lowered. `changed` is the only point that may have moved.
    fn straighten(&mut self, changed: usize) {
        let next = self.points.get(changed + 1).map_or(f64::INFINITY, |next| next.seconds);
        let least = self.points[changed].seconds.min(next);
        for point in &mut self.points[..=changed] {
            point.seconds = point.seconds.min(least);
        }
    }

    /// Whether there is a point for counts like this.
    fn knows(&self, count: usize) -> bool {
        self.points.binary_search_by_key(&bucket(self.stair(count)), |point| point.bucket).is_ok()
    }

    /// Seconds that `count` takes at least: those of its own point or of the last one below. `None` without either.
    pub(crate) fn least(&self, count: usize) -> Option<f64> {
        let bucket = bucket(self.stair(count));
        let at = self.points.partition_point(|point| point.bucket <= bucket);
        at.checked_sub(1).map(|i| self.points[i].seconds)
    }

    /// Seconds that `count` is expected to take; 0 for 0.
    pub fn seconds(&self, count: usize) -> f64 {
        self.at(count as f64)
    }

    /// The same of a count that is itself expected, and need not be whole. What is expected to be little above a stair
    /// is cut to it.
    pub(crate) fn at(&self, count: f64) -> f64 {
        if self.stairs.is_empty() {
            return self.between(count);
        }
        self.between(self.stair((count * CUT).ceil() as usize) as f64)
    }

    /// Between its points.
    fn between(&self, count: f64) -> f64 {
        let at = self.points.partition_point(|point| point.count < count);
        let below = at.checked_sub(1).map_or(&ORIGIN, |i| &self.points[i]);
        let slope = match self.points.get(at) {
            Some(above) => slope(below, above),
            None => self.last_slope(),
        };
        below.seconds + slope * (count - below.count)
    }

    /// Seconds for each further count beyond the last point: as between the last two.
    fn last_slope(&self) -> f64 {
        match self.points.as_slice() {
            [.., a, b] => slope(a, b).max(0.0),
            _ => 0.0,
        }
    }
}

const ORIGIN: Point = Point { bucket: 0, count: 0.0, seconds: 0.0, readings: 0, age: 0 };

fn slope(below: &Point, above: &Point) -> f64 {
    (above.seconds - below.seconds) / (above.count - below.count)
}

/// What the two passes of a step cost. The default knows nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCost {
    /// The target's pass and all that comes with it, by its tokens.
    pub verify: CostCurve,
    /// The drafter's pass, by the positions that it drafts, or by the rows it drafts for where nothing is
    /// known of `blocks`.
    pub draft: CostCurve,
    /// The numbers of positions that a row may be drafted at, ascending.
    pub blocks: Vec<usize>,
}

/// A way to draft for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Drafts that there is room for.
    pub(crate) drafts: usize,
    /// What a row counts among those of [`StepCost::draft`].
    pub(crate) positions: usize,
}

impl Room {
    /// Room for whatever is verified, at a cost of which nothing is known but the rows.
    const ANY: Room = Room { drafts: usize::MAX, positions: 1 };

    fn of(block: usize) -> Room {
        Room { drafts: block - 1, positions: block }
    }
}

impl StepCost {
    /// The ways to draft for a row that are worth weighing, the narrowest first: the narrowest block, the widest,
    /// and those between of which it is known what they lose. Of more of them the best would be a lucky one.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = Room> {
        let ends = [self.blocks.first(), self.blocks.last()];
        let known =
            move |block: &&usize| ends.contains(&Some(*block)) || Chances::tell_apart(**block - 1);
        let any = self.blocks.is_empty().then_some(Room::ANY);
        self.blocks.iter().filter(known).map(|&block| Room::of(block)).chain(any)
    }

    /// The narrowest of all blocks with room for so many drafts, or the widest there is.
    pub(crate) fn room(&self, drafts: usize) -> Room {
        let fits = self.blocks.iter().find(|&&block| block > drafts);
        fits.or(self.blocks.last()).map_or(Room::ANY, |&block| Room::of(block))
    }

    /// Whether neither curve has a point.
    pub fn is_unknown(&self) -> bool {
        self.verify.points.is_empty() && self.draft.points.is_empty()
    }

    /// Takes in a landed step's seconds. `pace` is the device's, 1 at first.
    pub(crate) fn learn(
        &mut self,
        pace: &mut f64,
        (tokens, verify): (usize, f64),
        (drafting, draft): (usize, f64),
    ) {
        let expected = self.verify.seconds(tokens);
        // Of a count that no point is known of, the expectation may be what is off.
        if self.verify.knows(tokens) && verify > 0.0 && verify.is_finite() {
            *pace = follow(*pace, verify / expected, NEW_PACE);
        }
        self.verify.learn(tokens, verify / *pace);
        self.draft.learn(drafting, draft / *pace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_costs_what_its_stair_does() {
        let mut curve = CostCurve::of_stairs(vec![4, 8, 16]);
        for (count, seconds) in [(4, 2.0), (7, 3.0), (13, 5.0)] {
            (0..FIRST).for_each(|_| curve.learn(count, seconds));
        }
        let of = [0, 1, 4, 5, 8, 9, 16].map(|count| curve.seconds(count));
        assert_eq!(of, [0.0, 2.0, 2.0, 3.0, 3.0, 5.0, 5.0]);
        assert_eq!(curve.at(8.2), 3.0, "so little more is cut");
        assert_eq!(curve.seconds(20), 6.0, "beyond the last each costs something");
        assert!(curve.knows(10) && !curve.knows(40));
    }

    /// The drafter finds room for what is likely in any block; of those that are weighed it is known what they lose.
    #[test]
    fn blocks_are_weighed_of_which_it_is_known_what_they_lose() {
        let cost = StepCost { blocks: (3..=10).collect(), ..StepCost::default() };
        let blocks =
            |cost: &StepCost| -> Vec<usize> { cost.rooms().map(|room| room.positions).collect() };
        assert_eq!(blocks(&cost), [3, 4, 5, 6, 8, 10]);
        assert_eq!([1, 2, 6, 8, 20].map(|drafts| cost.room(drafts).positions), [3, 3, 7, 9, 10]);
        assert_eq!(blocks(&StepCost::default()), [Room::ANY.positions]);
    }

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
        assert_eq!(curve.at(80.5), 4.0 + 2.0 * 16.5 / 64.0);
        let least = [32, 127, 128, 4000].map(|count| curve.least(count));
        assert_eq!(least, [4.0, 4.0, 6.0, 12.0].map(Some), "more never takes less");
        assert_eq!(CostCurve::default().least(3), None);
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
        (0..500).for_each(|_| curve.learn(8, 6.0));
        assert!((curve.seconds(8) - 6.0).abs() < 1e-3);
        for (count, seconds) in [(0, 1.0), (8, f64::NAN), (8, 0.0), (8, -1.0)] {
            curve.learn(count, seconds);
        }
        assert!((curve.seconds(8) - 6.0).abs() < 1e-3);
    }

    /// What was interrupted when it was first tried is tried again.
    #[test]
    fn a_wide_pass_that_was_interrupted_once_stays_cheap() {
        let mut curve = CostCurve::measured([(1, 4.0), (4, 5.0)]);
        curve.learn(8, 40.0);
        curve.learn(8, 41.0);
        let slope = 1.0 / 3.0;
        assert_eq!(curve.seconds(8), 5.0 + 4.0 * slope);
        curve.learn(8, 7.0);
        assert_eq!(curve.seconds(8), 7.0);
    }

    /// While the machine was busy wide passes were dear. They are tried again.
    #[test]
    fn what_looks_dear_is_forgotten_in_time() {
        let mut curve = CostCurve::measured([(1, 4.0), (4, 5.0)]);
        (0..FIRST).for_each(|_| curve.learn(8, 20.0));
        (0..OLD).for_each(|_| curve.learn(4, 5.0));
        assert_eq!(curve.seconds(8), 20.0);
        curve.learn(4, 5.0);
        assert_eq!(curve.seconds(8), 5.0 + 4.0 / 3.0);
        // What is no dearer than its neighbours say stays.
        (0..FIRST).for_each(|_| curve.learn(8, 6.0));
        (0..2 * OLD).for_each(|_| curve.learn(4, 5.0));
        assert_eq!(curve.seconds(8), 6.0);
    }

    /// An interruption moves a point a little, however long it was.
    #[test]
    fn an_interruption_is_no_news() {
        let mut curve = CostCurve::measured([(8, 4000.0), (8, 4.0)]);
        assert_eq!(curve.seconds(8), 4.0);
        (0..3).for_each(|_| curve.learn(8, 4000.0));
        assert!(curve.seconds(8) <= 4.0 * (1.0 + 3.0 * FAR * NEW_POINT));
    }

    /// While contexts grow, or the machine is busy, only one count may be seen. The others stay in
    /// proportion, and come out as they were when the pace is back.
    #[test]
    fn a_change_of_pace_leaves_the_shape_alone() {
        let known = |at| CostCurve::measured([at; 50]);
        let mut cost =
            StepCost { verify: known((1, 4.0)), draft: known((1, 3.0)), ..StepCost::default() };
        cost.verify.learn(8, 8.0);
        let (before, mut pace) = (cost.clone(), 1.0);
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.1;
        for slower in [1.5, 1.0] {
            (0..200).for_each(|_| cost.learn(&mut pace, (1, 4.0 * slower), (0, 0.0)));
            assert!(near(pace * cost.verify.seconds(1), 4.0 * slower));
            let of_one = |cost: &StepCost, seconds: f64| seconds / cost.verify.seconds(1);
            assert!(near(of_one(&cost, cost.verify.seconds(8)), 2.0));
            assert!(near(of_one(&cost, cost.draft.seconds(1)), of_one(&before, 3.0)));
        }
    }

    #[test]
    fn less_work_never_takes_longer() {
        let mut curve = CostCurve::measured([(1, 4.0), (8, 90.0), (4, 5.0)]);
        assert_eq!([1, 4, 8].map(|count| curve.seconds(count)), [4.0, 5.0, 90.0]);
        (0..FIRST).for_each(|_| curve.learn(16, 6.0));
        assert_eq!([1, 4, 8, 16].map(|count| curve.seconds(count)), [4.0, 5.0, 6.0, 6.0]);
        (0..1000).for_each(|_| curve.learn(4, 9.0));
        assert_eq!(curve.seconds(4), 6.0, "the next one is not known to be slower");
        for (count, seconds) in [(16, 20.0), (8, 12.0), (4, 9.0)].repeat(1000) {
            curve.learn(count, seconds);
        }
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        assert!(near(curve.seconds(4), 9.0) && near(curve.seconds(16), 20.0));
    }
}
