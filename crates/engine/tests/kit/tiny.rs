//! Requests to tiny models, whatever runs them.

use engine::{EngineOptions, Limits, Request, WidthPolicy};

/// A request of `max_tokens` tokens that nothing else ends.
pub(crate) fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        ..Request::new(prompt.to_vec())
    }
}

/// A prompt of `len` ids that depends on `seed`.
pub(crate) fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|i| (((seed * 7919 + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 250) as u32)
        .collect()
}

/// Options whose widths are as asked for: what is drafted does not depend on a clock.
pub(crate) fn fixed() -> EngineOptions {
    EngineOptions { widths: WidthPolicy::Fixed, ..EngineOptions::default() }
}
