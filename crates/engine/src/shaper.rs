//! What the forward lane keeps of requests whose logits are shaped: what is done to them, and which
//! tokens came so far. The host tells it once, with the chunk that ends a request's known tokens;
//! from there on the lane counts what it chooses itself, so no step waits for the one before.

use cache::Row;
use kernels::choose::{Counts, Penalties, Shape};
use schedule::{PlannedRow, ShapedRequest, Then, Work};
use std::sync::Arc;

/// How one request's logits are shaped, as of the last token that was chosen for it.
#[derive(Clone, Debug)]
pub struct Shaper {
    told: Arc<ShapedRequest>,
    /// The bias, then what rules out the banned tokens.
    additions: Vec<(u32, f32)>,
    /// Empty when nothing is penalized.
    counts: Counts,
}

impl Shaper {
    /// Of a request whose known tokens end here.
    pub(crate) fn new(told: Arc<ShapedRequest>) -> Shaper {
        let bans = told.banned.iter().map(|&token| (token, f32::NEG_INFINITY));
        let additions = told.shaping.logit_bias.iter().copied().chain(bans).collect();
        let counts = match told.shaping.penalizes() {
            true => Counts::new(&told.tokens[..told.prompt], &told.tokens[told.prompt..]),
            false => Counts::default(),
        };
        Shaper { told, additions, counts }
    }

    /// What is done to the logits that the token of `position` is chosen from, when the tokens
    /// `after` come between the last that was chosen and it.
    pub fn shape<'a>(&'a self, position: usize, after: &'a [u32]) -> Shape<'a> {
        let shaping = &self.told.shaping;
        let penalties = shaping.penalizes().then_some(Penalties {
            repetition: shaping.repetition_penalty,
            frequency: shaping.frequency_penalty,
            presence: shaping.presence_penalty,
            counts: &self.counts,
            after,
        });
        let long_enough = position - self.told.prompt >= self.told.min_tokens;
        let additions = match long_enough {
            true => &self.additions[..shaping.logit_bias.len()],
            false => &self.additions,
        };
        Shape { penalties, additions, allowed: None }
    }

    /// Takes in what was chosen.
    fn push(&mut self, tokens: &[u32]) {
        if self.told.shaping.penalizes() {
            tokens.iter().for_each(|&token| self.counts.push(token));
        }
    }
}

/// The shapers of the running requests, by place in the row table.
#[derive(Default)]
pub(crate) struct Shapers {
    by_place: Vec<Option<(Row, Shaper)>>,
}

impl Shapers {
    /// Takes in what is told of requests whose known tokens end with this step. A place that has
    /// another holder by now is that one's alone.
    pub(crate) fn begin(&mut self, planned: &[PlannedRow]) {
        for row in planned {
            let Work::Chunk { then: Then::Choose, .. } = row.work else { continue };
            let place = row.row.index;
            if self.by_place.len() <= place {
                self.by_place.resize_with(place + 1, || None);
            }
            let shaper = row.shaped.clone().map(Shaper::new);
            self.by_place[place] = shaper.map(|shaper| (row.row, shaper));
        }
    }

    /// The shaper of a row's holder, if its logits are shaped.
    pub(crate) fn of(&self, row: Row) -> Option<&Shaper> {
        let (holder, shaper) = self.by_place.get(row.index)?.as_ref()?;
        (*holder == row).then_some(shaper)
    }

    /// Takes in what was chosen for a row's holder.
    pub(crate) fn push(&mut self, row: Row, tokens: &[u32]) {
        let known = self.by_place.get_mut(row.index).and_then(Option::as_mut);
        if let Some((_, shaper)) = known.filter(|(holder, _)| *holder == row) {
            shaper.push(tokens);
        }
    }
}
