//! The grammar of an answer that calls tools.

use super::dialect::ToolFormat;
use super::split::Count;
use super::tools::Function;
use constrain::Grammar;
use serde_json::{Value, json};

/// Keywords of a schema that say by themselves what its values are.
const TELLING: [&str; 7] = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];

/// Calls of `functions`, at least one, written as `format` does.
pub(super) fn calls<'f>(
    format: &ToolFormat,
    functions: impl Iterator<Item = &'f Function>,
    count: Count,
) -> Grammar {
    let layout = &format.layout;
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
