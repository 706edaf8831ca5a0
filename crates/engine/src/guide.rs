//! What the forward lane keeps of requests whose text is constrained: how far each text is, and
//! which tokens may come next. Rows without a constraint have nothing here.

use crate::holders::Holders;
use schedule::{ConstrainedRequest, End, Matcher, PlannedRow, RowEnd, Then, Work};

/// Tokens that may be chosen: bit `t % 32` of word `t / 32`.
pub(crate) type Mask = Vec<u32>;

/// What became of a planned row's drafts.
pub(crate) struct Followed {
    /// What each row that chooses may choose; none when it may choose anything, when none chooses,
    /// and when the text has come to its end.
    pub(crate) masks: Vec<Mask>,
    /// Drafts that are left, and one that was refused.
    pub(crate) looked_at: usize,
}

/// One text, up to and with the last token that was chosen for it.
pub(crate) struct Guide {
    matcher: Box<dyn Matcher>,
    stops: Vec<u32>,
    /// What may be chosen next.
    next: Mask,
    end: Option<RowEnd>,
}

impl Guide {
    /// Of a request whose known tokens end here, over a vocabulary of `vocab` tokens.
    pub(crate) fn new(told: &ConstrainedRequest, vocab: usize) -> Guide {
        let matcher = told.constraint.0.matcher();
        let stops = told.stops.iter().copied().filter(|&id| (id as usize) < vocab).collect();
        let next = vec![0; vocab.div_ceil(32)];
        let mut guide = Guide { matcher, stops, next, end: None };
        guide.take_all(&told.output);
        guide
    }

    /// Why no token can follow, when none can.
    pub(crate) fn end(&self) -> Option<RowEnd> {
        self.end
    }

    /// What may be chosen next, unless the text has come to its end.
    pub(crate) fn next(&self) -> Option<&[u32]> {
        self.end.is_none().then_some(&self.next)
    }

    /// Cuts `drafts` before the first that may not be chosen, or that the text ends with: the row
    /// before it finds that end itself. Returns what may be chosen after the last token and after
    /// each draft that is left.
    fn follow(&mut self, drafts: &mut Vec<u32>) -> Vec<Mask> {
        let mut masks = vec![self.next.clone()];
        let mut taken = 0;
        for &draft in drafts.iter() {
            if !allows(&masks[masks.len() - 1], draft) || !self.take(draft) {
                break;
            }
            taken += 1;
            let mut mask = vec![0; self.next.len()];
            if self.look(&mut mask).is_err() {
                break;
            }
            masks.push(mask);
        }
        self.matcher.rewind(taken);
        drafts.truncate(masks.len() - 1);
        masks
    }

    /// Takes in what was chosen. Returns why nothing can follow, when nothing can.
    pub(crate) fn push(&mut self, tokens: &[u32]) -> Option<RowEnd> {
        if self.end.is_none() && !tokens.is_empty() {
            self.take_all(tokens);
        }
        self.end
    }

    /// Takes `tokens` in, up to where the text ends, and looks what may follow.
    fn take_all(&mut self, tokens: &[u32]) {
        for &token in tokens {
            if self.stops.contains(&token) {
                self.end = Some(RowEnd::Complete);
            } else if !self.take(token) {
                self.end = Some(RowEnd::Stuck);
            }
            if self.end.is_some() {
                return;
            }
        }
        let mut mask = std::mem::take(&mut self.next);
        mask.fill(0);
        self.end = self.look(&mut mask).err();
        self.next = mask;
    }

    /// Takes `token` in, which must be no end.
    fn take(&mut self, token: u32) -> bool {
        !self.stops.contains(&token) && self.matcher.advance(token)
    }

    /// Fills `mask`, which is empty, with what may be chosen next.
    ///
    /// # Errors
    /// Nothing may be: why.
    fn look(&mut self, mask: &mut [u32]) -> Result<(), RowEnd> {
        let end = self.matcher.allow(mask);
        match (mask.iter().all(|&word| word == 0), end) {
            (true, End::May) => Err(RowEnd::Complete),
            (true, End::MayNot) => Err(RowEnd::Stuck),
            (false, End::MayNot) => Ok(()),
            (false, End::May) => {
                self.stops.iter().for_each(|&id| mask[id as usize / 32] |= 1 << (id % 32));
                Ok(())
            }
        }
    }
}

fn allows(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Cuts the drafts of each planned row to what its constraint allows.
pub(crate) fn follow(
    guides: &mut Holders<Guide>,
    planned: &[PlannedRow],
    drafts: &mut [Vec<u32>],
) -> Vec<Followed> {
    let follow = |(row, drafts): (&PlannedRow, &mut Vec<u32>)| {
        let proposed = drafts.len();
        let chooses = match row.work {
            Work::Block { .. } | Work::Chunk { then: Then::Choose, .. } => true,
            Work::Chunk { then: Then::Continue | Then::End, .. } => false,
        };
        match guides.of_mut(row.row).filter(|guide| chooses && guide.end.is_none()) {
            None => Followed { masks: Vec::new(), looked_at: proposed },
            Some(guide) => {
                let masks = guide.follow(drafts);
                Followed { looked_at: proposed.min(masks.len()), masks }
            }
        }
    };
    planned.iter().zip(drafts).map(follow).collect()
}
