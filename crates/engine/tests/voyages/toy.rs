//! A constraint made of chance: a small automaton over token ids, which has states that nothing may
//! follow.

use crate::script::VOCAB;
use engine::{Constrained, Constraint, End, FinishReason, Matcher, Request};
use std::sync::Arc;

/// States of the automaton. Nothing may follow two of them: texts are whole in the first, and stuck
/// in the second.
const STATES: u64 = 40;
const WHOLE: u64 = 0;
const STUCK: u64 = 1;
const START: u64 = 2;

/// One automaton for each seed.
struct Toy(u64);

struct Walk {
    seed: u64,
    /// Where the walk was before each token, and where it is.
    states: Vec<u64>,
}

pub(crate) fn toy(seed: u64) -> Constrained {
    Constrained(Arc::new(Toy(seed)))
}

fn hash(parts: [u64; 3]) -> u64 {
    let fold = |hash: u64, part: u64| (hash ^ part).wrapping_mul(0x0100_0000_01b3);
    let hash = parts.into_iter().fold(0xcbf2_9ce4_8422_2325, fold);
    (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
}

impl Constraint for Toy {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Walk { seed: self.0, states: vec![START] })
    }
}

impl Walk {
    fn state(&self) -> u64 {
        self.states[self.states.len() - 1]
    }

    fn allows(&self, token: u32) -> bool {
        let state = self.state();
        !matches!(state, WHOLE | STUCK)
            && token < VOCAB
            && !hash([self.seed, state, u64::from(token)]).is_multiple_of(4)
    }
}

impl Matcher for Walk {
    fn allow(&mut self, allowed: &mut [u32]) -> End {
        assert!(allowed.iter().all(|&word| word == 0), "a mask is made from nothing");
        for token in (0..VOCAB).filter(|&token| self.allows(token)) {
            allowed[token as usize / 32] |= 1 << (token % 32);
        }
        if self.state().is_multiple_of(3) { End::May } else { End::MayNot }
    }

    fn advance(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        if allowed {
            self.states.push(hash([self.state(), u64::from(token), self.seed]) % STATES);
        }
        allowed
    }

    fn rewind(&mut self, count: usize) {
        assert!(count < self.states.len(), "only what came in is taken back");
        self.states.truncate(self.states.len() - count);
    }
}

/// What may follow `output`, stop ids among it where the text may end; `None` when `request` has no
/// constraint. By a walk that takes nothing back.
pub(crate) fn mask(request: &Request, output: &[u32]) -> Option<Vec<u32>> {
    let mut walk = request.constraint.as_ref()?.0.matcher();
    for &token in output {
        assert!(walk.advance(token), "{token} may not come next in {output:?}");
    }
    let mut mask = vec![0; (VOCAB as usize).div_ceil(32)];
    let end = walk.allow(&mut mask);
    if end == End::May && mask.iter().any(|&word| word != 0) {
        request.stops.ids.iter().for_each(|&id| mask[id as usize / 32] |= 1 << (id % 32));
    }
    Some(mask)
}

/// How `request` ends by its constraint after `output`, if it does.
pub(crate) fn end(request: &Request, output: &[u32]) -> Option<FinishReason> {
    let nothing = mask(request, output)?.iter().all(|&word| word == 0);
    let mut walk = request.constraint.as_ref()?.0.matcher();
    output.iter().for_each(|&token| assert!(walk.advance(token)));
    match (nothing, walk.allow(&mut [0; 2])) {
        (false, _) => None,
        (true, End::May) => Some(FinishReason::Stop),
        (true, End::MayNot) => Some(FinishReason::Stuck),
    }
}

/// Whether `mask` has `token`.
pub(crate) fn allows(mask: &[u32], token: u32) -> bool {
    mask[token as usize / 32] >> (token % 32) & 1 == 1
}
