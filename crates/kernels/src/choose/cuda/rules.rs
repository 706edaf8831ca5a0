//! What is done to the logits of rows that choose on a card, and the filters of their draws, as the words that
//! the card reads.

use crate::choose::{Draw, Penalties, Shape};
use crate::cuda::count;
use device::cuda::CudaSlice;

/// Words of a row's rule: filters, penalties, and where its lists are.
pub const RULE_WORDS: usize = 13;
/// In place of a mask: all may be chosen.
const NONE: u32 = u32::MAX;

/// The rules of a launch and what they name, as [`Written`] has them.
#[derive(Clone, Copy)]
pub struct Rules<'j> {
    /// [`RULE_WORDS`] of each row of the product.
    pub rows: CudaSlice<'j, u32>,
    /// Tokens that came before and their counts in the output, in pairs.
    pub seen: CudaSlice<'j, u32>,
    /// Tokens and what is added to their logits, in pairs.
    pub additions: CudaSlice<'j, u32>,
    /// `[masks, ids / 32 rounded up]`, bits as [`Shape::allowed`].
    pub masks: CudaSlice<'j, u32>,
}

impl<'j> Rules<'j> {
    /// Rules for so many rows and what they name, from the words of [`Written::words`]. `tile` are the rows of
    /// the launch.
    ///
    /// # Panics
    /// When there are fewer words.
    pub fn of(
        words: CudaSlice<'j, u32>,
        (rows, tile): (usize, std::ops::Range<usize>),
        lists: Lists,
    ) -> Rules<'j> {
        let seen = rows * RULE_WORDS;
        let additions = seen + lists.seen;
        let masks = additions + lists.additions;
        Rules {
            rows: words.range(tile.start * RULE_WORDS..tile.end * RULE_WORDS),
            seen: words.range(seen..additions),
            additions: words.range(additions..masks),
            masks: words.range(masks..masks + lists.masks),
        }
    }
}

/// Words of the lists behind the rules of some rows. The default is that of rows that have filters alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lists {
    seen: usize,
    additions: usize,
    masks: usize,
}

/// A list of pairs: the first pair, and how many.
type Span = (u32, u32);

/// The rules of some rows, to be copied to a card. Rows that follow one another share the lists that they have
/// in common, as those of a block do.
pub struct Written<'s> {
    /// Ids of a row.
    ids: usize,
    rows: Vec<u32>,
    seen: Vec<u32>,
    additions: Vec<u32>,
    masks: Vec<u32>,
    /// The shape that was written last, and where it has what came before, and its additions.
    last: (Shape<'s>, Span, Span),
}

impl<'s> Written<'s> {
    /// No rules yet, for rows that choose among the ids below `ids`.
    pub fn new(ids: usize) -> Written<'s> {
        Written {
            ids,
            rows: Vec::new(),
            seen: Vec::new(),
            additions: Vec::new(),
            masks: Vec::new(),
            last: (Shape::default(), (0, 0), (0, 0)),
        }
    }

    /// Words that a row of such a shape takes at most.
    pub fn most(&self, shape: &Shape<'_>) -> usize {
        let tokens =
            |penalties: Penalties<'_>| penalties.counts.all().len() + penalties.after.len();
        let pairs = shape.penalties.map_or(0, tokens) + shape.additions.len();
        RULE_WORDS + 2 * pairs + shape.allowed.map_or(0, |_| self.ids.div_ceil(32))
    }

    /// Writes the rule of a row.
    pub fn push(&mut self, draw: &Draw, shape: &Shape<'s>) {
        let (last, mut before, mut additions) = self.last;
        let mut after = (0, 0);
        let (mut repetition, mut frequency, mut presence) = (1.0, 0.0, 0.0);
        if let Some(own) = shape.penalties {
            (repetition, frequency, presence) = (own.repetition, own.frequency, own.presence);
            if !last.penalties.is_some_and(|last| std::ptr::eq(last.counts, own.counts)) {
                before = list(&mut self.seen, own.counts.all().iter().copied());
            }
            let counts = |&token: &u32| {
                let more = own.after.iter().filter(|&&other| other == token).count() as u32;
                (token, own.counts.of(token).unwrap_or(0) + more)
            };
            after = list(&mut self.seen, own.after.iter().map(counts));
        } else {
            before = (0, 0);
        }
        if shape.additions.is_empty() {
            additions = (0, 0);
        } else if !std::ptr::eq(last.additions, shape.additions) {
            let bits = |&(token, more): &(u32, f32)| (token, more.to_bits());
            additions = list(&mut self.additions, shape.additions.iter().map(bits));
        }
        let mask = shape.allowed.map_or(NONE, |mask| self.mask(mask));
        self.rows.extend([draw.top_k, draw.top_p.to_bits(), draw.min_p.to_bits()]);
        self.rows.extend([repetition, frequency, presence].map(f32::to_bits));
        self.rows.extend([before.0, before.1, after.0, after.1, additions.0, additions.1, mask]);
        self.last = (*shape, before, additions);
    }

    /// Writes a mask, with the words that are missing; which one it is.
    fn mask(&mut self, mask: &[u32]) -> u32 {
        let words = self.ids.div_ceil(32);
        let which = self.masks.len() / words;
        self.masks.extend(mask.iter().copied().chain(std::iter::repeat(0)).take(words));
        count(which)
    }

    /// How many words its lists have.
    pub fn lists(&self) -> Lists {
        let [seen, additions, masks] = [&self.seen, &self.additions, &self.masks].map(Vec::len);
        Lists { seen, additions, masks }
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        let Lists { seen, additions, masks } = self.lists();
        self.rows.len() + seen + additions + masks
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rules of all rows, then their lists.
    pub fn words(&self) -> Vec<u32> {
        [&self.rows[..], &self.seen, &self.additions, &self.masks].concat()
    }
}

/// Appends a list of pairs; where it is.
fn list(to: &mut Vec<u32>, pairs: impl Iterator<Item = (u32, u32)>) -> Span {
    let first = to.len() / 2;
    to.extend(pairs.flat_map(|(token, word)| [token, word]));
    (count(first), count(to.len() / 2 - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Counts;

    const DRAW: Draw =
        Draw { temperature: 1.0, top_k: 3, top_p: 0.5, min_p: 0.25, seed: 0, position: 0 };

    #[test]
    fn a_block_shares_what_it_has_in_common() {
        let counts = Counts::new(&[4, 9], &[9, 9]);
        let penalties = Penalties {
            repetition: 1.5,
            frequency: 0.5,
            presence: 2.0,
            counts: &counts,
            after: &[],
        };
        let additions = [(7, -1.0), (70, f32::NEG_INFINITY)];
        let first =
            Shape { penalties: Some(penalties), additions: &additions, allowed: Some(&[5]) };
        let after = [9, 3, 9];
        let penalties = Some(Penalties { after: &after, ..penalties });
        let second = Shape { penalties, allowed: None, ..first };
        let mut written = Written::new(40);
        let most = written.most(&first) + written.most(&second);
        written.push(&DRAW, &first);
        written.push(&DRAW, &second);
        let [half, quarter, much, two, less] = [0.5f32, 0.25, 1.5, 2.0, -1.0].map(f32::to_bits);
        let filters = [3, half, quarter, much, half, two];
        let want = [
            &filters[..],
            &[0, 2, 2, 0, 0, 2, 0],
            &filters,
            &[0, 2, 2, 3, 0, 2, NONE],
            &[4, 0, 9, 2],
            &[9, 4, 3, 1, 9, 4],
            &[7, less, 70, f32::NEG_INFINITY.to_bits()],
            &[5, 0],
        ];
        assert_eq!(written.words(), want.concat());
        assert_eq!(written.lists(), Lists { seen: 10, additions: 4, masks: 2 });
        assert!(written.len() == written.words().len() && written.len() <= most);
        written.push(&DRAW, &Shape::default());
        let plain = &written.words()[2 * RULE_WORDS..3 * RULE_WORDS];
        let one = 1f32.to_bits();
        assert_eq!(plain, [3, half, quarter, one, 0, 0, 0, 0, 0, 0, 0, 0, NONE]);
    }
}
