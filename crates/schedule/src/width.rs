//! How wide each row verifies: as wide as pays. The widths of a step are chosen together, to
//! make the most expected tokens per second of the whole step. They decide how fast tokens come,
//! never which.

use crate::cost::StepCost;

/// Share of the past that remains in a request's estimate after each of its verify passes.
const KEEP_OWN: f64 = 0.9;
/// The same of the estimate over all requests.
const KEEP_ALL: f64 = 0.98;
/// Verify passes that the estimate over all requests counts for in one request's own.
const PRIOR: f64 = 3.0;
/// Chance that a draft is accepted after those before it were, before anything is known: high,
/// so that drafting is tried.
const HOPE: f64 = 0.8;
/// Steps between two trials while drafting does not pay; the pause doubles with each trial, until
/// a draft is accepted.
const FIRST_PAUSE: u32 = 32;
const LAST_PAUSE: u32 = 1024;
/// One row in so many takes part in a trial.
const TRIAL_SHARE: usize = 8;
/// Gains are sorted to this many levels; one more is for widths that requests named.
const LEVELS: usize = 256;

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
        for (i, (tried, hit)) in self.tries.iter_mut().enumerate() {
            (*tried, *hit) = (*tried * keep, *hit * keep);
            if i < drafted && i <= accepted {
                *tried += 1.0;
                *hit += f64::from(u8::from(i < accepted));
            }
        }
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

/// Chooses widths and learns from what became of them.
#[derive(Debug)]
pub(crate) struct Widths {
    policy: WidthPolicy,
    all: Acceptance,
    /// Steps that could have drafted since one did.
    undrafted: u32,
    pause: u32,
    trials: usize,
    /// Room for the widenings of a step, kept from step to step: as they come, and sorted.
    found: Vec<Step>,
    sorted: Vec<Step>,
}

/// One more token for a row: its place among the rows, and the chance that it is accepted.
#[derive(Clone, Copy, Debug)]
struct Step {
    gain: f64,
    row: u32,
    level: u32,
}

impl Step {
    fn row(&self) -> usize {
        self.row as usize
    }

    /// The request named it.
    fn named(&self) -> bool {
        self.level as usize == LEVELS
    }

    /// Its bin when the highest level comes first.
    fn bin(&self) -> usize {
        LEVELS - self.level as usize
    }
}

impl Widths {
    pub(crate) fn new(policy: WidthPolicy, max_width: usize) -> Widths {
        let all = Acceptance::new(max_width);
        let (found, sorted) = (Vec::new(), Vec::new());
        Widths { policy, all, undrafted: 0, pause: FIRST_PAUSE, trials: 0, found, sorted }
    }

    /// Takes in a verify pass of a request that looked at `drafted` drafts, at least one.
    pub(crate) fn observe(&mut self, own: &mut Acceptance, accepted: usize, drafted: usize) {
        if accepted > 0 {
            self.pause = FIRST_PAUSE;
        }
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
            cost.verify.learn(tokens, verify);
            cost.draft.learn(drafting, draft);
        }
    }

    /// The width of each row, at least 1, together at most `budget`, which has room for that.
    /// `beside` tokens of other work are in the step too.
    pub(crate) fn choose(
        &mut self,
        wishes: &[Wish<'_>],
        budget: usize,
        beside: usize,
    ) -> Vec<usize> {
        let mut widths = vec![1; wishes.len()];
        self.find(wishes);
        let steps = std::mem::take(&mut self.sorted);
        let within = steps.len().min(budget - wishes.len());
        self.widen(wishes, &steps[..within], beside, &mut widths);
        self.sorted = steps;
        widths
    }

    /// Takes as many of `steps` as pay.
    fn widen(&mut self, wishes: &[Wish<'_>], steps: &[Step], beside: usize, widths: &mut [usize]) {
        let named = steps.iter().take_while(|step| step.named()).count();
        let take = self.worth(wishes, steps, named, beside);
        steps[..take].iter().for_each(|step| widths[step.row()] += 1);
        if take > named {
            self.undrafted = 0;
        } else if named < steps.len() {
            self.try_again(&steps[named..], widths);
        }
    }

    /// Every widening by one token, the most promising first; those that requests named first of
    /// all. Rows take turns within a level, so that a tight budget is shared.
    fn find(&mut self, wishes: &[Wish<'_>]) {
        let mut chances = vec![1.0; wishes.len()];
        let widest = wishes.iter().map(|wish| wish.width).max().unwrap_or(1);
        self.found.clear();
        for i in 0..widest - 1 {
            let prior = self.all.rate(i, HOPE, 1.0);
            let rows = wishes.iter().zip(&mut chances).enumerate();
            for (row, (wish, chance)) in rows.filter(|(_, (wish, _))| wish.width > i + 1) {
                *chance *= wish.acceptance.rate(i, prior, PRIOR);
                let level = match (&self.policy, wish.want) {
                    (WidthPolicy::Adaptive(_), Want::AtMost) => {
                        ((*chance * LEVELS as f64) as usize).min(LEVELS - 1)
                    }
                    _ => LEVELS,
                };
                self.found.push(Step { gain: *chance, row: row as u32, level: level as u32 });
            }
        }
        sort(&self.found, &mut self.sorted);
    }

    /// How many of `steps`, from the first, make the most expected tokens per second. The `named`
    /// first are not open to judgement.
    fn worth(&self, wishes: &[Wish<'_>], steps: &[Step], named: usize, beside: usize) -> usize {
        let WidthPolicy::Adaptive(cost) = &self.policy else { return steps.len() };
        let mut drafts = vec![false; wishes.len()];
        let (mut expected, mut drafting, mut draft) = (wishes.len() as f64, 0, 0.0);
        let (mut best, mut take) = (f64::NEG_INFINITY, named);
        let verify = cost.verify.rising(beside + wishes.len());
        let taken = std::iter::once(None).chain(steps.iter().map(Some)).enumerate();
        for ((taken, step), verify) in taken.zip(verify) {
            if let Some(step) = step {
                expected += step.gain;
                if !std::mem::replace(&mut drafts[step.row()], true) {
                    drafting += 1;
                    draft = cost.draft.seconds(drafting);
                }
            }
            let rate = expected / (verify + draft).max(f64::MIN_POSITIVE);
            // Of equals the widest: without a cost, more tokens are more.
            if taken >= named && rate >= best {
                (best, take) = (rate, taken);
            }
        }
        take
    }

    /// While drafting does not pay, a few of the rows that `steps` could widen draft one token
    /// now and then: the requests, or the load, may have changed.
    fn try_again(&mut self, steps: &[Step], widths: &mut [usize]) {
        self.undrafted += 1;
        if self.undrafted < self.pause {
            return;
        }
        (self.undrafted, self.pause) = (0, (self.pause * 2).min(LAST_PAUSE));
        let mut rows: Vec<usize> = steps.iter().map(Step::row).collect();
        rows.sort_unstable();
        rows.dedup();
        let count = rows.len().div_ceil(TRIAL_SHARE);
        for i in 0..count {
            widths[rows[(self.trials + i) % rows.len()]] = 2;
        }
        self.trials += count;
    }
}

/// Makes `out` `steps` by descending level, otherwise in order. Counting keeps it linear.
fn sort(steps: &[Step], out: &mut Vec<Step>) {
    let mut ends = [0; LEVELS + 1];
    steps.iter().for_each(|step| ends[step.bin()] += 1);
    let mut sum = 0;
    for end in &mut ends {
        (*end, sum) = (sum, sum + *end);
    }
    out.resize(steps.len(), Step { gain: 0.0, row: 0, level: 0 });
    for step in steps {
        let place = &mut ends[step.bin()];
        out[*place] = *step;
        *place += 1;
    }
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
        let draft = CostCurve::measured([(1, 9.0)]);
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

    #[test]
    fn drafting_comes_back_after_it_was_given_up() {
        let (mut widths, mut own) = after(50, 0);
        let mut trials = Vec::new();
        let mut drafted_again = None;
        for step in 0..20_000 {
            let width = widths.choose(&wishes(1, &own), 512, 0)[0];
            // The drafter is useless for 10,000 steps, then perfect.
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
        assert_eq!(trials[..4], [31, 95, 223, 479], "trials grow rarer");
        assert!(trials.len() <= 15, "{} trials in 10,000 steps", trials.len());
        assert!(drafted_again.expect("drafting comes back") < 10_000 + 2 * LAST_PAUSE as usize);
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
