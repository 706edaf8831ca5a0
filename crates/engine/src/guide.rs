//! What the forward lane keeps of requests whose text is constrained: how far each text is, and
//! which tokens may come next. The host tells it once, with the chunk that ends a request's known
//! tokens; from there on the lane follows what it chooses itself, so no step waits for the one
//! before. Rows without a constraint have nothing here.

use cache::Row;
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
    fn new(told: &ConstrainedRequest, vocab: usize) -> Guide {
        let matcher = told.constraint.0.matcher();
        let stops = told.stops.iter().copied().filter(|&id| (id as usize) < vocab).collect();
        let next = vec![0; vocab.div_ceil(32)];
        let mut guide = Guide { matcher, stops, next, end: None };
        guide.push(&told.output);
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

    /// Takes in what was chosen.
    fn push(&mut self, tokens: &[u32]) {
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

/// The guides of the running requests, by place in the row table.
pub(crate) struct Guides {
    vocab: usize,
    by_place: Vec<Option<(Row, Guide)>>,
}

impl Guides {
    /// Over a vocabulary of `vocab` tokens.
    pub(crate) fn new(vocab: usize) -> Guides {
        Guides { vocab, by_place: Vec::new() }
    }

    /// Takes in what is told of requests whose known tokens end with this step. A place that has
    /// another holder by then is its alone.
    pub(crate) fn begin(&mut self, planned: &[PlannedRow]) {
        for row in planned {
            let Work::Chunk { then: Then::Choose, .. } = row.work else { continue };
            let place = row.row.index;
            let told = row.constrained.as_deref();
            if self.by_place.len() <= place {
                if told.is_none() {
                    continue;
                }
                self.by_place.resize_with(place + 1, || None);
            }
            self.by_place[place] = told.map(|told| (row.row, Guide::new(told, self.vocab)));
        }
    }

    /// The guide of a row's holder, if its text is constrained.
    pub(crate) fn of(&self, row: Row) -> Option<&Guide> {
        let (holder, guide) = self.by_place.get(row.index)?.as_ref()?;
        (*holder == row).then_some(guide)
    }

    fn of_mut(&mut self, row: Row) -> Option<&mut Guide> {
        let (holder, guide) = self.by_place.get_mut(row.index)?.as_mut()?;
        (*holder == row).then_some(guide)
    }

    /// Cuts the drafts of each planned row to what its constraint allows.
    pub(crate) fn follow(
        &mut self,
        planned: &[PlannedRow],
        drafts: &mut [Vec<u32>],
    ) -> Vec<Followed> {
        let follow = |(row, drafts): (&PlannedRow, &mut Vec<u32>)| {
            let proposed = drafts.len();
            let chooses = !matches!(row.work, Work::Chunk { then: Then::Continue, .. });
            match self.of_mut(row.row).filter(|guide| chooses && guide.end.is_none()) {
                None => Followed { masks: Vec::new(), looked_at: proposed },
                Some(guide) => {
                    let masks = guide.follow(drafts);
                    Followed { looked_at: proposed.min(masks.len()), masks }
                }
            }
        };
        planned.iter().zip(drafts).map(follow).collect()
    }

    /// Takes in what was chosen for a row's holder. Returns why nothing can follow, when nothing
    /// can.
    pub(crate) fn push(&mut self, row: Row, tokens: &[u32]) -> Option<RowEnd> {
        let guide = self.of_mut(row)?;
        if guide.end.is_none() && !tokens.is_empty() {
            guide.push(tokens);
        }
        guide.end
    }
}
