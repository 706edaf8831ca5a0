//! The description of a set of texts.

use crate::ebnf;

/// A set of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// This text.
    Text(String),
    /// A JSON document that is valid by this schema, which is JSON text itself. Properties come in
    /// the order in which the schema names them. Between tokens of JSON there may be a space or two,
    /// or a line break and what a line is indented by: see [`Grammar::LONGEST_GAP`].
    Json(String),
    /// What this regular expression matches as a whole, in the syntax of the crate `regex`, without
    /// anchors and look-around.
    Regex(String),
    /// A grammar in the Lark dialect of llguidance, whose first rule is called `start`.
    Lark(String),
    /// An EBNF grammar, as llama.cpp (GBNF) and XGrammar read them, whose rule `root` is the whole text.
    /// Where a rule leads back to itself other than at its end, the parts that do not are read as far as
    /// they go.
    Ebnf(String),
    /// Any text up to the first occurrence of this one, and that.
    Through(String),
    /// Prose, in which a mark has a meaning of its own.
    Prose(Prose),
    /// One after the other.
    Sequence(Vec<Grammar>),
    /// One of these; at least one.
    Choice(Vec<Grammar>),
    /// This, or nothing.
    Optional(Box<Grammar>),
    /// One or more.
    Repeat {
        /// What is repeated.
        item: Box<Grammar>,
        /// What stands between two of them.
        between: Box<Grammar>,
    },
}

/// Any text, but for where marks stand in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prose {
    /// Occurs in it as `end` says, and nowhere else.
    pub mark: String,
    /// What it does not begin with, if there is something.
    pub head: Option<String>,
    /// Where the mark occurs.
    pub end: ProseEnd,
}

/// Where the mark of [`Prose`] occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProseEnd {
    /// At its end.
    Mark,
    /// Nowhere. Such prose may be the empty text.
    NoMark,
}

impl Grammar {
    /// Most characters of whitespace in one place between tokens of JSON: a line break (two
    /// characters) and the indentation of a document that is nested deeper than models write.
    /// Without a bound a model that has lost its way writes whitespace for ever, and that is valid
    /// JSON so far.
    pub const LONGEST_GAP: usize = 22;

    /// A grammar in the notation that its text shows it to be in: EBNF has `::=`, Lark has not.
    pub fn written(text: String) -> Grammar {
        if ebnf::is_ebnf(&text) { Grammar::Ebnf(text) } else { Grammar::Lark(text) }
    }

    /// Any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::Json(r#"{"type": "object"}"#.to_owned())
    }

    /// One of these texts.
    pub fn choice<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Grammar {
        Grammar::Choice(texts.into_iter().map(|text| Grammar::Text(text.into())).collect())
    }

    /// A little whitespace, or none.
    pub fn gap() -> Grammar {
        Grammar::Optional(Box::new(Grammar::Regex("[ \\n\\r\\t]{1,8}".into())))
    }
}
