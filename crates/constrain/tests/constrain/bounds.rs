//! What hostile grammars cost, what is said about wrong ones, and what is kept of good ones.

use crate::common::{grammars, next};
use constrain::Grammar;
use std::sync::Arc;

fn json(schema: impl Into<String>) -> Grammar {
    Grammar::Json(schema.into())
}

fn lark(rules: impl Into<String>) -> Grammar {
    Grammar::Lark(rules.into())
}

fn regex(regex: impl Into<String>) -> Grammar {
    Grammar::Regex(regex.into())
}

/// `first` with its number and the next, line after line.
fn chain(count: usize, line: impl Fn(usize, usize) -> String) -> String {
    (0..count).map(|i| line(i, i + 1)).collect()
}

/// Grammars that were made to take long, or to break what reads them.
fn hostile() -> Vec<Grammar> {
    let many = |count: usize, item: &dyn Fn(usize) -> String| {
        (0..count).map(item).collect::<Vec<_>>().join(",")
    };
    vec![
        regex("(".repeat(30_000) + &")".repeat(30_000)),
        regex("[".repeat(30_000)),
        regex("a".to_owned() + &"*".repeat(60_000)),
        regex("a".repeat(10_000_000)),
        regex("((a{1000}){1000}){1000}"),
        regex("(.{0,1000}x){0,1000}"),
        regex("(a|b)*a(a|b){300}"),
        regex(r"(\p{L}|\p{N}){1,5000}"),
        lark("start: ".to_owned() + &"(".repeat(20_000) + "\"a\""),
        lark("start: ".to_owned() + &"~".repeat(60_000) + "\"a\""),
        lark(chain(3000, |i, j| format!("r{i}: r{j} \"x\"\n")) + "r3000: \"y\"\nstart: r0\n"),
        lark(chain(3000, |i, j| format!("R{i}: R{j} \"x\"\n")) + "R3000: \"y\"\nstart: R0\n"),
        lark(chain(60, |i, j| format!("r{i}: r{j} r{j}\n")) + "r60: \"y\" |\nstart: r0\n"),
        lark(chain(60, |i, j| format!("R{i}: R{j} R{j}\n")) + "R60: \"y\"\nstart: R0\n"),
        lark("start: x{1,1000}\nx: y{1,1000}\ny: z{1,1000}\nz: \"a\""),
        lark("start: start"),
        lark("start: e\ne: e e | \"a\" |"),
        json("{\"properties\": {\"a\": ".repeat(3000) + "{}" + &"}}".repeat(3000)),
        json("[".repeat(60_000)),
        json(format!("{{\"properties\": {{{}}}}}", many(2400, &|i| format!("\"p{i}\":{{}}")))),
        json(format!("{{\"enum\": [{}]}}", many(6000, &|i| format!("\"v{i}\"")))),
        json(format!(
            "{{\"allOf\": [{}]}}",
            many(14, &|i| format!(
                "{{\"anyOf\": [{{\"properties\": {{\"a{i}\": {{\"type\": \"null\"}}}}}}, \
                 {{\"properties\": {{\"b{i}\": {{}}}}}}]}}"
            ))
        )),
        json(format!(
            "{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{}\"d1200\": {{}}}}}}",
            chain(1200, |i, j| format!("\"d{i}\":{{\"allOf\":[{{\"$ref\":\"#/$defs/d{j}\"}}]}},"))
        )),
        json(r##"{"$ref": "#"}"##),
        json(r##"{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}"##),
        json(r#"{"$ref": "http://127.0.0.1:9/schema.json"}"#),
        json(r#"{"type": "array", "items": {"type": "integer"}, "minItems": 1000000}"#),
        json(r#"{"type": "string", "minLength": 100000000}"#),
        json(r#"{"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"}"#),
        json(r#"{"type": "integer", "multipleOf": 1000000007}"#),
        json(r#"{"type": "object", "minProperties": 1000000}"#),
        Grammar::choice((0..10_000).map(|i| format!("c{i}"))),
    ]
}

#[test]
fn hostile_grammars_are_compiled_or_refused_and_nothing_breaks() {
    let grammars = grammars();
    let mut compiled = 0;
    for grammar in hostile() {
        match grammars.compile(&grammar) {
            Ok(fine) => {
                compiled += 1;
                // A thread's usual stack is enough to follow what a deep one was needed to compile.
                let mut matcher = fine.matcher();
                for _ in 0..40 {
                    let (ids, _) = next(&mut matcher);
                    // What is allowed may still be refused where a bound is met.
                    if ids.last().is_none_or(|&last| !matcher.advance(last)) {
                        break;
                    }
                }
            }
            Err(error) => assert!(error.to_string().len() < 1500, "{error}"),
        }
    }
    assert!(compiled > 5, "the bounds are not so tight that nothing passes: {compiled}");
}

#[test]
fn wrong_grammars_are_refused_with_what_is_wrong() {
    let grammars = grammars();
    for (grammar, says) in [
        (json("{"), "is not JSON: EOF"),
        (json("3"), "is not a JSON schema, which is an object"),
        (json("false"), "is `false`, by which nothing is valid"),
        (json(r#"{"not": {}}"#), "cannot be used: Unimplemented keys: [\"not\"]"),
        (json(r#"{"type": "integer", "minimum": 3, "maximum": 2}"#), "Unsatisfiable"),
        (regex("("), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (regex("a".repeat(70_000)), "is longer than 65536 bytes"),
        (regex("(".repeat(200)), "nests brackets deeper than 100"),
        (lark("start: other"), "unknown name"),
        (lark("start: start"), "allows no text at all"),
        (lark(""), "no start rule"),
        (lark("start: <|im_end|>"), "is not supported, such as special tokens"),
        (Grammar::Choice(vec![]), "has nothing to choose from"),
    ] {
        let error = grammars.compile(&grammar).expect_err("a wrong grammar").to_string();
        assert!(error.contains(says), "{grammar:?}: {error}");
        assert!(!error.contains("backtrace"), "{error}");
    }
}

#[test]
fn what_was_compiled_is_kept_while_there_is_room() {
    let grammars = grammars();
    let compile = |n: usize| grammars.compile(&Grammar::Text(format!("{n}"))).expect("a text");
    let first = compile(0);
    assert!(Arc::ptr_eq(&first, &compile(0)));
    for n in 1..100 {
        compile(n);
        // Used again and again, it stays; the others go.
        assert!(Arc::ptr_eq(&first, &compile(0)), "after {n}");
    }
    let second = compile(1);
    assert!(Arc::ptr_eq(&second, &compile(1)));
    (2..100).for_each(|n| drop(compile(n)));
    assert!(!Arc::ptr_eq(&second, &compile(1)), "room is bounded");
}
