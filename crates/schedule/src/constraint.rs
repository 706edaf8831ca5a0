//! What a request's text must look like, as far as scheduler and device care: something that says
//! which tokens may come next. What describes it, and how it is compiled, is for others.

use std::sync::Arc;

/// A set of texts. One may serve many requests at once.
pub trait Constraint: Send + Sync {
    /// Follows one text, from its start.
    fn matcher(&self) -> Box<dyn Matcher>;
}

/// Follows one text. What it allows depends on its constraint and on the tokens it took in, on
/// nothing else; those it took back never were.
pub trait Matcher: Send {
    /// Sets the bits of the tokens that may come next: bit `id % 32` of word `id / 32`. `allowed` has
    /// a bit for every token, all of them 0 before. Ids that end a text are not among them.
    fn allow(&mut self, allowed: &mut [u32]) -> End;

    /// Takes `token` in; false, and nothing has changed, when it may not come next.
    fn advance(&mut self, token: u32) -> bool;

    /// Takes the last `count` tokens back.
    fn rewind(&mut self, count: usize);
}

/// Whether a text may end where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is a whole one.
    May,
    /// It is not.
    MayNot,
}

/// A constraint that requests share. Two are equal when they are one and the same.
#[derive(Clone)]
pub struct Constrained(pub Arc<dyn Constraint>);

impl PartialEq for Constrained {
    fn eq(&self, other: &Constrained) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Constrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constrained")
    }
}

/// What the device is told of a request whose text is constrained, once: with the chunk that ends
/// its known tokens. What follows, the device chooses itself, so it can follow the text from there.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstrainedRequest {
    /// What the text must be.
    pub constraint: Constrained,
    /// Ids that end it.
    pub stops: Vec<u32>,
    /// What a request that starts again had made before.
    pub output: Vec<u32>,
}

/// Why no token can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEnd {
    /// The text is whole, and nothing may be added to it.
    Complete,
    /// The constraint has no way on, or following it met a bound.
    Stuck,
}
