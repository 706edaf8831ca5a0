//! How likely drafts are to be accepted. A drafter is sure of some drafts and not of others, so the
//! device judges each as soon as it has it, and verifies those that are worth their price. What it
//! judged comes back with the step, and tells what drafting promises.

/// Levels of chance that are told apart, all of one size.
const LEVELS: usize = 16;
/// Places of a block that are told apart: those of blocks of 4 positions, and what blocks of 5, 6, 8, 12 and
/// more each add. Blocks differ, so what a narrower one would lose is not known from how many drafts are
/// likely on average.
const GROUPS: usize = 6;
/// Drafts in front of each group.
const BEFORE: [usize; GROUPS] = [0, 3, 4, 5, 7, 11];

/// The drafts of one block by their chance of being accepted, that those before it are included, and by
/// their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    levels: [[u8; LEVELS]; GROUPS],
    drafts: u8,
}

impl Chances {
    /// Words that [`Chances::to_words`] gives.
    pub const WORDS: usize = GROUPS * LEVELS / 4;

    /// Whether what blocks of so many drafts lose of wider ones is told apart.
    pub(crate) fn tell_apart(drafts: usize) -> bool {
        BEFORE.contains(&drafts)
    }

    /// Adds the draft of the next place, with this chance, from 0 to 1.
    pub fn add(&mut self, chance: f32) {
        // A chance that is no number counts as none.
        let level = ((chance * LEVELS as f32) as usize).min(LEVELS - 1);
        let group = BEFORE.partition_point(|&before| before <= self.drafts.into()) - 1;
        let count = &mut self.levels[group][level];
        (*count, self.drafts) = (count.saturating_add(1), self.drafts.saturating_add(1));
    }

    /// Whether it has no draft.
    pub fn is_empty(&self) -> bool {
        self.drafts == 0
    }

    /// As words, for a device's results.
    pub fn to_words(self) -> [u32; Chances::WORDS] {
        let (words, _) = self.levels.as_flattened().as_chunks::<4>();
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }

    /// From what [`Chances::to_words`] gave.
    pub fn from_words(words: [u32; Chances::WORDS]) -> Chances {
        let mut chances = Chances::default();
        for (bytes, word) in chances.levels.as_flattened_mut().chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let counts = chances.levels.as_flattened().iter();
        chances.drafts = counts.fold(0, |sum, &count| sum.saturating_add(count));
        chances
    }
}

/// Expected drafts of a block by place and level of chance, the least likely first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Expected([[f32; LEVELS]; GROUPS]);

impl Expected {
    /// When every one of `drafts` drafts is accepted with chance `rate` if those before it are.
    pub(crate) fn of_rate(rate: f32, drafts: usize) -> Expected {
        let mut expected = Expected::default();
        let mut chances = Chances::default();
        (1..=drafts).for_each(|place| chances.add(rate.powi(place as i32)));
        expected.take_in(&chances, 1.0);
        expected
    }

    fn take_in(&mut self, chances: &Chances, keep: f32) {
        let counts = self.0.as_flattened_mut().iter_mut();
        for (known, &new) in counts.zip(chances.levels.as_flattened()) {
            *known = *known * keep + f32::from(new);
        }
    }

    /// The drafts that remain when no block has more than `most`.
    pub(crate) fn at_most(mut self, most: usize) -> Expected {
        for (group, levels) in self.0.iter_mut().enumerate() {
            if BEFORE.get(group + 1).is_some_and(|&all| all <= most) {
                // It never has more.
                continue;
            }
            let mut left = most.saturating_sub(BEFORE[group]) as f32;
            if left == 0.0 {
                *levels = [0.0; LEVELS];
                continue;
            }
            for drafts in levels.iter_mut().rev() {
                *drafts = drafts.min(left);
                left -= *drafts;
            }
        }
        self
    }

    pub(crate) fn add(&mut self, other: &Expected) {
        let counts = self.0.as_flattened_mut().iter_mut();
        counts.zip(other.0.as_flattened()).for_each(|(sum, more)| *sum += more);
    }

    /// Drafts by level alone.
    fn by_level(&self) -> [f32; LEVELS] {
        std::array::from_fn(|level| self.0.iter().map(|levels| levels[level]).sum())
    }

    /// Drafts of each level, the most likely first: how many, and their chance.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (Level, f64, f64)> {
        let levels = self.by_level().into_iter().enumerate().rev();
        levels.map(|(level, drafts)| (Level(level), f64::from(drafts), Level(level).chance()))
    }

    /// Drafts of `least` and above, and how many of them will be accepted.
    pub(crate) fn above(&self, least: Level) -> (f64, f64) {
        let (mut drafts, mut accepted) = (0.0, 0.0);
        for (level, n) in self.by_level().into_iter().enumerate().skip(least.0) {
            drafts += f64::from(n);
            accepted += f64::from(n) * Level(level).chance();
        }
        (drafts, accepted)
    }
}

/// A level of chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level(usize);

impl Level {
    /// Drafts that hardly ever are accepted.
    pub(crate) const LEAST: Level = Level(0);

    /// What its drafts are taken for: its middle, but 0 for the least and 1 for the greatest, so that neither
    /// hopeless nor sure drafts promise something else.
    fn chance(self) -> f64 {
        match self.0 {
            0 => 0.0,
            level if level == LEVELS - 1 => 1.0,
            level => (level as f64 + 0.5) / LEVELS as f64,
        }
    }

    /// The least chance of the level.
    pub(crate) fn floor(self) -> f32 {
        self.0 as f32 / LEVELS as f32
    }
}

/// What the drafts of passed blocks were like, the latest most of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Acceptance {
    /// Decayed sums.
    drafts: Expected,
    passes: f32,
}

impl Acceptance {
    /// Takes in a block; `keep` is the share of the past that remains.
    pub(crate) fn observe(&mut self, chances: &Chances, keep: f32) {
        self.drafts.take_in(chances, keep);
        self.passes = self.passes * keep + 1.0;
    }

    /// Blocks that it knows of, decayed.
    pub(crate) fn passes(&self) -> f32 {
        self.passes
    }

    /// What to expect of the next block; `weight` blocks like `prior` are mixed in.
    pub(crate) fn expected(&self, prior: &Expected, weight: f32) -> Expected {
        let share = 1.0 / (self.passes + weight);
        let mixed = |g: usize, i: usize| (self.drafts.0[g][i] + weight * prior.0[g][i]) * share;
        Expected(std::array::from_fn(|g| std::array::from_fn(|i| mixed(g, i))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_travel_as_words() {
        let mut chances = Chances::default();
        assert!(chances.is_empty());
        for (i, chance) in [0.0, 0.03, 0.5, 0.97, 1.0, 1.0, f32::NAN, -1.0].iter().enumerate() {
            chances.add(*chance);
            let counts = chances.levels.as_flattened().iter();
            assert_eq!(counts.map(|&n| usize::from(n)).sum::<usize>(), i + 1);
        }
        let of = |level: usize| chances.levels.map(|levels| levels[level]);
        let found = (of(0), of(8), of(15));
        assert_eq!(found, ([2, 0, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0]));
        assert_eq!(Chances::from_words(chances.to_words()), chances);
        (0..300).for_each(|_| chances.add(0.5));
        assert_eq!(chances.levels[GROUPS - 1][8], u8::MAX, "and no more");
    }

    #[test]
    fn narrow_blocks_keep_the_likeliest_drafts() {
        let expected = Expected::of_rate(0.8, 4);
        let (drafts, accepted) = expected.above(Level::LEAST);
        assert_eq!(drafts, 4.0);
        // 0.8 + 0.64 + 0.512 + 0.4096; each is known to half of a level.
        assert!((accepted - 2.36).abs() <= 4.0 / 32.0, "{accepted}");
        let (drafts, accepted) = expected.at_most(1).above(Level::LEAST);
        assert_eq!(drafts, 1.0);
        assert!((accepted - 0.8).abs() <= 1.0 / 32.0, "{accepted}");
    }

    /// Of two blocks, one of which is sure throughout, narrower ones lose half of what is behind them, although
    /// no more drafts are likely on average than they have.
    #[test]
    fn narrow_blocks_lose_what_some_would_have_had_behind_them() {
        let (mut own, mut sure, mut hopeless) =
            (Acceptance::default(), Chances::default(), Chances::default());
        (0..15).for_each(|_| sure.add(1.0));
        (0..15).for_each(|_| hopeless.add(0.0));
        [sure, hopeless].iter().for_each(|chances| own.observe(chances, 1.0));
        let expected = own.expected(&Expected::default(), 0.0);
        for block in [4, 5, 6, 8, 12, 16] {
            let (drafts, accepted) = expected.at_most(block - 1).above(Level::LEAST);
            assert_eq!((drafts, accepted), ((block - 1) as f64, (block - 1) as f64 / 2.0));
        }
    }

    #[test]
    fn the_past_fades() {
        let (sure, unsure) = (Expected::of_rate(1.0, 3), Expected::of_rate(0.0, 3));
        let chances = |chance| {
            let mut chances = Chances::default();
            (0..3).for_each(|_| chances.add(chance));
            chances
        };
        let mut own = Acceptance::default();
        assert_eq!(own.expected(&sure, 8.0), sure);
        (0..200).for_each(|_| own.observe(&chances(0.0), 0.9));
        assert!((own.passes() - 10.0).abs() < 1e-3);
        let (_, accepted) = own.expected(&unsure, 1.0).above(Level::LEAST);
        (0..200).for_each(|_| own.observe(&chances(1.0), 0.9));
        let (_, later) = own.expected(&unsure, 0.001).above(Level::LEAST);
        assert!(accepted < 0.1 && later > 2.8, "{accepted} and {later}");
    }
}
