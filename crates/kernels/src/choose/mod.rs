//! The choice of a token from a row of logits.
//!
//! Every random draw is a pure function of (request seed, absolute position, token id): Philox
//! 4×32-10 (Salmon et al. 2011) makes a uniform number, and the choice is
//! `argmax(logit / T + Gumbel)` over the allowed tokens (Gumbel-max). The drafter proposes with
//! the same noise, so it is right whenever it agrees with the target. `T = 0` is greedy: the
//! largest logit, the smallest id among equals.

use device::Cpu;

/// How one row draws.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` largest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Absolute position of the token being chosen.
    pub position: u32,
}

/// Log-probabilities of one chosen token, natural log, of the unmodified logits.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LogProbs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, best first, ties by id.
    pub top: Vec<(u32, f32)>,
}

/// Chooses a token for each row of `logits` (`[draws.len(), vocab]`) among ids below `allowed`
/// (a tokenizer may have fewer tokens than the embedding has rows). Filters apply in the order
/// temperature, top-k, top-p, min-p. NaN counts as the lowest logit.
pub fn choose(
    cpu: &Cpu,
    logits: &[f32],
    vocab: usize,
    allowed: usize,
    draws: &[Draw],
    out: &mut [u32],
) {
    let _ = (cpu, logits, vocab, allowed, draws, out);
    unimplemented!()
}

/// Log-probabilities of `token` and of the `top` most likely ids below `allowed` in one row.
pub fn log_probs(logits: &[f32], allowed: usize, token: u32, top: usize) -> LogProbs {
    let _ = (logits, allowed, token, top);
    unimplemented!()
}

/// The uniform number in (0, 1) behind the noise of (seed, position, token).
pub fn uniform(seed: u64, position: u32, token: u32) -> f32 {
    let _ = (seed, position, token);
    unimplemented!()
}
