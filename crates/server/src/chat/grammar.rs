//! The grammar of an answer that calls tools.

use super::dialect::{Layout, ToolFormat};
use super::split::Count;
use super::tools::{Function, Strict};
use constrain::{Grammar, Prose, ProseEnd};
use serde_json::{Value, json};

/// Keywords of a schema that say by themselves what its values are.
const TELLING: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];

/// Calls of `functions`, at least one, written as `format` does.
pub(super) fn calls<'f>(
    format: &ToolFormat,
    functions: impl Iterator<Item = &'f Function>,
    count: Count,
) -> Grammar {
    written(&format.layout, functions, count)
}

/// The same by a layout.
fn written<'f>(
    layout: &Layout,
    functions: impl Iterator<Item = &'f Function>,
    count: Count,
) -> Grammar {
    let call = |function: &Function| {
        let head = format!("{}{}{}", layout.before, function.name, layout.middle);
        Grammar::Sequence(vec![
            Grammar::Text(head),
            schema(function),
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

/// The arguments of a call.
pub(super) fn schema(function: &Function) -> Grammar {
    Grammar::Json(arguments(function).to_string())
}

/// Prose with calls of `functions` in it: behind the mark of a call there is a call, one or several, and
/// prose may follow. The arguments of strict functions are of their schema, those of others an object.
pub(super) fn prose_with_calls(
    format: &ToolFormat,
    functions: &[Function],
    count: Count,
) -> ProseWithCalls {
    let loose = |function: &Function| match function.strict {
        Strict::Yes => function.clone(),
        Strict::No => Function { parameters: Some(json!({"type": "object"})), ..function.clone() },
    };
    let functions: Vec<Function> = functions.iter().map(loose).collect();
    let Layout { begin, before, end, .. } = format.layout;
    // The mark has been written when the call is looked at.
    let layout = if begin.is_empty() {
        let before = before.strip_prefix(format.open).expect("a call begins with its mark");
        Layout { before, ..format.layout }
    } else {
        let begin = begin.strip_prefix(format.open).expect("calls begin with their mark");
        Layout { begin, ..format.layout }
    };
    // Where each call has a mark of its own, the next one is for the prose behind to find.
    let each = if end.is_empty() { Count::One } else { count };
    let calls = written(&layout, functions.iter(), each);
    ProseWithCalls { mark: format.open, calls, count }
}

/// Prose in which a mark begins a call.
#[derive(Clone, Debug, PartialEq)]
pub struct ProseWithCalls {
    mark: &'static str,
    /// What stands behind a mark.
    calls: Grammar,
    count: Count,
}

impl ProseWithCalls {
    /// The whole, which does not begin with `head`.
    pub(super) fn grammar(&self, head: Option<&str>) -> Grammar {
        let prose = |head: Option<&str>, end| {
            let (mark, head) = (self.mark.to_owned(), head.map(str::to_owned));
            Grammar::Prose(Prose { mark, head, end })
        };
        let last = prose(None, ProseEnd::NoMark);
        let more = match self.count {
            Count::One => last,
            Count::Several => Grammar::Sequence(vec![
                Grammar::Optional(Box::new(Grammar::Repeat {
                    item: Box::new(Grammar::Sequence(vec![
                        prose(None, ProseEnd::Mark),
                        self.calls.clone(),
                    ])),
                    between: Box::new(Grammar::Text(String::new())),
                })),
                last,
            ]),
        };
        let called = vec![prose(head, ProseEnd::Mark), self.calls.clone(), more];
        Grammar::Choice(vec![Grammar::Sequence(called), prose(head, ProseEnd::NoMark)])
    }
}

/// The schema of a call's arguments, which are an object where it leaves that open.
fn arguments(function: &Function) -> Value {
    let Some(Value::Object(schema)) = &function.parameters else {
        return json!({"type": "object", "additionalProperties": false});
    };
    let mut schema = schema.clone();
    if !TELLING.iter().any(|keyword| schema.contains_key(*keyword)) {
        schema.insert("type".into(), "object".into());
    }
    Value::Object(schema)
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
