//! Figures of one run. Times are in milliseconds unless a name says seconds; shares are from 0
//! to 1.

use super::play::{Answer, Moment, Played};
use serde::Serialize;
use std::time::Duration;

/// Points of a timeline at most.
const POINTS: usize = 240;
/// Bins of a histogram in each factor of ten.
const BINS: i32 = 10;

/// Nearest-rank percentiles: `p50` is the smallest sample that at least 50 % of the samples do not
/// exceed. Always one of the samples, never between two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) samples: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Percentiles {
    /// `None` without a sample.
    pub(super) fn of(mut samples: Vec<f64>) -> Option<Percentiles> {
        samples.sort_unstable_by(f64::total_cmp);
        let max = *samples.last()?;
        let rank = |percent: usize| samples[(samples.len() * percent).div_ceil(100) - 1];
        Some(Percentiles {
            samples: samples.len(),
            mean: samples.iter().sum::<f64>() / samples.len() as f64,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max,
        })
    }

    fn of_times(times: impl Iterator<Item = Duration>) -> Option<Percentiles> {
        Percentiles::of(times.map(milliseconds).collect())
    }
}

/// Everything that is reported of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// First arrival to last end.
    pub(super) seconds: f64,
    pub(super) requests: usize,
    pub(super) prompt_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) output_tokens_per_second: f64,
    pub(super) requests_per_second: f64,
    /// Arrival to first token.
    pub(super) ttft_ms: Option<Percentiles>,
    /// Between tokens: the time between two updates with tokens, shared evenly by the tokens that
    /// the later one brought; a sample a token.
    pub(super) itl_ms: Option<Percentiles>,
    /// Between two updates with tokens: a sample an update.
    pub(super) update_gap_ms: Option<Percentiles>,
    /// Arrival to end.
    pub(super) end_to_end_ms: Option<Percentiles>,
    /// Arrival to the launch of the first step.
    pub(super) queue_ms: Option<Percentiles>,
    pub(super) drafting: Drafting,
    pub(super) steps: Steps,
    pub(super) cache: Cache,
    pub(super) kv: Kv,
    pub(super) itl_histogram: Vec<Bin>,
    pub(super) timeline: Vec<Point>,
}

/// What drafting did.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Drafting {
    /// Tokens committed a verify pass, the bonus token included.
    pub(super) tau: f64,
    /// Verify passes, a request each.
    pub(super) passes: usize,
    /// Tokens that they committed.
    pub(super) committed: usize,
    /// Drafts that they looked at.
    pub(super) drafted: usize,
    /// `accepted[k]`: passes that accepted exactly `k` drafts.
    pub(super) accepted: Vec<usize>,
    /// `reached[k]`: share of the passes that accepted at least `k + 1` drafts.
    pub(super) reached: Vec<f64>,
}

/// Steps of the engine, and host and device time in them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Steps {
    /// Landed steps.
    pub(super) count: u64,
    /// Between the landings of two steps that followed each other without a pause.
    pub(super) cycle_ms: Option<Percentiles>,
    /// Mean rows of a step: prompt chunks and verify blocks.
    pub(super) rows: f64,
    /// Mean tokens of a step's target pass, as planned.
    pub(super) tokens: f64,
    /// Mean device time of a step's draft pass.
    pub(super) draft_ms: f64,
    /// Mean device time of its verify pass and choice.
    pub(super) verify_ms: f64,
    /// Mean device time of absorbing what was accepted.
    pub(super) absorb_ms: f64,
    /// Mean time that the host waited a step, by place.
    pub(super) blocked_ms: Blocked,
    /// Mean host time for planning and launching a step.
    pub(super) planning_ms: f64,
    /// Mean host time for committing what a landed step found.
    pub(super) committing_ms: f64,
    /// Share of the steps that were still running when the one behind them had been launched.
    pub(super) launched_ahead_share: f64,
    /// Share of the time in which no step ran although a request was open.
    pub(super) device_idle_share: f64,
    /// Share of the time in which the card itself worked on nothing although a request was open; of a
    /// card that times its work.
    pub(super) card_idle_share: Option<f64>,
}

/// Where the host waited.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Blocked {
    /// For the results of a step.
    pub(super) land: f64,
    /// For the step before, in order to plan: with `--fence self` only.
    pub(super) fence: f64,
}

/// What the prefix cache did. The tokens of a retracted request count each time it starts.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cache {
    pub(super) hit_share: f64,
    pub(super) admitted_tokens: u64,
    pub(super) cached_tokens: u64,
    /// Requests sent back to the queue for want of pages.
    pub(super) retractions: u64,
}

/// Share of the KV pages that running requests held, the prefixes they share included.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Kv {
    pub(super) pages: usize,
    pub(super) peak_share: f64,
    /// Over time.
    pub(super) mean_share: f64,
}

/// A bin of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Bin {
    pub(super) from_ms: f64,
    pub(super) to_ms: f64,
    pub(super) tokens: usize,
}

/// A point of a timeline: what held at its end, and the most since the point before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    pub(super) seconds: f64,
    pub(super) waiting: usize,
    pub(super) running: usize,
    pub(super) kv_share: f64,
}

impl Figures {
    pub(super) fn of(played: &Played) -> Figures {
        let answers = &played.answers;
        let seconds = played.wall.as_secs_f64();
        let sum = |of: fn(&Answer) -> usize| answers.iter().map(of).sum::<usize>();
        let output_tokens = sum(|answer| answer.ids.len());
        let gaps = || answers.iter().flat_map(|answer| &answer.gaps);
        let itl: Vec<f64> = gaps().flat_map(|&(gap, tokens)| shared(gap, tokens)).collect();
        let first = |answer: &Answer| answer.first.map(|first| first - answer.arrived);
        Figures {
            seconds,
            requests: answers.len(),
            prompt_tokens: sum(|answer| answer.finished().stats.prompt_tokens),
            output_tokens,
            output_tokens_per_second: ratio(output_tokens as f64, seconds),
            requests_per_second: ratio(answers.len() as f64, seconds),
            ttft_ms: Percentiles::of_times(answers.iter().filter_map(first)),
            itl_histogram: histogram(&itl),
            itl_ms: Percentiles::of(itl),
            update_gap_ms: Percentiles::of_times(gaps().map(|&(gap, _)| gap)),
            end_to_end_ms: Percentiles::of_times(answers.iter().map(|a| a.ended - a.arrived)),
            queue_ms: Percentiles::of_times(answers.iter().map(|answer| answer.queued)),
            drafting: Drafting::of(answers),
            steps: Steps::of(played),
            cache: Cache::of(played),
            kv: Kv::of(&played.moments),
            timeline: timeline(&played.moments),
        }
    }
}

/// `tokens` even parts of a gap.
fn shared(gap: Duration, tokens: usize) -> impl Iterator<Item = f64> {
    std::iter::repeat_n(milliseconds(gap) / tokens as f64, tokens)
}

impl Drafting {
    fn of(answers: &[Answer]) -> Drafting {
        let mut all = Drafting::default();
        for stats in answers.iter().map(|answer| &answer.finished().stats) {
            all.passes += stats.steps;
            all.committed += stats.committed;
            all.drafted += stats.drafted;
            all.accepted.resize(all.accepted.len().max(stats.accepted.len()), 0);
            all.accepted.iter_mut().zip(&stats.accepted).for_each(|(sum, passes)| *sum += passes);
        }
        let passes = all.passes as f64;
        let reach = |k: usize| ratio(all.accepted[k..].iter().sum::<usize>() as f64, passes);
        all.reached = (1..all.accepted.len()).map(reach).collect();
        all.tau = ratio(all.committed as f64, passes);
        all
    }
}

impl Steps {
    fn of(played: &Played) -> Steps {
        let spent = &played.spent;
        let counters = &spent.counters;
        let steps = counters.steps as f64;
        let each = |time: Duration| ratio(milliseconds(time), steps);
        let awake = milliseconds(played.wall.saturating_sub(played.asleep));
        let idle = |busy: Duration| (1.0 - ratio(milliseconds(busy), awake)).clamp(0.0, 1.0);
        Steps {
            count: counters.steps,
            cycle_ms: Percentiles::of_times(played.cycles.iter().copied()),
            rows: ratio(counters.rows as f64, steps),
            tokens: ratio(counters.tokens as f64, steps),
            draft_ms: each(counters.times.draft),
            verify_ms: each(counters.times.verify),
            absorb_ms: each(counters.times.absorb),
            blocked_ms: Blocked { land: each(spent.land.time), fence: each(spent.fence.time) },
            planning_ms: each(counters.planning),
            committing_ms: each(counters.committing),
            launched_ahead_share: ratio(counters.led as f64, steps),
            device_idle_share: idle(spent.counters.times.total()),
            card_idle_share: spent.card.map(idle),
        }
    }
}

impl Cache {
    fn of(played: &Played) -> Cache {
        let tally = &played.spent.tally;
        Cache {
            hit_share: ratio(tally.cached_tokens as f64, tally.admitted_tokens as f64),
            admitted_tokens: tally.admitted_tokens,
            cached_tokens: tally.cached_tokens,
            retractions: tally.retractions,
        }
    }
}

impl Kv {
    fn of(moments: &[Moment]) -> Kv {
        let (mut area, mut before) = (0.0, Duration::ZERO);
        for moment in moments {
            area += kv_share(moment) * (moment.at - before).as_secs_f64();
            before = moment.at;
        }
        Kv {
            pages: moments.first().map_or(0, |moment| moment.pages),
            peak_share: moments.iter().map(kv_share).fold(0.0, f64::max),
            mean_share: ratio(area, before.as_secs_f64()),
        }
    }
}

fn kv_share(moment: &Moment) -> f64 {
    ratio(moment.held as f64, moment.pages as f64)
}

/// Samples by size, in bins of even width on a logarithmic scale, from the first that has any to
/// the last.
fn histogram(samples: &[f64]) -> Vec<Bin> {
    // A microsecond is as short as a time between two updates can be told from none.
    let bin = |sample: f64| (sample.max(1e-3).log10() * f64::from(BINS)).floor() as i32;
    let least = samples.iter().map(|&sample| bin(sample)).min();
    let (Some(least), Some(most)) = (least, samples.iter().map(|&sample| bin(sample)).max()) else {
        return Vec::new();
    };
    let edge = |at: i32| 10f64.powf(f64::from(at) / f64::from(BINS));
    let empty = |at: i32| Bin { from_ms: edge(at), to_ms: edge(at + 1), tokens: 0 };
    let mut bins: Vec<Bin> = (least..=most).map(empty).collect();
    samples.iter().for_each(|&sample| bins[(bin(sample) - least) as usize].tokens += 1);
    bins
}

/// The moments, gathered to few enough points to draw.
fn timeline(moments: &[Moment]) -> Vec<Point> {
    let each = moments.len().div_ceil(POINTS).max(1);
    let gather = |moments: &[Moment]| {
        let most = |of: fn(&Moment) -> usize| moments.iter().map(of).max().unwrap_or(0);
        Point {
            seconds: moments[moments.len() - 1].at.as_secs_f64(),
            waiting: most(|moment| moment.waiting),
            running: most(|moment| moment.running),
            kv_share: moments.iter().map(kv_share).fold(0.0, f64::max),
        }
    };
    moments.chunks(each).map(gather).collect()
}

/// 0 when there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: the smallest sample with at least that share at or below it.
    fn defined(samples: &[f64], percent: usize) -> f64 {
        let below = |sample: f64| samples.iter().filter(|&&other| other <= sample).count();
        let enough = samples.iter().copied().filter(|&s| below(s) * 100 >= percent * samples.len());
        enough.fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        for count in [1, 2, 3, 10, 99, 100, 101, 1000] {
            let samples: Vec<f64> = (0..count).map(|i| f64::from(i * 7919 % 257)).collect();
            let found = Percentiles::of(samples.clone()).expect("there are samples");
            for (percent, value) in [(50, found.p50), (90, found.p90), (99, found.p99)] {
                assert_eq!(value, defined(&samples, percent), "{percent} % of {count}");
            }
        }
        let found = Percentiles::of(vec![4.0, 1.0, 3.0, 2.0]).expect("there are samples");
        assert_eq!((found.p50, found.p90, found.max, found.mean), (2.0, 4.0, 4.0, 2.5));
        assert_eq!(Percentiles::of(vec![]), None);
    }

    #[test]
    fn tokens_of_one_update_share_its_gap() {
        let parts: Vec<f64> = shared(Duration::from_millis(12), 4).collect();
        assert_eq!(parts, [3.0; 4]);
    }

    #[test]
    fn every_sample_is_in_the_bin_that_holds_it() {
        let samples = [0.0, 0.5, 1.0, 1.1, 3.0, 250.0];
        let bins = histogram(&samples);
        assert_eq!(bins.iter().map(|bin| bin.tokens).sum::<usize>(), samples.len());
        for sample in &samples[1..] {
            // An edge belongs to the bin that it begins; rounding may move it by one part in 10¹⁵.
            let holds = |bin: &&Bin| bin.from_ms <= sample * (1.0 + 1e-12) && *sample < bin.to_ms;
            let holder = bins.iter().find(holds).expect("a bin");
            assert!(holder.tokens > 0, "{sample} in {holder:?}");
        }
        assert!(bins.windows(2).all(|pair| pair[0].to_ms == pair[1].from_ms));
        assert_eq!(histogram(&[]), []);
    }

    #[test]
    fn a_long_timeline_keeps_its_peaks() {
        let moment = |i: u64| Moment {
            at: Duration::from_millis(i + 1),
            waiting: usize::from(i == 777) * 9,
            running: 3,
            held: 5,
            pages: 10,
        };
        let moments: Vec<Moment> = (0..1000).map(moment).collect();
        let points = timeline(&moments);
        assert!(points.len() <= POINTS);
        assert_eq!(points.iter().map(|point| point.waiting).max(), Some(9));
        assert_eq!(points.last().expect("points").seconds, 1.0);
        let kv = Kv::of(&moments);
        assert_eq!((kv.pages, kv.peak_share), (10, 0.5));
        assert!((kv.mean_share - 0.5).abs() < 1e-12);
    }
}
