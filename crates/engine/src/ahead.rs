//! Steps whose drafts nobody waits for: the target verifies what the drafter has promised it, and the host learns
//! what that was together with what the target chose.

use crate::draft::Promise;
use std::collections::HashMap;
use std::time::Duration;

/// As often as this drafts are waited for, so that it stays known how long they take: of a step that waits for
/// nothing in between only the whole is seen, and what is planned depends on both parts.
const AGAIN: usize = 32;

/// Of so many first times the least counts: what is made ready when drafts first come takes long, and is no reason to
/// draft less.
const FIRST: usize = 3;

/// Share of a time that was longer than those before it.
const LONGER: u32 = 8;

/// What is still to come of a step's drafts.
pub(crate) struct Promised {
    pub(crate) promise: Promise,
    /// The planned rows that draft, and what a draft of each has to promise.
    pub(crate) rows: Vec<(usize, f32)>,
    /// How long such drafts take.
    pub(crate) takes: Duration,
}

/// How long drafts took that were waited for, by how many positions were drafted.
#[derive(Default)]
pub(crate) struct Pace(HashMap<usize, Known>);

struct Known {
    takes: Duration,
    /// How often it was seen.
    seen: usize,
    /// How often that was asked since.
    asked: usize,
}

impl Pace {
    /// How long it takes to draft so many positions; none when somebody is to wait for it and see.
    pub(crate) fn takes(&mut self, positions: usize) -> Option<Duration> {
        let known = self.0.get_mut(&positions)?;
        known.asked += 1;
        (known.seen >= FIRST && known.asked < AGAIN).then_some(known.takes)
    }

    /// Somebody waited for so many positions.
    pub(crate) fn learn(&mut self, positions: usize, took: Duration) {
        let known = self.0.entry(positions).or_insert(Known { takes: took, seen: 0, asked: 0 });
        known.asked = 0;
        known.seen += 1;
        let longer = match known.seen {
            ..=FIRST => Duration::ZERO,
            _ => took.saturating_sub(known.takes) / LONGER,
        };
        known.takes = took.min(known.takes + longer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn drafts_are_waited_for_until_it_is_known_how_long_they_take() {
        let mut pace = Pace::default();
        assert_eq!(pace.takes(16), None);
        for times in [9, 3, 4] {
            assert_eq!(pace.takes(16), None, "what is made ready first takes long");
            pace.learn(16, times * MS);
        }
        assert_eq!(pace.takes(8), None, "that is another width");
        for _ in 1..AGAIN {
            assert_eq!(pace.takes(16), Some(3 * MS));
        }
        assert_eq!(pace.takes(16), None, "now and then it is seen again");
        pace.learn(16, 2 * MS);
        assert_eq!(pace.takes(16), Some(2 * MS));
    }

    #[test]
    fn one_long_wait_says_little() {
        let mut pace = Pace::default();
        (0..FIRST).for_each(|_| pace.learn(4, MS));
        pace.learn(4, 9 * MS);
        assert_eq!(pace.takes(4), Some(2 * MS));
        pace.learn(4, MS);
        assert_eq!(pace.takes(4), Some(MS));
    }
}
