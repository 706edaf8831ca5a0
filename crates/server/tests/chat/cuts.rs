//! Random answers, cut at random places.

use crate::common::{calls, made, reply};
use proptest::prelude::*;
use serde_json::Value;
use server::chat::dialect::{HERMES, REASONINGS, THINK, TOOL_FORMATS, ToolFormat};
use server::chat::split::{Rules, Start};
use server::chat::{CallIds, Delta, Splitter};

/// What answers are made of, and what they are nearly made of.
const FRAGMENTS: [&str; 34] = [
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "</",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[",
    "]",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
    "{\"name\": \"g\", \"parameters\": {\"y\": [\"</tool_call>\"]}}",
    "{\"arguments\": {}, \"name\": \"h\"}",
    "{\"name\": \"f\", \"arguments\": ",
    "\"arguments\": \"{\\\"a\\\": 1}\"",
    "{",
    "}",
    "\"",
    "\\",
    "\"name\"",
    ":",
    ",",
    ";",
    "null",
    "-1.5",
    "f",
    " ",
    "\n",
    "é",
    "😀",
];

/// `text` cut behind the characters at these positions.
fn cut<'t>(text: &'t str, cuts: &[prop::sample::Index]) -> Vec<&'t str> {
    let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut at: Vec<usize> = cuts.iter().map(|cut| *cut.get(&ends)).collect();
    at.extend([0, text.len()]);
    at.sort_unstable();
    at.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

fn noise() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => prop::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(fragment, 0..24).prop_map(|fragments| fragments.concat())
}

fn rules() -> impl Strategy<Value = Rules> {
    let reasoning = prop::option::of(prop::sample::select(&REASONINGS[..]));
    let format = prop::option::of(prop::sample::select(&TOOL_FORMATS[..]));
    let start = prop::sample::select(&[Start::Answer, Start::Reasoning][..]);
    (reasoning, start, format).prop_map(|(reasoning, start, format)| Rules {
        reasoning,
        start,
        calls: format.and_then(|format| calls(format).calls),
    })
}

/// A JSON value, printed in one of two ways.
fn json() -> impl Strategy<Value = Value> {
    let text =
        prop_oneof![any::<String>(), prop::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(text.clone(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn arguments() -> impl Strategy<Value = String> {
    let fields = prop::collection::hash_map(any::<String>(), json(), 0..4);
    (fields, any::<bool>()).prop_map(|(fields, pretty)| {
        let value = Value::Object(fields.into_iter().collect());
        match pretty {
            true => serde_json::to_string_pretty(&value).expect("JSON"),
            false => value.to_string(),
        }
    })
}

/// The calls as a model of this format writes them.
fn write(format: &ToolFormat, calls: &[(String, String)]) -> String {
    let each = |write: &dyn Fn(&str, &str) -> String| -> Vec<String> {
        calls.iter().map(|(name, arguments)| write(name, arguments)).collect()
    };
    match format.name {
        "hermes" => each(&|name, arguments| {
            format!(
                "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"
            )
        })
        .join("\n"),
        "llama3" => each(&|name, arguments| {
            format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}")
        })
        .join("; "),
        "mistral" => {
            let calls = each(&|name, arguments| {
                format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
            });
            format!("[TOOL_CALLS][{}]", calls.join(", "))
        }
        "mistral-args" => {
            each(&|name, arguments| format!("[TOOL_CALLS]{name}[ARGS]{arguments}")).concat()
        }
        other => panic!("no writer for {other}"),
    }
}

/// Whether the characters of `part` are in `text` in this order.
fn is_subsequence(part: &str, text: &str) -> bool {
    let mut rest = text.chars();
    part.chars().all(|c| rest.any(|other| other == c))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_reads_the_same_in_any_pieces(
        text in noise(),
        rules in rules(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let whole = reply(&rules, [text.as_str()]);
        prop_assert_eq!(&reply(&rules, cut(&text, &cuts)), &whole);
        prop_assert_eq!(&reply(&rules, text.split_inclusive(|_| true)), &whole);
        // Nothing is lost where nothing was found.
        if whole.calls.is_empty() && rules.reasoning.is_none() {
            prop_assert_eq!(whole.content.unwrap_or_default(), text);
        }
    }

    #[test]
    fn nothing_is_invented_or_doubled(text in noise(), rules in rules()) {
        // Arguments may be decoded from a string or stand for missing ones; all else is a part of
        // the text, in its order.
        let mut splitter = Splitter::new(rules, CallIds::new("chatcmpl-1", 0));
        let mut deltas = splitter.push(&text);
        deltas.extend(splitter.finish());
        let mut given = String::new();
        for delta in deltas {
            match delta {
                Delta::Content(text) | Delta::Reasoning(text) => given += &text,
                Delta::ToolCall { .. } => {}
                Delta::Arguments { text, .. } if text == "{}" || text == "{\"a\": 1}" => {}
                Delta::Arguments { text, .. } => given += &text,
            }
        }
        prop_assert!(is_subsequence(&given, &text), "{given:?}\n{text:?}");
    }

    #[test]
    fn calls_are_found_in_every_format(
        format in prop::sample::select(&TOOL_FORMATS[..]),
        made_calls in prop::collection::vec(("[a-zA-Z0-9_-]{1,64}", arguments()), 1..4),
        thought in prop::option::of("[a-z<>/ ]{1,20}"),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let written = write(format, &made_calls);
        let text = match &thought {
            Some(thought) => format!("<think>\n{thought}\n</think>\n\n{written}"),
            None => written,
        };
        let rules = Rules { reasoning: Some(&THINK), ..calls(format) };
        let whole = reply(&rules, cut(&text, &cuts));
        let expected: Vec<(&str, &str)> =
            made_calls.iter().map(|(name, arguments)| (name.as_str(), arguments.as_str())).collect();
        prop_assert_eq!(made(&whole), expected);
        for call in &whole.calls {
            prop_assert!(serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object()));
        }
        prop_assert_eq!(whole.reasoning, thought);
        prop_assert_eq!(whole.content, None);
    }

    #[test]
    fn text_around_calls_is_content(
        before in "[a-z<>{}\\[\\]\" \n]{0,20}[a-z]",
        after in "[a-z][a-z<>{}\\[\\]\" \n]{0,20}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let call = write(&HERMES, &[("f".into(), "{}".into())]);
        let text = format!("{before}{call}\n{call} {after}");
        let whole = reply(&calls(&HERMES), cut(&text, &cuts));
        prop_assert_eq!(made(&whole), [("f", "{}"), ("f", "{}")]);
        prop_assert_eq!(whole.content, Some(format!("{before} {after}")));
    }
}
