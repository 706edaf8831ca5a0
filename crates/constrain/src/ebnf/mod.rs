//! EBNF grammars, as llama.cpp (GBNF), XGrammar, vLLM and SGLang read them, in Lark's words.
//!
//! ```text
//! root  ::= greeting (", " name)? [.!]
//! greeting ::= "Hello" | "Hi"     # a comment
//! name  ::= [A-Z] [a-z]{1,20}
//! ```
//!
//! A rule goes on to where the next one begins. There are literals (`"…"`), sets of characters (`[a-z]`,
//! `[^"\\]`, `.`), groups, alternatives, `?`, `*`, `+`, `{m}`, `{m,}` and `{m,n}`. Escapes are `\n`, `\r`,
//! `\t`, `\xHH`, `\uHHHH`, `\UHHHHHHHH`, and any character of punctuation for itself.

mod parse;
mod write;

use crate::compile::GrammarError;

/// The name of the rule that is a whole text.
const ROOT: &str = "root";

/// The Lark text of an EBNF grammar.
///
/// # Errors
/// What is wrong, and on which line.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    parse::rules(text).map(write::lark)
}

/// Whether a grammar is an EBNF one, which no Lark text is.
pub(crate) fn is_ebnf(text: &str) -> bool {
    let named = |name: &str| !name.is_empty() && name.chars().all(parse::is_name);
    text.lines().any(|line| line.split_once("::=").is_some_and(|(name, _)| named(name.trim())))
}

/// The rules of a grammar; the first is [`ROOT`].
#[derive(Debug)]
struct Rules {
    bodies: Vec<Expr>,
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq)]
enum Expr {
    /// This text, which may be empty.
    Text(String),
    /// A character.
    Set(Set),
    /// What the rule with this number says.
    Rule(usize),
    /// One after the other.
    Sequence(Vec<Expr>),
    /// One of these.
    Choice(Vec<Expr>),
    /// So many times.
    Repeat { item: Box<Expr>, least: u32, most: Option<u32> },
}

/// Characters from ranges, or all others.
#[derive(Clone, Debug, PartialEq)]
struct Set {
    ranges: Vec<(char, char)>,
    sense: Sense,
}

/// Which characters of ranges are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sense {
    These,
    AllOthers,
}

impl Expr {
    /// Calls `visit` with each rule that is referred to.
    fn references(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Expr::Text(_) | Expr::Set(_) => {}
            Expr::Rule(rule) => visit(*rule),
            Expr::Sequence(items) | Expr::Choice(items) => {
                items.iter().for_each(|item| item.references(visit));
            }
            Expr::Repeat { item, .. } => item.references(visit),
        }
    }
}
