//! What is done to a row's logits before it chooses: penalties for what came before, sparse
//! additions, and a mask of what is allowed.

use super::Rows;
use crate::spread::spread;
use device::{Cpu, Disjoint};

/// What is done to one row's logits before temperature and filters, in this order: penalties,
/// additions, the mask. The default changes nothing. All of it in `f32`, one rounding an operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape<'a> {
    /// Makes tokens that came before less likely, or more.
    pub penalties: Option<Penalties<'a>>,
    /// Added to the logits of tokens, in their order; −∞ rules a token out. Ids that the row does
    /// not have are ignored.
    pub additions: &'a [(u32, f32)],
    /// The tokens that may be chosen: bit `t % 32` of word `t / 32` stands for token `t`, the lowest
    /// bit first, and words that are missing are 0. `None` allows all.
    ///
    /// When no logit above −∞ is left, the choice is the smallest id that is allowed here, and 0
    /// when there is none: a mask outranks additions, and only an empty one is not kept to.
    pub allowed: Option<&'a [u32]>,
}

/// Penalties on tokens that came before. A token's logit `x` becomes
///
/// 1. `x / repetition` where it is positive and `x · repetition` where it is not, when the token is
///    in the prompt or in the output (CTRL, Keskar et al. 2019, as Hugging Face and vLLM have it);
/// 2. less `frequency · count`, less `presence` when the count is not 0, the count being that of the
///    output alone (OpenAI).
#[derive(Clone, Copy, Debug)]
pub struct Penalties<'a> {
    /// 1 changes nothing.
    pub repetition: f32,
    /// 0 changes nothing.
    pub frequency: f32,
    /// 0 changes nothing.
    pub presence: f32,
    /// What came before,
    pub counts: &'a Counts,
    /// and what the row takes to have come after that: output too. The drafts before it in a block.
    pub after: &'a [u32],
}

/// Which tokens a sequence has, and how often its output has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Token and count in the output; ascending by token.
    seen: Vec<(u32, u32)>,
}

impl Counts {
    /// Of a prompt, and of what came after it.
    pub fn new(prompt: &[u32], output: &[u32]) -> Counts {
        let mut seen: Vec<(u32, u32)> = prompt.iter().map(|&token| (token, 0)).collect();
        seen.extend(output.iter().map(|&token| (token, 1)));
        seen.sort_unstable_by_key(|&(token, _)| token);
        seen.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += if same { next.1 } else { 0 };
            same
        });
        Counts { seen }
    }

    /// The output goes on with `token`.
    pub fn push(&mut self, token: u32) {
        match self.find(token) {
            Ok(at) => self.seen[at].1 += 1,
            Err(at) => self.seen.insert(at, (token, 1)),
        }
    }

    /// How often the output has `token`; `None` when neither prompt nor output have it.
    pub fn of(&self, token: u32) -> Option<u32> {
        self.find(token).ok().map(|at| self.seen[at].1)
    }

    /// All tokens that came, and how often the output has each; ascending by token.
    #[cfg(feature = "cuda")]
    pub(super) fn all(&self) -> &[(u32, u32)] {
        &self.seen
    }

    fn find(&self, token: u32) -> Result<usize, usize> {
        self.seen.binary_search_by_key(&token, |&(seen, _)| seen)
    }
}

impl Shape<'_> {
    /// Whether a row of this shape is chosen from as it is.
    pub fn is_plain(&self) -> bool {
        self.penalties.is_none() && self.additions.is_empty() && self.allowed.is_none()
    }

    /// Writes `logits` to `out`, shaped.
    pub(super) fn apply(&self, logits: &[f32], out: &mut [f32]) {
        out.copy_from_slice(logits);
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits, out);
        }
        for &(token, addition) in self.additions {
            if let Some(logit) = out.get_mut(token as usize) {
                *logit += addition;
            }
        }
        if let Some(mask) = self.allowed {
            rule_out(mask, out);
        }
    }

    /// The choice where no logit is above −∞, of tokens below `end`.
    pub(super) fn last_resort(&self, end: usize) -> u32 {
        let first = |mask: &[u32]| {
            let word = mask.iter().position(|&word| word != 0)?;
            let token = word as u32 * 32 + mask[word].trailing_zeros();
            ((token as usize) < end).then_some(token)
        };
        self.allowed.and_then(first).unwrap_or(0)
    }
}

impl Penalties<'_> {
    /// Changes those of `out` that a penalty is for; `logits` is what they were.
    fn apply(&self, logits: &[f32], out: &mut [f32]) {
        let mut set = |token: u32, count: u32| {
            if let Some(out) = out.get_mut(token as usize) {
                *out = self.on(logits[token as usize], count);
            }
        };
        for &(token, count) in &self.counts.seen {
            set(token, count);
        }
        // Once more for the few that come after, with what they add to the count.
        for &token in self.after {
            let more = self.after.iter().filter(|&&other| other == token).count() as u32;
            set(token, self.counts.of(token).unwrap_or(0) + more);
        }
    }

    /// The logit `x` of a token that came before, `count` times in the output.
    fn on(&self, x: f32, count: u32) -> f32 {
        let x = if x > 0.0 { x / self.repetition } else { x * self.repetition };
        let presence = if count > 0 { self.presence } else { 0.0 };
        x - self.frequency * count as f32 - presence
    }
}

/// Sets the logits of the tokens that `mask` does not have to −∞.
fn rule_out(mask: &[u32], logits: &mut [f32]) {
    let words = mask.iter().copied().chain(std::iter::repeat(0));
    for (tokens, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => tokens.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in tokens.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// The shaped rows of a launch.
#[derive(Default)]
pub(super) struct Shaped {
    /// For each row of the launch, which of `logits` is its own; empty when no row has a shape.
    places: Vec<Option<usize>>,
    /// `[shaped rows, allowed]`.
    logits: Vec<f32>,
}

impl Shaped {
    /// Shapes those of `rows` that have a shape.
    pub(super) fn new(cpu: &Cpu, rows: &Rows<'_>, shapes: &[Shape<'_>]) -> Shaped {
        if shapes.iter().all(Shape::is_plain) {
            return Shaped::default();
        }
        let mut count = 0;
        let place = |shape: &Shape<'_>| {
            count += usize::from(!shape.is_plain());
            (!shape.is_plain()).then(|| count - 1)
        };
        let places: Vec<Option<usize>> = shapes.iter().map(place).collect();
        let mut logits = vec![0.0; count * rows.allowed];
        let shared = Disjoint::new(&mut logits);
        spread(cpu, shapes.len(), count * rows.allowed, &|row| {
            let Some(place) = places[row] else { return };
            let start = place * rows.allowed;
            // SAFETY: no two rows have the same place.
            let out = unsafe { shared.slice(start..start + rows.allowed) };
            shapes[row].apply(rows.raw(row), out);
        });
        Shaped { places, logits }
    }

    /// The shaped logits of a row of `allowed`; `None` when it has no shape.
    pub(super) fn row(&self, row: usize, allowed: usize) -> Option<&[f32]> {
        let place = self.places.get(row).copied().flatten()?;
        Some(&self.logits[place * allowed..][..allowed])
    }
}
