//! Which rows draft, and how likely a draft has to be to be verified: whatever pays. It is chosen for
//! all rows of a step together, to make the most expected tokens per second of the whole step. It
//! decides how fast tokens come, never which.

use crate::chances::{Acceptance, Chances, Expected, Level};
use crate::cost::StepCost;
use crate::offer::{Candidate, Choice, Given, Offer};

/// Share of the past that remains in a request's estimate after each of its verify passes.
const KEEP_OWN: f32 = 0.95;
/// The same of the estimate over all requests.
const KEEP_ALL: f32 = 0.98;
/// Verify passes that the estimate over all requests counts for in one request's own. Requests do
/// not differ very much, and of many estimates the best is a lucky one.
const PRIOR: f32 = 8.0;
/// Chance that a draft is accepted after those before it were, before anything is known: high,
/// so that drafting is tried.
const HOPE: f32 = 0.8;
/// Drafting has to promise this share more tokens per second than none: promises are estimates.
const MARGIN: f64 = 0.03;
/// Share of the time that trials of what seems worse may cost by its promise.
const TRIALS: f64 = 0.0025;
/// The same of trials of drafting while few passes are known, since a handful says little, and what it says would
/// stand for long; and of trials of none while its cost is not known and might be so low that drafting would not pay.
const EARLY_TRIALS: f64 = 0.2;
/// So many passes, decayed, are enough to judge a drafter by.
const KNOWN: f32 = 24.0;
/// One admitted request in so many may draft although it does not promise anything: otherwise
/// nothing would be learned any more.
const SCOUTS: u64 = 16;
/// How often the drafts of one of the better requests are refused, against all of them. Half, as for
/// one of the best, opened requests that then never drafted, and absorbing cost 3 percent.
const BETTER: f64 = 0.75;

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

/// What a row is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowance {
    /// Widest block, the anchor included; at least 1.
    pub(crate) width: usize,
    /// Least chance of a draft that is verified.
    pub(crate) price: f32,
    /// Drafts that there should be room for.
    pub(crate) likely: usize,
}

impl Allowance {
    /// Whatever is drafted is verified.
    fn exactly(width: usize) -> Allowance {
        Allowance { width, price: 0.0, likely: width - 1 }
    }
}

/// Chooses widths and learns from what became of them.
#[derive(Debug)]
pub(crate) struct Widths {
    policy: WidthPolicy,
    all: Acceptance,
    /// What is expected before anything is known.
    hope: Expected,
    /// The device's pace, see cost.rs.
    pace: f64,
    /// Seconds that a trial may cost by now.
    savings: f64,
    /// Requests admitted so far.
    admitted: u64,
    /// Room for the rows that are judged, kept from step to step.
    candidates: Vec<Candidate>,
}

impl Widths {
    pub(crate) fn new(policy: WidthPolicy, max_width: usize) -> Widths {
        let (all, hope) = (Acceptance::default(), Expected::of_rate(HOPE, max_width - 1));
        Widths { policy, all, hope, pace: 1.0, savings: 0.0, admitted: 0, candidates: Vec::new() }
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
        if self.admitted.is_multiple_of(SCOUTS) || width < 2 {
            return Prospect::Open;
        }
        let plain = cost.verify.seconds(rows);
        let (mut drafts, mut gain) = (0.0, 0.0);
        for (_, n, chance) in self.usual().at_most(width - 1).levels() {
            drafts += n;
            gain += n * (1.0 - (1.0 - chance) * BETTER);
            // The drafts of one row, or of all of them.
            for drafting in [1, rows] {
                let (share, each) = (drafting as f64 / rows as f64, drafting as f64);
                let verify = cost.verify.at(rows as f64 + drafts * each);
                let positions = cost.room(drafts.ceil() as usize).positions;
                let drafted = verify + cost.draft.seconds(drafting * positions);
                // In doubt it could, also where nothing is known of costs.
                if (1.0 + gain * share) * plain * (1.0 + MARGIN) >= drafted {
                    return Prospect::Open;
                }
            }
        }
        Prospect::Closed
    }

    /// What to expect of a request of which nothing is known.
    fn usual(&self) -> Expected {
        self.all.expected(&self.hope, 1.0)
    }

    /// Takes in a block of drafts, one at least.
    pub(crate) fn observe(&mut self, own: &mut Acceptance, chances: &Chances) {
        own.observe(chances, KEEP_OWN);
        self.all.observe(chances, KEEP_ALL);
    }

    /// Takes in a verify pass for which the drafter had no proposals although it was asked: for
    /// this request as good as a bad one, and no news about others.
    pub(crate) fn observe_silence(&mut self, own: &mut Acceptance) {
        own.observe(&Chances::default(), KEEP_OWN);
    }

    /// Takes in the seconds of a landed step, which drafted for rows with room for so many drafts.
    pub(crate) fn learn(
        &mut self,
        tokens: usize,
        rooms: impl Iterator<Item = usize>,
        verify: f64,
        draft: f64,
    ) {
        if let WidthPolicy::Adaptive(cost) = &mut self.policy {
            let positions = rooms.map(|drafts| cost.room(drafts).positions).sum();
            cost.learn(&mut self.pace, (tokens, verify), (positions, draft));
        }
    }

    /// What each row is allowed: widths of at least 1, together at most `budget`, which has room for
    /// that. `beside` tokens of other work are in the step too. Widths that requests named come first.
    pub(crate) fn choose(
        &mut self,
        wishes: &[Wish<'_>],
        budget: usize,
        beside: usize,
    ) -> Vec<Allowance> {
        let mut allowed = vec![Allowance::exactly(1); wishes.len()];
        let left = self.grant(wishes, budget - wishes.len(), &mut allowed);
        let WidthPolicy::Adaptive(_) = &self.policy else { return allowed };
        self.find(wishes, left);
        if !self.candidates.is_empty() {
            let offer = self.decide(self.given(wishes, &allowed), beside);
            self.hand_out(wishes, &offer, left, &mut allowed);
        }
        allowed
    }

    /// Finds the rows that are open to judgement, at most `left`, the most promising first. None gets
    /// more than its share of `left`, so nothing beyond that is expected of it.
    fn find(&mut self, wishes: &[Wish<'_>], left: usize) {
        let judged = |wish: &Wish<'_>| wish.want == Want::AtMost && wish.width > 1;
        let share = left / wishes.iter().filter(|wish| judged(wish)).count().max(1);
        let usual = self.usual();
        self.candidates.clear();
        for (row, wish) in wishes.iter().enumerate().filter(|(_, wish)| judged(wish)) {
            let most = (wish.width - 1).min(share.max(1));
            let drafts = wish.acceptance.expected(&usual, PRIOR).at_most(most);
            let (_, promise) = drafts.above(Level::LEAST);
            self.candidates.push(Candidate { row, drafts, promise });
        }
        self.candidates.sort_unstable_by(|a, b| b.promise.total_cmp(&a.promise));
        self.candidates.truncate(left);
    }

    /// The better offer; now and then the other one, to see whether it still is worse: requests,
    /// load and costs change. Such trials may lose a fixed share of the time, so what is a little
    /// worse is tried often, and what is hopeless seldom.
    fn decide(&mut self, given: Given, beside: usize) -> Offer {
        let WidthPolicy::Adaptive(cost) = &self.policy else { panic!("only what adapts decides") };
        let Choice { better, other, rate } =
            Choice::new(cost, given, beside, &self.candidates, MARGIN);
        let early = if other.rows > better.rows {
            self.all.passes() < KNOWN
        } else {
            let least = cost.verify.least(given.verified.round() as usize);
            beside == 0 && least.is_some_and(|least| other.tokens > rate * least)
        };
        self.savings += better.seconds * if early { EARLY_TRIALS } else { TRIALS };
        let loss = (better.worth(rate) - other.worth(rate)) / rate + MARGIN * other.seconds;
        if self.savings > 0.0 && loss <= self.savings {
            self.savings = 0.0;
            return other;
        }
        better
    }

    /// Gives the rows of `offer` what they may verify at most: as much as they wish, together `left`
    /// tokens at most, in turns.
    fn hand_out(&self, wishes: &[Wish<'_>], offer: &Offer, left: usize, allowed: &mut [Allowance]) {
        let rows = &self.candidates[..offer.rows];
        let mut wished: Vec<usize> = rows.iter().map(|c| wishes[c.row].width - 1).collect();
        share_out(&mut wished, left);
        for (candidate, drafts) in rows.iter().zip(wished) {
            let (width, price) = (1 + drafts, offer.least.floor());
            let likely = offer.room.drafts.min(drafts);
            allowed[candidate.row] = Allowance { width, price, likely };
        }
    }

    /// Widens the rows whose widths are not open to judgement, in turns, by `left` tokens at most.
    /// What is left of them.
    fn grant(&self, wishes: &[Wish<'_>], left: usize, allowed: &mut [Allowance]) -> usize {
        let granted = |wish: &Wish<'_>| match self.policy {
            WidthPolicy::Fixed => wish.width - 1,
            WidthPolicy::Adaptive(_) if wish.want == Want::Exactly => wish.width - 1,
            WidthPolicy::Adaptive(_) => 0,
        };
        let mut wished: Vec<usize> = wishes.iter().map(granted).collect();
        let left = share_out(&mut wished, left);
        for (allowed, drafts) in allowed.iter_mut().zip(wished) {
            *allowed = Allowance::exactly(1 + drafts);
        }
        left
    }

    /// What `allowed`, which was granted, does.
    fn given(&self, wishes: &[Wish<'_>], allowed: &[Allowance]) -> Given {
        let WidthPolicy::Adaptive(cost) = &self.policy else {
            panic!("only what adapts is judged")
        };
        let (usual, mut given) = (self.usual(), Given::default());
        for (wish, allowance) in wishes.iter().zip(allowed) {
            let drafts = allowance.width - 1;
            (given.verified, given.committed) = (given.verified + 1.0, given.committed + 1.0);
            if drafts > 0 {
                let expected = wish.acceptance.expected(&usual, PRIOR).at_most(drafts);
                let (verified, accepted) = expected.above(Level::LEAST);
                given.verified += verified;
                given.committed += accepted;
                given.drafting += cost.room(drafts).positions;
            }
        }
        given
    }
}

/// Cuts `wished` to `left` in all: everybody gets one before anybody gets two. What is left.
fn share_out(wished: &mut [usize], mut left: usize) -> usize {
    let all: usize = wished.iter().sum();
    if all <= left {
        return left - all;
    }
    let mut got = vec![0; wished.len()];
    while left > 0 {
        for (got, _) in got.iter_mut().zip(&*wished).filter(|(got, wished)| **got < **wished) {
            if left > 0 {
                (*got, left) = (*got + 1, left - 1);
            }
        }
    }
    wished.copy_from_slice(&got);
    0
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
        WidthPolicy::Adaptive(StepCost { verify, draft, ..StepCost::default() })
    }

    fn wishes(rows: usize, own: &Acceptance) -> Vec<Wish<'_>> {
        (0..rows).map(|_| Wish { width: WIDTH, want: Want::AtMost, acceptance: own }).collect()
    }

    /// A block of `of` drafts, the first `sure` of which are accepted without doubt, and the others
    /// never.
    fn block(sure: usize, of: usize) -> Chances {
        let mut chances = Chances::default();
        (0..of).for_each(|i| chances.add(if i < sure { 1.0 } else { 0.0 }));
        chances
    }

    /// A chooser and a request after `passes` verify passes of a drafter that has `sure` drafts of
    /// each block accepted.
    fn after(passes: usize, sure: usize) -> (Widths, Acceptance) {
        let (mut widths, mut own) = (Widths::new(gpu(), WIDTH), Acceptance::default());
        (0..passes).for_each(|_| widths.observe(&mut own, &block(sure, WIDTH - 1)));
        (widths, own)
    }

    fn widths_of(allowed: &[Allowance]) -> Vec<usize> {
        allowed.iter().map(|allowance| allowance.width).collect()
    }

    #[test]
    fn alone_is_wide() {
        let (mut widths, own) = after(0, 0);
        assert_eq!(widths_of(&widths.choose(&wishes(1, &own), 512, 0)), [WIDTH]);
        let (mut widths, own) = after(100, 3);
        let Allowance { width, price, .. } = widths.choose(&wishes(1, &own), 512, 0)[0];
        assert_eq!(width, WIDTH, "what is unlikely costs nothing until it is verified");
        assert!(price > 0.0 && price < 0.9, "three drafts are sure, the others hopeless: {price}");
    }

    /// The price of a draft is what its time is worth.
    #[test]
    fn the_price_rises_with_what_a_token_costs() {
        let mut own = Acceptance::default();
        let mut spread = Chances::default();
        (0..WIDTH - 1).for_each(|i| spread.add(1.0 - (i as f32 + 0.5) / (WIDTH - 1) as f32));
        let prices = [0.01, 0.2, 0.5].map(|token| {
            let verify = CostCurve::measured([(1, 1.0), (WIDTH, 1.0 + token * (WIDTH - 1) as f64)]);
            let draft = CostCurve::measured([(1, 0.2)]);
            let policy = WidthPolicy::Adaptive(StepCost { verify, draft, ..StepCost::default() });
            let mut widths = Widths::new(policy, WIDTH);
            (0..200).for_each(|_| widths.observe(&mut own, &spread));
            widths.choose(&wishes(1, &own), 512, 0)[0].price
        });
        assert!(prices[0] < 0.1 && prices[1] > 0.2 && prices[2] > prices[1], "{prices:?}");
    }

    #[test]
    fn crowded_is_narrow() {
        let (mut widths, own) = after(50, 0);
        let allowed = widths.choose(&wishes(256, &own), 4096, 0);
        assert_eq!(widths_of(&allowed), [1; 256]);
    }

    #[test]
    fn a_good_drafter_is_wide_and_a_bad_one_narrow() {
        let (mut widths, own) = after(50, 7);
        assert_eq!(widths_of(&widths.choose(&wishes(4, &own), 512, 0)), [WIDTH; 4]);
        let (mut widths, own) = after(50, 0);
        assert_eq!(widths_of(&widths.choose(&wishes(4, &own), 512, 0)), [1; 4]);
    }

    #[test]
    fn of_two_requests_the_better_drafted_drafts() {
        // On two CPU cores, where every token costs.
        let verify = CostCurve::measured([(1, 8.0), (2, 11.4), (8, 32.0), (16, 60.0)]);
        let draft = CostCurve::measured([(1, 6.0), (2, 12.0)]);
        let mut widths = Widths::new(
            WidthPolicy::Adaptive(StepCost { verify, draft, ..StepCost::default() }),
            WIDTH,
        );
        let (mut good, mut bad) = (Acceptance::default(), Acceptance::default());
        for _ in 0..50 {
            widths.observe(&mut good, &block(6, 7));
            widths.observe(&mut bad, &block(0, 7));
        }
        let wishes: Vec<_> = [&good, &bad].map(|own| wishes(1, own)[0].clone()).to_vec();
        assert_eq!(widths_of(&widths.choose(&wishes, 512, 0)), [WIDTH, 1]);
    }

    /// Eight rows might cost less than the line from four to sixty says, so little that drafting would not pay.
    #[test]
    fn plain_decoding_is_tried_where_its_cost_is_a_guess() {
        let known = [(1, 4.0), (4, 4.4), (60, 37.0)];
        let chosen = |also: Option<(usize, f64)>| {
            let verify = CostCurve::measured(known.into_iter().chain(also));
            let draft = CostCurve::measured([(8, 12.0)]);
            let cost = StepCost { verify, draft, ..StepCost::default() };
            let mut widths = Widths::new(WidthPolicy::Adaptive(cost), WIDTH);
            let mut own = Acceptance::default();
            (0..50).for_each(|_| widths.observe(&mut own, &block(WIDTH - 1, WIDTH - 1)));
            widths_of(&widths.choose(&wishes(8, &own), 512, 0))
        };
        assert_eq!(chosen(None), [1; 8]);
        assert_eq!(chosen(Some((8, 6.7))), [WIDTH; 8], "it costs what it was taken for");
    }

    /// The drafter is useless for 10,000 steps, then perfect.
    #[test]
    fn drafting_comes_back_after_it_was_given_up() {
        let (mut widths, mut own) = after(50, 0);
        let mut trials = Vec::new();
        let mut drafted_again = None;
        let mut drafted = 0;
        for step in 0..20_000 {
            let width = widths.choose(&wishes(1, &own), 512, 0)[0].width;
            drafted = if width > 1 { drafted + 1 } else { 0 };
            if width > 1 {
                let sure = if step < 10_000 { 0 } else { width - 1 };
                widths.observe(&mut own, &block(sure, width - 1));
                trials.extend((step < 10_000).then_some(step));
            }
            if step >= 10_000 && drafted == 10 {
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
        let chosen = (0..1000).map(|_| widths.choose(&wishes(1, &own), 512, 0)[0].width);
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
            let expected = own.expected(&widths.usual(), PRIOR);
            let (mut all, mut extra) = (0.0, 0.0);
            for _ in 0..5000 {
                let chosen = widths.choose(&wishes(rows, &own), 4096, 0);
                let drafting = chosen.iter().filter(|allowed| allowed.width > 1);
                let of_price = |allowed: &Allowance| {
                    let worth = expected.levels().filter(|(l, ..)| l.floor() >= allowed.price);
                    worth.map(|(_, n, _)| n).sum::<f64>()
                };
                let drafts: f64 = drafting.clone().map(of_price).sum();
                let plain = cost.verify.seconds(rows);
                all += plain;
                let verify = cost.verify.at(rows as f64 + drafts);
                extra += verify + cost.draft.seconds(drafting.count()) - plain;
            }
            assert!(extra > 0.0 && extra <= all * TRIALS, "{rows} rows: {extra} of {all}");
        }
    }

    /// Drafting that promises a little less than the margin is not taken up.
    #[test]
    fn drafting_has_to_promise_a_clear_gain() {
        for (cost, drafts) in [(0.90, true), (0.96, false)] {
            let verify = CostCurve::measured([(1, 1.0), (WIDTH, 1.0)]);
            let draft = CostCurve::measured([(1, cost)]);
            let policy = WidthPolicy::Adaptive(StepCost { verify, draft, ..StepCost::default() });
            let (mut widths, mut own) = (Widths::new(policy, 2), Acceptance::default());
            (0..400).for_each(|_| widths.observe(&mut own, &block(1, 1)));
            let wish = Wish { width: 2, want: Want::AtMost, acceptance: &own };
            assert_eq!(widths.choose(&[wish], 512, 0)[0].width == 2, drafts, "{cost}");
        }
    }

    /// Three drafts are sure and four hardly ever right: how many positions are drafted is a matter of their cost.
    #[test]
    fn blocks_are_worth_what_their_positions_cost() {
        let (mut own, mut some) = (Acceptance::default(), Chances::default());
        [1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1].iter().for_each(|&chance| some.add(chance));
        let likely = [0.001, 0.2, 2.0].map(|position| {
            let verify = CostCurve::measured([(1, 1.0), (WIDTH, 1.0)]);
            let draft = CostCurve::measured([2, 8].map(|count| (count, position * count as f64)));
            let cost = StepCost { verify, draft, blocks: vec![2, 4, 8] };
            let mut widths = Widths::new(WidthPolicy::Adaptive(cost), WIDTH);
            (0..200).for_each(|_| widths.observe(&mut own, &some));
            widths.choose(&wishes(1, &own), 512, 0)[0].likely
        });
        assert_eq!(likely, [7, 3, 0], "the widest, the one for the sure ones, none");
    }

    /// On a GPU a good drafter pays for many requests at once, a useless one for few.
    #[test]
    fn who_comes_into_a_crowd_does_not_draft() {
        for (sure, open, closed) in [(2, 32, 512), (0, 4, 128)] {
            let (mut widths, _) = after(400, sure);
            widths.admitted();
            assert_eq!(widths.prospect(open, WIDTH), Prospect::Open, "{sure} of {open}");
            assert_eq!(widths.prospect(closed, WIDTH), Prospect::Closed, "{sure} of {closed}");
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
        let own = Acceptance::default();
        assert_eq!(widths_of(&widths.choose(&wishes(2, &own), 8, 0)), [4, 4]);
        assert_eq!(widths_of(&widths.choose(&wishes(3, &own), 8, 0)), [3, 3, 2]);
        let (mut widths, own) = after(50, 7);
        assert_eq!(widths_of(&widths.choose(&wishes(3, &own), 8, 0)), [3, 3, 2]);
        let (mut widths, own) = after(50, 0);
        let mut wishes = wishes(3, &own);
        wishes[1].want = Want::Exactly;
        let allowed = widths.choose(&wishes, 512, 0);
        assert_eq!(widths_of(&allowed), [1, WIDTH, 1]);
        assert_eq!(allowed[1].price, 0.0, "who names a width has all of it verified");
    }
}
