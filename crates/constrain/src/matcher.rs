//! One text, token by token.

use crate::compile::Compiled;
use llguidance::api::StopReason;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether a text may end where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is a whole one.
    May,
    /// It is not.
    MayNot,
}

/// Follows one text.
pub struct Matcher {
    compiled: Arc<Compiled>,
    inner: llguidance::Matcher,
    tokens: Vec<u32>,
}

impl Matcher {
    pub(crate) fn new(compiled: Arc<Compiled>) -> Matcher {
        let inner = compiled.start.clone();
        Matcher { compiled, inner, tokens: Vec::new() }
    }

    /// Sets the bits of the ids that may come next (bit `id % 32` of word `id / 32`); `allowed` is
    /// all zero before. Ids that end a text are never among them. When none is set and the text
    /// [may end](End::May), it must; when it may not, there is no way on: the grammar has none, or
    /// following it met a bound.
    ///
    /// # Panics
    /// When `allowed` has no word for an id that ends a text.
    pub fn allow(&mut self, allowed: &mut [u32]) -> End {
        if self.inner.is_stopped() {
            return self.stopped();
        }
        let Ok(mask) = self.inner.compute_mask() else { return self.stopped() };
        // Its masks have a word for one id more than there are.
        allowed.iter_mut().zip(mask.as_slice()).for_each(|(word, &mask)| *word = mask);
        for &end in self.compiled.ends.iter() {
            allowed[end as usize / 32] &= !(1 << (end % 32));
        }
        match self.inner.is_accepting() {
            Ok(true) => End::May,
            Ok(false) | Err(_) => End::MayNot,
        }
    }

    /// Takes `token` in; false, and nothing has changed, when it may not come next.
    pub fn advance(&mut self, token: u32) -> bool {
        // An end would be taken in where a text may end, and ids without bytes anywhere.
        if !self.compiled.says(token) {
            return false;
        }
        let taken = match self.inner.validate_tokens(&[token]) {
            Ok(1) => self.inner.consume_token(token).is_ok(),
            Ok(_) => return false,
            Err(_) => false,
        };
        self.tokens.push(token);
        if !taken {
            self.rewind(1);
        }
        taken
    }

    /// Takes the last `count` tokens back.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn rewind(&mut self, count: usize) {
        let left = self.tokens.len().checked_sub(count).expect("only what came in is taken back");
        self.tokens.truncate(left);
        // A matcher that failed stays so; the text so far did not fail.
        if self.inner.rollback(count).is_err() {
            self.inner = self.compiled.start.clone();
            // When this fails too, the next mask says so.
            let _ = self.inner.consume_tokens(&self.tokens);
        }
    }

    /// Why there is no way on, when that is a failure.
    pub(crate) fn failure(&self) -> Option<String> {
        self.inner.get_error()
    }

    fn stopped(&self) -> End {
        match self.inner.stop_reason() {
            StopReason::NoExtension | StopReason::EndOfSentence => End::May,
            _ => {
                self.compiled.spent.store(true, Ordering::Relaxed);
                End::MayNot
            }
        }
    }
}
