//! What models of each format write, and what becomes of it.

use crate::common::{calls, deltas, made, read, reasoning};
use server::chat::Delta;
use server::chat::dialect::{
    HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, MISTRAL_THINK, THINK, ToolFormat,
};
use server::chat::split::{Allowed, CallRules, Count, Rules, Start};

/// An answer's text, its content, and its calls.
type Case = (&'static str, Option<&'static str>, &'static [(&'static str, &'static str)]);

fn check(format: &'static ToolFormat, cases: &[Case]) {
    for &(text, content, expected) in cases {
        let reply = read(&calls(format), text);
        assert_eq!(made(&reply), expected, "{text:?}");
        assert_eq!(reply.content.as_deref(), content, "{text:?}");
        assert_eq!(reply.reasoning, None);
    }
}

#[test]
fn hermes_calls() {
    check(
        &HERMES,
        &[
            (
                "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\u{fc}rich\", \
                 \"days\": 2}}\n</tool_call>",
                None,
                &[("get_weather", "{\"city\": \"Z\u{fc}rich\", \"days\": 2}")],
            ),
            (
                "Let me look.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n\
                 </tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>\n",
                Some("Let me look.\n"),
                &[("a", "{\"x\": 1}"), ("b", "{}")],
            ),
            // The order in which Hermes 2 Pro writes the keys.
            (
                "<tool_call>\n{\"arguments\": {\"symbol\": \"TSLA\"}, \"name\": \"get_stock\"}\n\
                 </tool_call>",
                None,
                &[("get_stock", "{\"symbol\": \"TSLA\"}")],
            ),
            // No closing marker, as when it is a stop string or the length cap cuts it.
            (
                "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}",
                None,
                &[("a", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_ca",
                None,
                &[("a", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"a\", \"arguments\": {}}<tool_call>{\"name\": \"b\"}\
                 </tool_call> Done. ",
                Some(" Done. "),
                &[("a", "{}"), ("b", "{}")],
            ),
        ],
    );
}

#[test]
fn llama_calls() {
    check(
        &LLAMA3,
        &[
            (
                "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
                None,
                &[("get_weather", "{\"city\": \"Paris\"}")],
            ),
            (
                "<|python_tag|>{\"type\": \"function\", \"name\": \"trending_songs\", \
                 \"parameters\": {\"n\": \"10\", \"genre\": \"all\"}}",
                None,
                &[("trending_songs", "{\"n\": \"10\", \"genre\": \"all\"}")],
            ),
            (
                "\n{\"name\": \"a\", \"parameters\": {\"x\": 1}}; {\"name\": \"b\", \
                 \"arguments\": {\"y\": \";\"}};{\"name\": \"c\", \"parameters\": null}",
                None,
                &[("a", "{\"x\": 1}"), ("b", "{\"y\": \";\"}"), ("c", "{}")],
            ),
            (
                "I will call. <|python_tag|>{\"name\": \"a\", \"parameters\": {}}",
                Some("I will call. "),
                &[("a", "{}")],
            ),
            // JSON that was asked for, code for an interpreter, JSON inside an answer.
            ("{\"name\": \"Bob\", \"age\": 3}", Some("{\"name\": \"Bob\", \"age\": 3}"), &[]),
            ("{\"name\": \"Bob\"}", Some("{\"name\": \"Bob\"}"), &[]),
            ("<|python_tag|>print(1)", Some("<|python_tag|>print(1)"), &[]),
            (
                "So: {\"name\": \"a\", \"parameters\": {}}",
                Some("So: {\"name\": \"a\", \"parameters\": {}}"),
                &[],
            ),
            (
                "{\"name\": \"a\", \"parameters\": {}}; and so on",
                Some("; and so on"),
                &[("a", "{}")],
            ),
        ],
    );
}

#[test]
fn mistral_calls() {
    let cases: &[Case] = &[
        (
            "[TOOL_CALLS][{\"name\": \"get_current_weather\", \"arguments\": {\"location\": \
             \"Paris, France\", \"format\": \"celsius\"}}]",
            None,
            &[(
                "get_current_weather",
                "{\"location\": \"Paris, France\", \"format\": \"celsius\"}",
            )],
        ),
        (
            "[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": [1, {\"]\": \"[\"}]}, \"id\": \
             \"VvvODy9mT\"}, {\"name\": \"b\", \"arguments\": {}}]",
            None,
            &[("a", "{\"x\": [1, {\"]\": \"[\"}]}"), ("b", "{}")],
        ),
        ("[TOOL_CALLS]add{\"a\": \"3.5\"}", None, &[("add", "{\"a\": \"3.5\"}")]),
        (
            "Both.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Bern\"}[TOOL_CALLS]b-2[ARGS]{}",
            Some("Both."),
            &[("get_weather", "{\"city\": \"Bern\"}"), ("b-2", "{}")],
        ),
        ("[TOOL_CALLS]f[CALL_ID]VvvODy9mT[ARGS]{\"x\": 1}", None, &[("f", "{\"x\": 1}")]),
        ("[TOOL_CALLS]{\"name\": \"a\", \"arguments\": {}}", None, &[("a", "{}")]),
        ("[TOOL_CALLS]no call", Some("[TOOL_CALLS]no call"), &[]),
        ("[TOOL_CALLS]a[ARG]{}", Some("[TOOL_CALLS]a[ARG]{}"), &[]),
        ("[TOOL_CALLS][]", Some("[TOOL_CALLS][]"), &[]),
        (
            "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}}, oops]",
            Some(", oops]"),
            &[("a", "{}")],
        ),
    ];
    check(&MISTRAL, cases);
    check(&MISTRAL_ARGS, cases);
}

#[test]
fn arguments_may_hold_anything() {
    let arguments = [
        r#"{"a": "</tool_call>", "b": "<tool_call>{}", "c": "[TOOL_CALLS][ARGS]; {\"x\"}"}"#,
        r#"{"text": "a \"quoted\" \\ }}]", "u": "\u00e9\ud83d\ude00", "n": {"m": [[], [{}]]}}"#,
        r#"{"code": "if (a < b) { return \"}\"; }\n\t"}"#,
        "{\n  \"x\" : -1.5e+7 ,\n  \"y\": [true,false , null]\n}",
        "{}",
        r#"{"emoji": "😀 漢字", "arguments": {"name": "x", "arguments": {}}}"#,
    ];
    for arguments in arguments {
        let cases = [
            (
                &HERMES,
                format!("<tool_call>{{\"name\":\"f\",\"arguments\":{arguments}}}</tool_call>"),
            ),
            (
                &HERMES,
                format!("<tool_call>{{\"arguments\":{arguments},\"name\":\"f\"}}</tool_call>"),
            ),
            (&LLAMA3, format!("{{\"name\":\"f\",\"parameters\":{arguments}}}")),
            (&MISTRAL, format!("[TOOL_CALLS][{{\"name\":\"f\",\"arguments\":{arguments}}}]")),
            (&MISTRAL_ARGS, format!("[TOOL_CALLS]f[ARGS]{arguments}")),
        ];
        for (format, text) in cases {
            let reply = read(&calls(format), &text);
            assert_eq!(made(&reply), [("f", arguments)], "{text}");
            assert_eq!(reply.content, None);
        }
    }
}

#[test]
fn arguments_in_a_string_are_an_object_once_decoded() {
    check(
        &HERMES,
        &[
            (
                r#"<tool_call>{"name": "f", "arguments": "{\"a\": \"x\\n\"}"}</tool_call>"#,
                None,
                &[("f", r#"{"a": "x\n"}"#)],
            ),
            (r#"<tool_call>{"arguments": "{}", "name": "f"}</tool_call>"#, None, &[("f", "{}")]),
            (
                r#"<tool_call>{"name": "f", "arguments": "no"}</tool_call>"#,
                Some(r#"<tool_call>{"name": "f", "arguments": "no"}</tool_call>"#),
                &[],
            ),
        ],
    );
}

#[test]
fn what_is_no_call_is_content() {
    for text in [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_cal",
        "<tool_call>hello</tool_call>",
        "<tool_call>{\"name\": }</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": 7}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"nom\": \"f\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", }</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[{\"name\": \"f\", \"arguments\": {}}]</tool_call>",
        "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>",
        "</tool_call>",
        "a < b <tool b </tool_call> <<tool_call",
        " \n ",
        "",
    ] {
        let reply = read(&calls(&HERMES), text);
        assert_eq!(reply.content.as_deref().unwrap_or_default(), text);
        assert_eq!(reply.calls, []);
    }
}

#[test]
fn one_bad_call_does_not_hide_the_next() {
    let good = "<tool_call>{\"name\": \"g\", \"arguments\": {\"x\": 1}}</tool_call>";
    for bad in ["<tool_call>oops", "<tool_call>\n", "<tool_call>{\"name\": \"never closed\n"] {
        let reply = read(&calls(&HERMES), &format!("{bad}{good}"));
        assert_eq!(made(&reply), [("g", "{\"x\": 1}")], "{bad}");
        assert_eq!(reply.content.as_deref(), Some(bad));
    }
}

#[test]
fn arguments_that_go_wrong_stay_arguments() {
    check(
        &HERMES,
        &[
            // Cut by the length cap.
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x",
                None,
                &[("f", "{\"a\": \"x")],
            ),
            // Ended too early: what follows is read as usual.
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1</tool_call> <tool_call>\
                 {\"name\": \"g\"}</tool_call>",
                None,
                &[("f", "{\"a\": [1"), ("g", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1 <tool}}</tool_call>",
                None,
                &[("f", "{\"a\": 1 <tool}")],
            ),
            // A brace too few and a brace too many.
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {}\n</tool_call>ok",
                Some("ok"),
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>",
                Some("}\n</tool_call>"),
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\" 1}</tool_call>",
                Some(", \"x\" 1}</tool_call>"),
                &[("f", "{}")],
            ),
        ],
    );
}

#[test]
fn arguments_come_as_they_are_written() {
    let pieces = ["<tool_call>{\"name\": \"f\", \"argu", "ments\": {\"a\"", ": \"b", "c\"}", "}</"];
    let all = deltas(&calls(&HERMES), pieces);
    let arguments = |text: &str| Delta::Arguments { index: 0, text: text.into() };
    assert_eq!(all[0], []);
    let [Delta::ToolCall { index: 0, id, name }, first] = &all[1][..] else {
        panic!("{:?}", all[1]);
    };
    assert!(id.starts_with("call_") && name == "f");
    assert_eq!(*first, arguments("{\"a\""));
    assert_eq!(all[2..4], [[arguments(": \"b")], [arguments("c\"}")]]);
    assert_eq!(all[4..], [[], []]);
}

#[test]
fn a_step_may_commit_whole_calls() {
    let text = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>\
                <tool_call>{\"name\": \"b\", \"arguments\": {\"y\": 2}}</tool_call>";
    let all = deltas(&calls(&HERMES), [text]);
    assert_eq!(all[0].len(), 4);
    let ids: Vec<&String> = all[0]
        .iter()
        .filter_map(|delta| match delta {
            Delta::ToolCall { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1]);
}

#[test]
fn only_the_calls_that_were_allowed_count() {
    let text = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n\
                <tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";
    let rules = |allowed, count| Rules {
        calls: Some(CallRules { format: &HERMES, allowed, count }),
        ..calls(&HERMES)
    };
    let reply = read(&rules(Allowed::Only(vec!["b".into()]), Count::Several), text);
    assert_eq!(made(&reply), [("b", "{}")]);
    let first = "<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n";
    assert_eq!(reply.content.as_deref(), Some(first));

    let reply = read(&rules(Allowed::Any, Count::One), text);
    assert_eq!((made(&reply), &reply.content), (vec![("a", "{}")], &None));
}

#[test]
fn an_answer_is_over_after_the_one_call_it_may_make() {
    let rules = |format| {
        let calls = CallRules { format, allowed: Allowed::Any, count: Count::One };
        Rules { reasoning: None, start: Start::Answer, calls: Some(calls) }
    };
    let cases = [
        (&HERMES, "<tool_call>{\"name\": \"a\", \"arguments\": {}", "}", "\n</tool_call> more"),
        (&LLAMA3, "{\"name\": \"a\", \"parameters\": {}", "}", "; {\"name\": \"b\"}"),
        (&MISTRAL, "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {}", "}", ", {\"name\": \"b\"}]"),
        (&MISTRAL_ARGS, "[TOOL_CALLS]a[ARGS]{", "}", "[TOOL_CALLS]b[ARGS]{}"),
    ];
    for (format, before, end, after) in cases {
        let ids = server::chat::CallIds::new("chatcmpl-1", 0);
        let mut splitter = server::chat::Splitter::new(rules(format), ids);
        splitter.push(before);
        assert!(!splitter.is_done(), "{}", format.name);
        splitter.push(end);
        assert!(splitter.is_done(), "{}", format.name);
        assert_eq!(splitter.push(after), []);
        assert_eq!(splitter.calls(), 1);
        assert_eq!(splitter.finish(), []);
    }
}

#[test]
fn reasoning_is_apart() {
    let cases = [
        ("<think>\nadd\n\ntwice\n</think>\n\n2", Some("add\n\ntwice"), Some("2")),
        ("<think>add</think>2\n", Some("add"), Some("2\n")),
        ("\n<think>\n\n</think>\n\nHi", None, Some("Hi")),
        ("<think>a < b </thin</think> c", Some("a < b </thin"), Some(" c")),
        ("<think>no end\n", Some("no end\n"), None),
        ("<think>cut </thi", Some("cut </thi"), None),
        ("Hi <think>there</think>", None, Some("Hi <think>there</think>")),
        ("<think>a</think>b<think>c</think>", Some("a"), Some("b<think>c</think>")),
        ("<thin", None, Some("<thin")),
        ("  plain", None, Some("  plain")),
    ];
    for (text, thought, content) in cases {
        let reply = read(&reasoning(&THINK, Start::Answer), text);
        assert_eq!(reply.reasoning.as_deref(), thought, "{text:?}");
        assert_eq!(reply.content.as_deref(), content, "{text:?}");
    }
    let reply = read(&reasoning(&MISTRAL_THINK, Start::Answer), "[THINK]a[/THINK]b");
    assert_eq!((reply.reasoning, reply.content), (Some("a".into()), Some("b".into())));
}

#[test]
fn the_prompt_may_have_opened_the_reasoning() {
    let rules = reasoning(&THINK, Start::Reasoning);
    let reply = read(&rules, "\nadd\n</think>\n\n2");
    assert_eq!((reply.reasoning, reply.content), (Some("add".into()), Some("2".into())));
    let reply = read(&rules, "never closed");
    assert_eq!((reply.reasoning.as_deref(), reply.content), (Some("never closed"), None));
}

#[test]
fn without_rules_the_text_is_the_content() {
    let rules = Rules { reasoning: None, start: Start::Answer, calls: None };
    for text in
        ["<think>a</think>\n\nb", "<tool_call>{\"name\": \"f\"}</tool_call>", "\n \n", " x "]
    {
        assert_eq!(read(&rules, text).content.as_deref(), Some(text));
    }
}

#[test]
fn reasoning_hides_calls_and_calls_may_follow_it() {
    let rules = Rules { reasoning: Some(&THINK), ..calls(&HERMES) };
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let reply = read(&rules, &format!("<think>\nNot {call}.\n</think>\n\n{call}"));
    assert_eq!(reply.reasoning, Some(format!("Not {call}.")));
    assert_eq!((made(&reply), &reply.content), (vec![("f", "{}")], &None));

    let rules = Rules { reasoning: Some(&THINK), ..calls(&LLAMA3) };
    let reply = read(&rules, "<think>a</think>\n\n{\"name\": \"f\", \"parameters\": {}}");
    assert_eq!((made(&reply), &reply.content), (vec![("f", "{}")], &None));
}
