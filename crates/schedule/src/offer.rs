//! What a step could do: which rows draft, in blocks of which size, and how likely a draft has to be to be
//! verified. Of all that, the most expected tokens for the time.

use crate::chances::{Expected, Level};
use crate::cost::{Room, StepCost};

/// A row whose width is open to judgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its place among the rows.
    pub(crate) row: usize,
    /// The drafts of its next block.
    pub(crate) drafts: Expected,
    /// How many of all of them will be accepted.
    pub(crate) promise: f64,
}

/// What a step does whatever is judged: the tokens that it will commit and those of the verify pass, as
/// expected; the positions that are drafted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) committed: f64,
    pub(crate) verified: f64,
    pub(crate) drafting: usize,
}

/// What a step would do: the first `rows` candidates draft, each in a block with this room, and their drafts
/// of `least` and above are verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) rows: usize,
    pub(crate) room: Room,
    pub(crate) least: Level,
    /// Expected.
    pub(crate) tokens: f64,
    /// Without what the work beside takes by itself.
    pub(crate) seconds: f64,
}

impl Offer {
    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Tokens beyond those that the same time would make at `rate`.
    pub(crate) fn worth(&self, rate: f64) -> f64 {
        self.tokens - rate * self.seconds
    }
}

/// Drafting more than is given or not, both as well as can be.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) better: Offer,
    pub(crate) other: Offer,
    /// Tokens a second of the better one if there were no other work: what time is worth.
    pub(crate) rate: f64,
}

impl Choice {
    /// Chooses between what is `given` only and drafts of some of `candidates`, of which there is one
    /// at least, the most promising first. Drafting has to promise a share of `margin` more. Work
    /// beside has to be done in any case, so its time counts for neither; but what time is worth is
    /// known from steps without.
    pub(crate) fn new(
        cost: &StepCost,
        given: Given,
        beside: usize,
        candidates: &[Candidate],
        margin: f64,
    ) -> Choice {
        let alone = Step { cost, given, beside: 0, candidates };
        let (mut plain, mut drafted) = (alone.plain(), alone.drafted(Offer::rate));
        let mut pays = drafted.rate() >= plain.rate() * (1.0 + margin);
        let rate = if pays { drafted.rate() } else { plain.rate() };
        if beside > 0 {
            let step = Step { beside, ..alone };
            (plain, drafted) = (step.plain(), step.drafted(|offer| offer.worth(rate)));
            let margin = margin * rate * (drafted.seconds - plain.seconds);
            pays = drafted.worth(rate) >= plain.worth(rate) + margin;
        }
        let (better, other) = if pays { (drafted, plain) } else { (plain, drafted) };
        Choice { better, other, rate }
    }
}

#[derive(Clone, Copy)]
struct Step<'s> {
    cost: &'s StepCost,
    given: Given,
    beside: usize,
    candidates: &'s [Candidate],
}

impl Step<'_> {
    /// What is given only.
    fn plain(&self) -> Offer {
        self.offer(0, self.cost.room(0), Level::LEAST, (0.0, 0.0))
    }

    /// The best with drafts, by `value`; of equals the widest: without a cost, more tokens are more.
    /// Rows and level are found in turns for each room, each for the best of the other so far.
    fn drafted(&self, value: impl Fn(&Offer) -> f64) -> Offer {
        let offers = self.cost.rooms().map(|room| {
            let all = self.by_level(self.candidates.len(), room, &value);
            let some = self.by_rows(all.least, room, &value);
            self.by_level(some.rows, room, &value)
        });
        best(offers, &value)
    }

    /// The best for the first `rows` candidates.
    fn by_level(&self, rows: usize, room: Room, value: impl Fn(&Offer) -> f64) -> Offer {
        let mut sum = Expected::default();
        let drafts = self.candidates[..rows].iter().map(|candidate| candidate.drafts);
        drafts.for_each(|drafts| sum.add(&drafts.at_most(room.drafts)));
        let (mut drafts, mut accepted) = (0.0, 0.0);
        let offers = sum.levels().map(|(level, n, chance)| {
            (drafts, accepted) = (drafts + n, accepted + n * chance);
            self.offer(rows, room, level, (drafts, accepted))
        });
        best(offers, value)
    }

    /// The best for drafts of `least` and above.
    fn by_rows(&self, least: Level, room: Room, value: impl Fn(&Offer) -> f64) -> Offer {
        let (mut drafts, mut accepted) = (0.0, 0.0);
        let offers = self.candidates.iter().enumerate().map(|(i, candidate)| {
            let (more, likely) = candidate.drafts.at_most(room.drafts).above(least);
            (drafts, accepted) = (drafts + more, accepted + likely);
            self.offer(i + 1, room, least, (drafts, accepted))
        });
        best(offers, value)
    }

    /// With these candidates, of whose `drafts` so many are verified and `accepted`.
    fn offer(
        &self,
        rows: usize,
        room: Room,
        least: Level,
        (drafts, accepted): (f64, f64),
    ) -> Offer {
        let Step { cost, given, beside, .. } = self;
        let beside = *beside as f64;
        let verify = cost.verify.at(beside + given.verified + drafts) - cost.verify.at(beside);
        let seconds = verify + cost.draft.seconds(given.drafting + rows * room.positions);
        Offer { rows, room, least, tokens: given.committed + accepted, seconds }
    }
}

/// The last of the best; there is one at least.
fn best(offers: impl Iterator<Item = Offer>, value: impl Fn(&Offer) -> f64) -> Offer {
    let better = |a: (f64, Offer), b: (f64, Offer)| if b.0 >= a.0 { b } else { a };
    let valued = offers.map(|offer| (value(&offer), offer));
    valued.reduce(better).expect("there is an offer").1
}
