//! Grammars over a small vocabulary: what they accept, what they cost, and that a matcher's state is
//! its grammar and its tokens.

mod bounds;
mod common;
mod ebnf;
mod texts;
mod walks;
