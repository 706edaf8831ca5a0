//! How wide each row verifies: as wide as pays. The widths of a step are chosen together, to
//! make the most expected tokens per second of the whole step. They decide how fast tokens come,
//! never which.

use crate::cost::StepCost;

/// Share of the past that remains in a request's estimate after each of its verify passes.
const KEEP_OWN: f64 = 0.95;
/// The same of the estimate over all requests.
const KEEP_ALL: f64 = 0.98;
/// Verify passes that the estimate over all requests counts for in one request's own. Requests do
/// not differ very much, and of many estimates the best is a lucky one.
const PRIOR: f64 = 8.0;
/// Chance that a draft is accepted after those before it were, before anything is known: high,
/// so that drafting is tried.
const HOPE: f64 = 0.8;
/// Drafting has to promise this share more tokens per second than none: promises are estimates.
const MARGIN: f64 = 0.03;
/// Share of the time that trials of what seems worse may cost by its promise.
const TRIALS: f64 = 0.0025;
/// The same of trials of drafting while few passes are known: a handful says little, and what it
/// says would stand for long.
const EARLY_TRIALS: f64 = 0.2;
/// So many passes, decayed, are enough to judge a drafter by.
const KNOWN: f64 = 24.0;
/// One admitted request in so many may draft although it does not promise anything: otherwise
/// nothing would be learned any more.
const SCOUTS: u64 = 16;
/// How often the drafts of one of the better requests are refused, against all of them. Half, as for
/// one of the best, opened requests that then never drafted, and absorbing cost 3 percent.
const BETTER: f64 = 0.75;
/// Gains are sorted to two to the power of this many levels.
const LEVEL_BITS: u32 = 8;

/// How often drafts were accepted lately: for each place in the block, of the passes where all
/// drafts before it were accepted and it was verified, those where it was accepted too. A narrow
/// block says nothing of the places it did not reach (Kaplan and Meier, 1958).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acceptance {
    /// Decayed counts by draft: verified after an accepted one, and accepted.
    tries: Vec<(f64, f64)>,
}

impl Acceptance {
    /// Nothing seen yet of blocks of up to `max_width` tokens.
    pub(crate) fn new(max_width: usize) -> Acceptance {
        Acceptance { tries: vec![(0.0, 0.0); max_width - 1] }
    }

    /// Takes in a verify pass that accepted `accepted` of `drafted` drafts.
    fn observe(&mut self, accepted: usize, drafted: usize, keep: f64) {
        for (tried, hit) in &mut self.tries {
            (*tried, *hit) = (*tried * keep, *hit * keep);
        }
        self.tries[..drafted.min(accepted + 1)].iter_mut().for_each(|(tried, _)| *tried += 1.0);
        self.tries[..accepted].iter_mut().for_each(|(_, hit)| *hit += 1.0);
    }

    /// Passes that it knows of, decayed.
    fn passes(&self) -> f64 {
        self.tries.first().map_or(0.0, |(tried, _)| *tried)
    }

    /// Chance that draft `i` is accepted when those before it are; `weight` passes of `prior`
    /// are mixed in.
    fn rate(&self, i: usize, prior: f64, weight: f64) -> f64 {
        let (tried, hit) = self.tries[i];
        (hit + weight * prior) / (tried + weight)
    }
}

/// How widths are chosen.
#[derive(Clone, Debug)]
pub enum WidthPolicy {
    /// As asked for, always.
    Fixed,
    /// As wide as pays, up to what is asked for. A request that names its width gets that width.
    Adaptive(StepCost),
}

/// A row that can verify a block.
#[derive(Clone, Debug)]
pub(crate) struct Wish<'a> {
    /// Widest block, the anchor included; at least 1.
    pub(crate) width: usize,
    pub(crate) want: Want,
    pub(crate) acceptance: &'a Acceptance,
}

/// Whether a row's width is open to judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The request named it.
    Exactly,
    /// At most so wide.
    AtMost,
}

/// Whether drafting could pay for a request, with as many others as there are when it is admitted.
/// Where it could not, the drafter need not know the request's tokens, which costs time too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// It could.
    Open,
    /// It could not.
    Closed,
}

/// Chooses widths and learns from what became of them.
#[derive(Debug)]
pub(crate) struct Widths {
    policy: WidthPolicy,
    all: Acceptance,
    /// The device's pace, see cost.rs.
    pace: f64,
    /// Seconds that a trial may cost by now.
    savings: f64,
    /// Requests admitted so far.
    admitted: u64,
    /// Room for the widenings of a step, kept from step to step: `[drafts, rows]`, the gain of
    /// each, or [`NONE`]; and all of them sorted.
    gains: Vec<f32>,
    sorted: Vec<Step>,
}

/// One more token for a row.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The chance that it is accepted.
    gain: f32,
    /// The row's place among the rows.
    row: u32,
    nth: Nth,
}

/// Which draft of its row a token would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nth {
    First,
    Later,
}

/// What a step does whatever is judged: the tokens that it will commit, as expected; the tokens of
/// the verify pass; the rows that draft.
#[derive(Clone, Copy, Debug)]
struct Given {
    expected: f64,
    tokens: usize,
    drafting: usize,
}

impl Widths {
    pub(crate) fn new(policy: WidthPolicy, max_width: usize) -> Widths {
        let all = Acceptance::new(max_width);
        let (gains, sorted) = (Vec::new(), Vec::new());
        Widths { policy, all, pace: 1.0, savings: 0.0, admitted: 0, gains, sorted }
    }

    /// Counts a request for whom a prospect was found.
    pub(crate) fn admitted(&mut self) {
        self.admitted += 1;
    }

    /// What the next request that is admitted may hope for when `rows` requests run, itself
    /// included, with blocks of up to `width`. Requests differ, so it is taken to be one of the
    /// better: refused three quarters as often as is usual.
    pub(crate) fn prospect(&self, rows: usize, width: usize) -> Prospect {
        let WidthPolicy::Adaptive(cost) = &self.policy else { return Prospect::Open };
        if self.admitted.is_multiple_of(SCOUTS) {
            return Prospect::Open;
        }
        let plain = cost.verify.seconds(rows);
        let (mut chance, mut gain) = (1.0, 0.0);
        for drafts in 1..width {
            chance *= 1.0 - (1.0 - self.all.rate(drafts - 1, HOPE, 1.0)) * BETTER;
            gain += chance;
            // The drafts of one row, or of all of them.
            for drafting in [1, rows] {
                let share = 1.0 + gain * drafting as f64 / rows as f64;
                let verify = cost.verify.seconds(rows + drafts * drafting);
                let drafted = verify + cost.draft.seconds(drafting);
                // In doubt it could, also where nothing is known of costs.
                if share * plain * (1.0 + MARGIN) >= drafted {
                    return Prospect::Open;
                }
            }
        }
        Prospect::Closed
    }

    /// Takes in a verify pass of a request that looked at `drafted` drafts, at least one.
    pub(crate) fn observe(&mut self, own: &mut Acceptance, accepted: usize, drafted: usize) {
        own.observe(accepted, drafted, KEEP_OWN);
        self.all.observe(accepted, drafted, KEEP_ALL);
    }

    /// Takes in a verify pass for which the drafter had no proposals although it was asked: for
    /// this request as good as a bad one, and no news about others.
    pub(crate) fn observe_silence(&mut self, own: &mut Acceptance) {
        own.observe(0, 1, KEEP_OWN);
    }

    /// Takes in the seconds of a landed step.
    pub(crate) fn learn(&mut self, tokens: usize, drafting: usize, verify: f64, draft: f64) {
        if let WidthPolicy::Adaptive(cost) = &mut self.policy {
            cost.learn(&mut self.pace, (tokens, verify), (drafting, draft));
        }
    }

    /// The width of each row, at least 1, together at most `budget`, which has room for that.
    /// `beside` tokens of other work are in the step too. Widths that requests named come first.
    pub(crate) fn choose(
        &mut self,
        wishes: &[Wish<'_>],
        budget: usize,
        beside: usize,
    ) -> Vec<usize> {
        let mut widths = vec![1; wishes.len()];
        let left = self.grant(wishes, budget - wishes.len(), &mut widths);
        let WidthPolicy::Adaptive(cost) = &self.policy else { return widths };
        find(&self.all, wishes, &mut self.gains, &mut self.sorted);
        self.sorted.truncate(left);
        if !self.sorted.is_empty() {
            let given = self.given(wishes, &widths);
            let take = self.decide(&Choice::new(cost, given, beside, &self.sorted));
            self.sorted[..take].iter().for_each(|step| widths[step.row as usize] += 1);
        }
        widths
    }

    /// The better offer; now and then the other one, to see whether it still is worse: requests,
    /// load and costs change. Such trials may lose a fixed share of the time, so what is a little
    /// worse is tried often, and what is hopeless seldom.
    fn decide(&mut self, choice: &Choice) -> usize {
        let Choice { better, other, rate } = choice;
        let early = other.take > better.take && self.all.passes() < KNOWN;
        self.savings += better.seconds * if early { EARLY_TRIALS } else { TRIALS };
        let loss = (better.worth(*rate) - other.worth(*rate)) / rate + MARGIN * other.seconds;
        if self.savings > 0.0 && loss <= self.savings {
            self.savings = 0.0;
            return other.take;
        }
        better.take
    }

    /// Widens the rows whose widths are not open to judgement, in turns, by `left` tokens at most.
    /// What is left of them.
    fn grant(&self, wishes: &[Wish<'_>], mut left: usize, widths: &mut [usize]) -> usize {
        let granted = |wish: &Wish<'_>| match self.policy {
            WidthPolicy::Fixed => wish.width,
            WidthPolicy::Adaptive(_) if wish.want == Want::Exactly => wish.width,
            WidthPolicy::Adaptive(_) => 1,
        };
        let widest = wishes.iter().map(granted).max().unwrap_or(1);
        for width in 1..widest {
            for (_, out) in wishes.iter().zip(&mut *widths).filter(|(w, _)| granted(w) > width) {
                if left == 0 {
                    return 0;
                }
                (*out, left) = (width + 1, left - 1);
            }
        }
        left
    }

    /// What `widths`, which were granted, do.
    fn given(&self, wishes: &[Wish<'_>], widths: &[usize]) -> Given {
        let expected = 0.0;
        let mut given = Given { expected, tokens: 0, drafting: 0 };
        for (wish, &width) in wishes.iter().zip(widths) {
            given.tokens += width;
            given.drafting += usize::from(width > 1);
            given.expected += 1.0;
            let mut chance = 1.0;
            for i in 0..width - 1 {
                chance *= wish.acceptance.rate(i, self.all.rate(i, HOPE, 1.0), PRIOR);
                given.expected += chance;
            }
        }
        given
    }
}

/// In the place of a gain: the row may not be so wide.
const NONE: f32 = -1.0;

/// Every widening by one token that is open to judgement, the most promising first. Rows take
/// turns within a level, so that a tight budget is shared. Counting keeps it linear.
fn find(all: &Acceptance, wishes: &[Wish<'_>], gains: &mut Vec<f32>, sorted: &mut Vec<Step>) {
    let judged = || wishes.iter().enumerate().filter(|(_, wish)| wish.want == Want::AtMost);
    let widest = judged().map(|(_, wish)| wish.width).max().unwrap_or(1);
    let priors: Vec<f64> = (0..widest - 1).map(|i| all.rate(i, HOPE, 1.0)).collect();
    gains.clear();
    gains.resize(wishes.len() * priors.len(), NONE);
    let mut ends = [0; (1 << LEVEL_BITS) + 1];
    for (row, wish) in judged() {
        let mut chance = 1.0;
        for (i, &prior) in priors[..wish.width - 1].iter().enumerate() {
            chance *= wish.acceptance.rate(i, prior, PRIOR);
            let gain = chance as f32;
            gains[i * wishes.len() + row] = gain;
            ends[bin(gain)] += 1;
        }
    }
    let mut sum = 0;
    for end in &mut ends {
        (*end, sum) = (sum, sum + *end);
    }
    sorted.resize(sum, Step { gain: NONE, row: 0, nth: Nth::First });
    let mut nth = Nth::First;
    for gains in gains.chunks_exact(wishes.len().max(1)) {
        for (row, &gain) in (0..).zip(gains).filter(|(_, gain)| **gain != NONE) {
            let place = &mut ends[bin(gain)];
            sorted[*place] = Step { gain, row, nth };
            *place += 1;
        }
        nth = Nth::Later;
    }
}

/// The bin of a chance when the highest level comes first. Numbers between 1 and 2 ascend evenly
/// with their bits.
fn bin(chance: f32) -> usize {
    let below = 2f32.to_bits() - (1.0 + chance).to_bits();
    (below >> (f32::MANTISSA_DIGITS - 1 - LEVEL_BITS)) as usize
}

/// What a step would do with the first `take` widenings.
#[derive(Clone, Copy, Debug)]
struct Offer {
    take: usize,
    /// Expected.
    tokens: f64,
    /// Without what the work beside takes by itself.
    seconds: f64,
}

impl Offer {
    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Tokens beyond those that the same time would make at `rate`.
    fn worth(&self, rate: f64) -> f64 {
        self.tokens - rate * self.seconds
    }
}

/// Drafting more than is given or not, both as well as can be.
#[derive(Debug)]
struct Choice {
    better: Offer,
    other: Offer,
    /// Tokens a second of the better one if there were no other work: what time is worth.
    rate: f64,
}

impl Choice {
    /// Chooses between what is `given` only and some of `steps`, of which there is one at least.
    /// Work beside has to be done in any case, so its time counts for neither; but what time is
    /// worth is known from steps without.
    fn new(cost: &StepCost, given: Given, beside: usize, steps: &[Step]) -> Choice {
        let (mut plain, mut drafted) = offers(cost, given, 0, steps, Offer::rate);
        let mut pays = drafted.rate() >= plain.rate() * (1.0 + MARGIN);
        let rate = if pays { drafted.rate() } else { plain.rate() };
        if beside > 0 {
            (plain, drafted) = offers(cost, given, beside, steps, |offer| offer.worth(rate));
            let margin = MARGIN * rate * (drafted.seconds - plain.seconds);
            pays = drafted.worth(rate) >= plain.worth(rate) + margin;
        }
        let (better, other) = if pays { (drafted, plain) } else { (plain, drafted) };
        Choice { better, other, rate }
    }
}

/// What is `given` only, and the best of what takes some of `steps`; of equals the widest: without
/// a cost, more tokens are more.
fn offers(
    cost: &StepCost,
    given: Given,
    beside: usize,
    steps: &[Step],
    by: impl Fn(&Offer) -> f64,
) -> (Offer, Offer) {
    let alone = cost.verify.seconds(beside);
    let mut verify = cost.verify.rising(beside + given.tokens);
    let mut drafts = cost.draft.rising(given.drafting);
    let mut draft = drafts.next();
    let seconds = verify.next() - alone + draft;
    let plain = Offer { take: 0, tokens: given.expected, seconds };
    let (mut offer, mut best, mut most) = (plain, plain, f64::NEG_INFINITY);
    for step in steps {
        if step.nth == Nth::First {
            draft = drafts.next();
        }
        offer.take += 1;
        offer.tokens += f64::from(step.gain);
        offer.seconds = verify.next() - alone + draft;
        let value = by(&offer);
        if value >= most {
            (best, most) = (offer, value);
        }
    }
    (plain, best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostCurve;

    const WIDTH: usize = 8;

    /// Verify and draft passes of an 8B pair on one large GPU, in milliseconds.
    fn gpu() -> WidthPolicy {
        let verify = [(1, 4.1), (16, 4.4), (64, 4.5), (128, 4.6), (256, 6.8), (512, 11.8)];
        let draft = [(1, 0.8), (16, 0.9), (64, 1.4), (256, 4.0)];
        let (verify, draft) = (CostCurve::measured(verify), CostCurve::measured(draft));
        WidthPolicy::Adaptive(StepCost { verify, draft })
    }

    fn wishes(rows: usize, own: &Acceptance) -> Vec<Wish<'_>> {
        (0..rows).map(|_| Wish { width: WIDTH, want: Want::AtMost, acceptance: own }).collect()
    }

    /// A chooser and a request after `passes` verify passes of a drafter that has `accepted`
    /// drafts of each block accepted.
    fn after(passes: usize, accepted: usize) -> (Widths, Acceptance) {
        let (mut widths, mut own) = (Widths::new(gpu(), WIDTH), Acceptance::new(WIDTH));
        (0..passes).for_each(|_| widths.observe(&mut own, accepted, WIDTH - 1));
        (widths, own)
    }

    #[test]
    fn alone_is_wide() {
        let (mut widths, own) = after(0, 0);
        assert_eq!(widths.choose(&wishes(1, &own), 512, 0), [WIDTH]);
        let (mut widths, own) = after(50, 3);
        let width = widths.choose(&wishes(1, &own), 512, 0)[0];
        assert!((4..=5).contains(&width), "3 drafts are accepted each time, but {width} wide");
    }

    #[test]
    fn crowded_is_narrow() {
        let (mut widths, own) = after(50, 1);
        assert_eq!(widths.choose(&wishes(256, &own), 4096, 0), [1; 256]);
    }

    #[test]
    fn a_good_drafter_is_wide_and_a_bad_one_narrow() {
        let (mut widths, own) = after(50, 7);
        assert_eq!(widths.choose(&wishes(4, &own), 512, 0), [WIDTH; 4]);
        let (mut widths, own) = after(50, 0);
        assert_eq!(widths.choose(&wishes(4, &own), 512, 0), [1; 4]);
    }

    #[test]
    fn of_two_requests_the_better_drafted_is_wider() {
        // On two CPU cores, where every token costs.
        let verify = CostCurve::measured([(1, 8.0), (8, 32.0), (16, 60.0)]);
        let draft = CostCurve::measured([(1, 6.0)]);
        let mut widths = Widths::new(WidthPolicy::Adaptive(StepCost { verify, draft }), WIDTH);
        let (mut good, mut bad) = (Acceptance::new(WIDTH), Acceptance::new(WIDTH));
        for _ in 0..50 {
            widths.observe(&mut good, 6, 7);
            widths.observe(&mut bad, 0, 7);
        }
        let wishes: Vec<_> = [&good, &bad].map(|own| wishes(1, own)[0].clone()).to_vec();
        let chosen = widths.choose(&wishes, 512, 0);
        assert!(chosen[0] >= 6 && chosen[1] == 1, "{chosen:?}");
    }

    /// The drafter is useless for 10,000 steps, then perfect.
    #[test]
    fn drafting_comes_back_after_it_was_given_up() {
        let (mut widths, mut own) = after(50, 0);
        let mut trials = Vec::new();
        let mut drafted_again = None;
        for step in 0..20_000 {
            let width = widths.choose(&wishes(1, &own), 512, 0)[0];
            if width > 1 {
                let accepted = if step < 10_000 { 0 } else { width - 1 };
                widths.observe(&mut own, accepted, width - 1);
                trials.extend((step < 10_000).then_some(step));
            }
            if step >= 10_000 && width == WIDTH {
                drafted_again = Some(step);
                break;
            }
        }
        // A draft pass and one more token cost 0.2 of a step, and 0.0025 of the time is for that.
        assert!((75..=125).contains(&trials.len()), "{} trials in 10,000 steps", trials.len());
        assert!(drafted_again.expect("drafting comes back") < 10_000 + 600);
    }

    /// While drafting pays, a step without it now and then keeps its cost known.
    #[test]
    fn plain_steps_are_tried_while_drafting_pays() {
        let (mut widths, own) = after(50, 5);
        let chosen = (0..1000).map(|_| widths.choose(&wishes(1, &own), 512, 0)[0]);
        let plain = chosen.filter(|&width| width == 1).count();
        assert!((2..=20).contains(&plain), "{plain} of 1000 steps");
    }

    /// However many requests run, and whatever a trial costs, trials take a fixed share of the
    /// time.
    #[test]
    fn trials_take_little_of_the_time() {
        for rows in [1, 8, 64, 256] {
            let (mut widths, own) = after(50, 0);
            let WidthPolicy::Adaptive(cost) = gpu() else { panic!("it adapts") };
            let (mut all, mut extra) = (0.0, 0.0);
            for _ in 0..5000 {
                let chosen = widths.choose(&wishes(rows, &own), 4096, 0);
                let drafting = chosen.iter().filter(|&&width| width > 1).count();
                let plain = cost.verify.seconds(rows);
                all += plain;
                extra +=
                    cost.verify.seconds(chosen.iter().sum()) + cost.draft.seconds(drafting) - plain;
            }
            assert!(extra > 0.0 && extra <= all * TRIALS, "{rows} rows: {extra} of {all}");
        }
    }

    /// Drafting that promises a little less than the margin is not taken up.
    #[test]
    fn drafting_has_to_promise_a_clear_gain() {
        for (cost, drafts) in [(0.92, true), (0.96, false)] {
            let verify = CostCurve::measured([(1, 1.0), (WIDTH, 1.0)]);
            let draft = CostCurve::measured([(1, cost)]);
            let policy = WidthPolicy::Adaptive(StepCost { verify, draft });
            let (mut widths, mut own) = (Widths::new(policy, 2), Acceptance::new(2));
            (0..400).for_each(|_| widths.observe(&mut own, 1, 1));
            let wish = Wish { width: 2, want: Want::AtMost, acceptance: &own };
            assert_eq!(widths.choose(&[wish], 512, 0)[0] == 2, drafts, "{cost}");
        }
    }

    /// On a GPU a good drafter pays for many requests at once, a useless one for few.
    #[test]
    fn who_comes_into_a_crowd_does_not_draft() {
        for (accepted, open, closed) in [(2, 32, 512), (0, 4, 128)] {
            let (mut widths, _) = after(400, accepted);
            widths.admitted();
            assert_eq!(widths.prospect(open, WIDTH), Prospect::Open, "{accepted} of {open}");
            assert_eq!(widths.prospect(closed, WIDTH), Prospect::Closed, "{accepted} of {closed}");
            let mut scouts = 0;
            for _ in 0..10 * SCOUTS {
                scouts += u64::from(widths.prospect(closed, WIDTH) == Prospect::Open);
                widths.admitted();
            }
            assert_eq!(scouts, 10);
        }
        let mut unknown = Widths::new(WidthPolicy::Adaptive(StepCost::default()), WIDTH);
        unknown.admitted();
        assert_eq!(unknown.prospect(256, WIDTH), Prospect::Open);
    }

    #[test]
    fn a_tight_budget_is_shared_and_named_widths_come_first() {
        let mut widths = Widths::new(WidthPolicy::Fixed, WIDTH);
        let own = Acceptance::new(WIDTH);
        assert_eq!(widths.choose(&wishes(2, &own), 8, 0), [4, 4]);
        assert_eq!(widths.choose(&wishes(3, &own), 8, 0), [3, 3, 2]);
        let (mut widths, own) = after(50, 0);
        let mut wishes = wishes(3, &own);
        wishes[1].want = Want::Exactly;
        assert_eq!(widths.choose(&wishes, 512, 0), [1, WIDTH, 1]);
    }

    #[test]
    fn narrow_blocks_say_nothing_of_the_places_they_did_not_reach() {
        let mut own = Acceptance::new(4);
        own.observe(1, 1, 1.0);
        own.observe(0, 3, 1.0);
        own.observe(3, 3, 1.0);
        assert_eq!(own.tries, [(3.0, 2.0), (1.0, 1.0), (1.0, 1.0)]);
    }
}
