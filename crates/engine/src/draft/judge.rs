//! How likely a draft is to be accepted, by how sure the drafter is of it. A drafter's own word is
//! good to begin with; what became of earlier drafts corrects it.

use schedule::Chances;

/// Confidences are told apart by this many bins of one size.
const BINS: usize = 16;
/// Share of the past that remains after each block.
const KEEP: f32 = 0.998;
/// Drafts that the drafter's word counts for in a bin.
const WORD: f32 = 4.0;
/// Places of a block that are told apart; those behind them count as the last.
const PLACES: usize = 32;
/// What drafts of a place are taken for before any was made: likely, so that they are made.
const HOPE: f32 = 0.8;
/// Share of a new draft in what is usual at its place.
const NEW: f32 = 0.02;
/// Share by which a place of which no draft was made becomes like those of which there were. Blocks are narrow
/// because little was likely further on; whether that still holds is tried again when a thousand of them have
/// passed.
const FORGET: f32 = 0.0005;

/// Drafts that were verified, and those accepted too, by what was expected of them. Decayed.
#[derive(Clone, Debug)]
struct Bins {
    tried: [f32; BINS],
    accepted: [f32; BINS],
}

impl Bins {
    const NEW: Bins = Bins { tried: [0.0; BINS], accepted: [0.0; BINS] };

    /// Chance of a draft of which so much is expected.
    fn chance(&self, expected: f32) -> f32 {
        let bin = bin(expected);
        (self.accepted[bin] + WORD * expected) / (self.tried[bin] + WORD)
    }

    /// The product of the chances up to each of some drafts.
    fn products(&self, expected: &[f32]) -> impl Iterator<Item = f32> {
        expected.iter().scan(1.0, |product, &expected| {
            *product *= self.chance(expected);
            Some(*product)
        })
    }

    fn decay(&mut self) {
        self.tried.iter_mut().chain(&mut self.accepted).for_each(|count| *count *= KEEP);
    }

    fn learn(&mut self, expected: f32, accepted: bool) {
        let bin = bin(expected);
        self.tried[bin] += 1.0;
        self.accepted[bin] += f32::from(u8::from(accepted));
    }
}

/// What became of the drafts of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    /// Of drafts behind accepted ones, by confidence.
    each: Bins,
    /// Of all drafts, by the product of the chances up to them: when one is accepted against the odds, what follows it
    /// is likelier than it looked.
    whole: Bins,
    /// The chance of a draft at each place when those before it are accepted, as it usually is.
    usual: [f32; PLACES],
}

impl Calibration {
    /// Nothing seen yet.
    pub(crate) const NEW: Calibration =
        Calibration { each: Bins::NEW, whole: Bins::NEW, usual: [HOPE; PLACES] };

    /// Chance of a draft when those before it are accepted.
    fn chance(&self, confidence: f32) -> f32 {
        self.each.chance(confidence)
    }

    /// Takes in what became of a block: how sure the drafter was of all its drafts, how many of them were verified, and
    /// how many of those accepted.
    pub(crate) fn take_in(&mut self, confidences: &[f32], verified: usize, accepted: usize) {
        self.look(confidences);
        self.learn(&confidences[..verified], accepted);
    }

    /// Takes in the drafts of a block, whether they are verified or not.
    fn look(&mut self, confidences: &[f32]) {
        if confidences.is_empty() {
            return;
        }
        let mut mean = 0.0;
        for (place, &confidence) in confidences.iter().enumerate() {
            let chance = self.chance(confidence);
            let usual = &mut self.usual[place.min(PLACES - 1)];
            *usual += NEW * (chance - *usual);
            mean += chance / confidences.len() as f32;
        }
        let further = self.usual.iter_mut().skip(confidences.len());
        further.for_each(|usual| *usual += FORGET * (mean - *usual));
    }

    /// Takes in that the first `accepted` of a block's verified drafts were accepted.
    fn learn(&mut self, confidences: &[f32], accepted: usize) {
        if confidences.is_empty() {
            return;
        }
        self.whole.decay();
        for (place, product) in self.each.products(confidences).enumerate() {
            self.whole.learn(product, place < accepted);
        }
        self.each.decay();
        // What follows a refused draft was not tried.
        for (place, &confidence) in confidences.iter().take(accepted + 1).enumerate() {
            self.each.learn(confidence, place < accepted);
        }
    }
}

fn bin(confidence: f32) -> usize {
    ((confidence * BINS as f32) as usize).min(BINS - 1)
}

/// What drafts of a row are worth.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    calibration: &'a Calibration,
    price: f32,
}

impl<'a> Judge<'a> {
    /// Every draft is worth verifying.
    pub const LENIENT: Judge<'static> = Judge { calibration: &Calibration::NEW, price: 0.0 };

    /// A draft is worth verifying from a chance of `price` on.
    pub(crate) fn new(calibration: &'a Calibration, price: f32) -> Judge<'a> {
        Judge { calibration, price }
    }

    /// Whether some drafts may not be worth verifying.
    pub fn is_strict(&self) -> bool {
        self.price > 0.0
    }

    /// How many drafts of a block, from the first, are worth verifying when the drafter is so sure of
    /// them. More of them make it more only when all are.
    pub fn worth(&self, confidences: &[f32]) -> usize {
        self.chances(confidences).take_while(|&chance| chance >= self.price).count()
    }

    /// How likely the drafts of a block are, of which there would be `most` in the widest: those that were not
    /// made are as usual. Without any made nothing is known.
    pub(crate) fn judged(&self, confidences: &[f32], most: usize) -> Chances {
        let mut chances = Chances::default();
        let made = self.chances(confidences).inspect(|&chance| chances.add(chance));
        let Some(mut chance) = made.last() else { return chances };
        for place in confidences.len()..most {
            chance *= self.calibration.usual[place.min(PLACES - 1)];
            chances.add(chance);
        }
        chances
    }

    /// What a draft has to promise.
    pub(crate) fn price(&self) -> f32 {
        self.price
    }

    /// The chance of each draft, that those before it are accepted included.
    pub(crate) fn chances(&self, confidences: &[f32]) -> impl Iterator<Item = f32> {
        let Calibration { each, whole, .. } = self.calibration;
        each.products(confidences).scan(1.0f32, move |chance, product| {
            // Never likelier than the draft before it.
            *chance = chance.min(whole.chance(product));
            Some(*chance)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drafter_is_believed_until_it_is_known_better() {
        let mut calibration = Calibration::NEW;
        for confidence in [0.0, 0.3, 1.0] {
            assert_eq!(calibration.chance(confidence), confidence);
        }
        // Sure and always wrong; unsure and always right.
        for _ in 0..400 {
            calibration.learn(&[1.0, 1.0], 0);
            calibration.learn(&[0.1], 1);
        }
        assert!(calibration.chance(1.0) < 0.02 && calibration.chance(0.1) > 0.98);
        assert_eq!(calibration.chance(0.5), 0.5, "of what was not seen nothing is known");
    }

    #[test]
    fn what_follows_a_refused_draft_was_not_tried() {
        let mut calibration = Calibration::NEW;
        calibration.learn(&[0.9, 0.5, 0.2], 1);
        assert_eq!(calibration.each.tried[bin(0.9)], 1.0);
        assert_eq!(
            (calibration.each.tried[bin(0.5)], calibration.each.accepted[bin(0.5)]),
            (1.0, 0.0)
        );
        assert_eq!(calibration.each.tried[bin(0.2)], 0.0);
        let before = calibration.clone();
        calibration.learn(&[], 0);
        assert_eq!(calibration.each.tried, before.each.tried, "no draft is no news");
    }

    #[test]
    fn drafts_are_verified_up_to_the_first_that_is_not_worth_it() {
        let calibration = Calibration::NEW;
        let confidences = [0.9, 0.8, 0.5, 1.0, 0.1];
        for (price, worth) in [(0.0, 5), (0.3, 4), (0.4, 2), (0.95, 0)] {
            let judge = Judge::new(&calibration, price);
            assert_eq!(judge.worth(&confidences), worth, "{price}");
        }
        let mut all = Chances::default();
        [0.9, 0.9 * 0.8, 0.36, 0.36, 0.036].iter().for_each(|&chance| all.add(chance));
        assert_eq!(Judge::LENIENT.judged(&confidences, 5), all);
    }

    /// Two drafts that are accepted together or not at all: by itself the second is sure once the first is accepted.
    #[test]
    fn what_goes_together_is_not_taken_for_independent() {
        let mut calibration = Calibration::NEW;
        for block in 0..4000 {
            calibration.learn(&[0.5, 0.5], 2 * (block % 2));
        }
        let apart: Vec<f32> = calibration.each.products(&[0.5, 0.5]).collect();
        assert!(apart[0] > 0.6 && apart[1] < 0.46, "{apart:?}");
        let chances: Vec<f32> = Judge::new(&calibration, 0.0).chances(&[0.5, 0.5]).collect();
        assert!(chances.iter().all(|chance| (chance - 0.5).abs() < 0.02), "{chances:?}");
    }

    /// What a narrow block leaves out is taken for what it usually is, and tried again in time.
    #[test]
    fn drafts_that_were_not_made_are_as_usual() {
        let of = |chances: &[f32]| {
            let mut all = Chances::default();
            chances.iter().for_each(|&chance| all.add(chance));
            all
        };
        let mut calibration = Calibration::NEW;
        assert_eq!(Judge::new(&calibration, 0.0).judged(&[], 4), of(&[]), "no draft is no news");
        assert_eq!(Judge::new(&calibration, 0.0).judged(&[0.9], 3), of(&[0.9, 0.72, 0.576]));
        (0..400).for_each(|_| calibration.look(&[0.9, 0.9, 0.1]));
        let far = of(&[0.9, 0.81, 0.081]);
        assert_eq!(Judge::new(&calibration, 0.0).judged(&[0.9], 3), far);
        (0..200).for_each(|_| calibration.look(&[0.9]));
        assert_eq!(Judge::new(&calibration, 0.0).judged(&[0.9], 3), of(&[0.9, 0.81, 0.14]));
        (0..20_000).for_each(|_| calibration.look(&[0.9]));
        assert_eq!(Judge::new(&calibration, 0.0).judged(&[0.9], 3), of(&[0.9, 0.81, 0.72]));
    }
}
