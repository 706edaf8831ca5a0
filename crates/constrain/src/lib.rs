//! What a text may look like, and which tokens may come next in one that does.
//!
//! ```text
//! Grammar ──Grammars::compile──> Compiled (shared, cached) ──matcher──> Matcher (one a text)
//! ```
//!
//! - [`Grammar`] describes a set of texts: JSON of a schema, a regular expression, a Lark or an EBNF
//!   grammar, and what sequences, choices and repetitions make of these.
//! - [`Grammars`] knows the bytes of a vocabulary's tokens and compiles grammars for it. What a
//!   client sends may be hostile: size, time and memory of a compilation are bounded, and what
//!   does not fit is a [`GrammarError`].
//! - [`Matcher`] follows one text, token by token. What it allows depends on the grammar and on the
//!   tokens it took in, on nothing else: not on tokens that were taken back, nor on other texts.
//!
//! A leaf: no model, no request, no thread. It knows tokens by their bytes alone.

mod compile;
mod ebnf;
mod grammar;
mod matcher;
mod source;

pub use compile::{Compiled, GrammarError, Grammars, Vocabulary};
pub use grammar::{Grammar, Prose, ProseEnd};
pub use matcher::{End, Matcher};
