//! What the forward lane keeps of requests whose logits are shaped: what is done to them, and which
//! tokens came so far.

use kernels::choose::{Counts, Penalties, Shape};
use schedule::ShapedRequest;
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
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        if self.told.shaping.penalizes() {
            tokens.iter().for_each(|&token| self.counts.push(token));
        }
    }
}
