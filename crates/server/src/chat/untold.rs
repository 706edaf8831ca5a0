//! Tools for models whose chat template has none: what a template would print becomes part of the
//! messages' own text.

use super::dialect::ToolFormat;
use model::chat::Message;
use serde_json::{Map, Value};

/// Rewrites `messages` so that they hold text only: the `tools` are described in the system
/// message, calls are written as the model is told to write them, and results are user messages.
pub(super) fn write_out(
    messages: Vec<Message>,
    tools: &[Value],
    format: &ToolFormat,
) -> Vec<Message> {
    let mut written: Vec<Message> =
        messages.into_iter().map(|message| without_fields(message, format)).collect();
    if tools.is_empty() {
        return written;
    }
    let told = describe(tools, format);
    match written.first_mut() {
        Some(Message { role, content: Some(text), .. }) if role == "system" => {
            text.push_str("\n\n");
            text.push_str(&told);
        }
        _ => written.insert(0, Message::new("system", told)),
    }
    written
}

fn without_fields(mut message: Message, format: &ToolFormat) -> Message {
    let content = message.content.take().unwrap_or_default();
    if message.role == "tool" {
        let text = format!("<tool_response>\n{content}\n</tool_response>");
        return Message::new("user", text);
    }
    let calls = message.extra.remove("tool_calls");
    let calls: Vec<(&str, &str)> =
        calls.iter().flat_map(Value::as_array).flatten().filter_map(call).collect();
    let text = match (content.is_empty(), calls.is_empty()) {
        (_, true) => content,
        (true, false) => format.write(&calls),
        (false, false) => format!("{content}\n{}", format.write(&calls)),
    };
    Message { content: Some(text), ..message }
}

/// Name and arguments of a call that was checked.
fn call(call: &Value) -> Option<(&str, &str)> {
    let function = call.get("function")?;
    Some((function.get("name")?.as_str()?, function.get("arguments")?.as_str()?))
}

fn describe(tools: &[Value], format: &ToolFormat) -> String {
    let mut text = "You can call these functions:\n".to_owned();
    for tool in tools {
        text.push('\n');
        // Templates print the JSON of a tool as it came; so does this.
        text.push_str(&tool.get("function").unwrap_or(tool).to_string());
    }
    let example = format.write(&[("function_name", &Value::Object(Map::new()).to_string())]);
    text.push_str(
        "\n\nTo call a function, write its name and a JSON object of arguments like this:\n",
    );
    text.push_str(&example);
    text.push_str(
        "\nThe results come back in <tool_response> tags. If no function helps, answer in words.",
    );
    text
}
