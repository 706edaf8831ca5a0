//! What an answer must look like when it has to call tools: a description from which a grammar
//! engine makes its own.

use super::dialect::ToolFormat;
use super::split::Count;
use super::tools::Function;
use serde_json::{Value, json};

/// A set of texts.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// This text. Control tokens in it are meant as tokens, as in the text of a chat template.
    Text(String),
    /// A JSON value of this schema. The schema is a document of its own: its references begin at its
    /// root.
    Json(Value),
    /// One after the other.
    Sequence(Vec<Grammar>),
    /// One of these.
    Choice(Vec<Grammar>),
    /// One or more.
    Repeat {
        /// What is repeated.
        item: Box<Grammar>,
        /// What stands between two of them.
        between: Box<Grammar>,
    },
}

impl Grammar {
    /// Calls of `functions`, at least one, written as `format` does.
    pub(super) fn calls<'f>(
        format: &ToolFormat,
        functions: impl Iterator<Item = &'f Function>,
        count: Count,
    ) -> Grammar {
        let layout = &format.layout;
        let call = |function: &Function| {
            let head = format!("{}{}{}", layout.before, function.name, layout.middle);
            let nothing = || json!({"type": "object", "additionalProperties": false});
            let arguments = function.parameters.clone().unwrap_or_else(nothing);
            Grammar::Sequence(vec![
                Grammar::Text(head),
                Grammar::Json(arguments),
                Grammar::Text(layout.after.to_owned()),
            ])
        };
        let call = Grammar::Choice(functions.map(call).collect());
        let calls = match count {
            Count::One => call,
            Count::Several => Grammar::Repeat {
                item: Box::new(call),
                between: Box::new(Grammar::Text(layout.between.to_owned())),
            },
        };
        Grammar::Sequence(vec![
            Grammar::Text(layout.begin.to_owned()),
            calls,
            Grammar::Text(layout.end.to_owned()),
        ])
    }
}

impl ToolFormat {
    /// Calls (name and arguments) as text: what the grammar of such calls accepts.
    pub(super) fn write(&self, calls: &[(&str, &str)]) -> String {
        let layout = &self.layout;
        let call = |&(name, arguments): &(&str, &str)| {
            format!("{}{name}{}{arguments}{}", layout.before, layout.middle, layout.after)
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        format!("{}{}{}", layout.begin, calls.join(layout.between), layout.end)
    }
}
