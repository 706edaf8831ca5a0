//! Which texts each form of a grammar accepts.

use crate::common::{CONTROL, ENDS, accepts, compile, next};
use constrain::{End, Grammar};

fn text(text: &str) -> Grammar {
    Grammar::Text(text.into())
}

fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    let compiled = compile(grammar);
    for text in good {
        assert!(accepts(&compiled, text), "{grammar:?} must accept {text:?}");
    }
    for text in bad {
        assert!(!accepts(&compiled, text), "{grammar:?} must not accept {text:?}");
    }
}

#[test]
fn texts_sequences_choices_and_repetitions() {
    check(&text("a \"b\"\n\\%{}"), &["a \"b\"\n\\%{}"], &["a \"b\"", "a", ""]);
    let both = Grammar::Sequence(vec![text("a"), Grammar::Optional(Box::new(text("b")))]);
    check(&both, &["a", "ab"], &["b", "abb", ""]);
    check(&Grammar::choice(["yes", "no", "none"]), &["yes", "no", "none"], &["non", "yesno", ""]);
    check(&Grammar::choice(["", "/"]), &["", "/"], &["//"]);
    let mixed = Grammar::Choice(vec![text("a"), Grammar::Regex("[0-9]+".into())]);
    check(&mixed, &["a", "17"], &["a1", "1a", ""]);
    let list = Grammar::Repeat { item: Box::new(mixed), between: Box::new(text(", ")) };
    check(&list, &["a", "1, a, 22"], &["", "a,", "a, ", "1 2"]);
    let run = Grammar::Repeat { item: Box::new(text("ab")), between: Box::new(text("")) };
    check(&run, &["ab", "ababab"], &["", "aba"]);
}

#[test]
fn regular_expressions_match_the_whole_text() {
    check(&Grammar::Regex("a/b".into()), &["a/b"], &["xa/b", "a/bx"]);
    check(&Grammar::Regex(r"^\d{2}-[a-c]*$".into()), &["12-", "34-abc"], &["1-", "12-d"]);
    check(&Grammar::Regex("(é|ß)+".into()), &["é", "ßé"], &["e", ""]);
}

#[test]
fn lark_grammars_are_taken_as_they_are() {
    let sums = "start: sum\nsum: N (\"+\" N)*\nN: /[1-9][0-9]*/\n";
    check(&Grammar::Lark(sums.into()), &["1", "12+7"], &["0", "1+", ""]);
    let inside = Grammar::Sequence(vec![text("> "), Grammar::Lark(sums.into()), text(";")]);
    check(&inside, &["> 1+2;"], &["1+2", "> 1+2"]);
}

#[test]
fn json_is_valid_by_its_schema() {
    check(
        &Grammar::json_object(),
        &["{}", "{\"a\": [1, {\"b\": null}]}", "{\n  \"a\": \"\\n\"\n}"],
        &["[]", "{", "{} {}", " {}", "{\"a\": 1,}"],
    );
    let person = r#"{
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": false
    }"#;
    check(
        &Grammar::Json(person.into()),
        &["{\"name\": \"é\", \"age\": 3}", "{\"name\":\"\",\"age\":0}"],
        &["{\"age\": 3, \"name\": \"x\"}", "{\"name\": \"x\"}", "{\"name\": \"x\", \"age\": -1}"],
    );
    let tree = r##"{"type": "object", "properties": {"next": {"$ref": "#"}},
        "additionalProperties": false}"##;
    check(&Grammar::Json(tree.into()), &["{\"next\": {\"next\": {}}}"], &["{\"next\": 1}"]);
    check(&Grammar::Json("true".into()), &["1", "\"a\"", "[null]"], &["nul"]);
}

#[test]
fn what_is_thought_comes_before_what_is_said() {
    let through = Grammar::Through("</think>".into());
    let said = Grammar::Sequence(vec![through, Grammar::gap(), Grammar::choice(["yes", "no"])]);
    check(
        &said,
        &["Hm.\n{\"\n</think>\n\nyes", "</think>no", "< </think </think> no"],
        &["yes", "Hm. </think>", "</think></think>no", "</think>\n\nno\n"],
    );
}

#[test]
fn whitespace_in_json_has_an_end() {
    let sloppy = r#"{"type": "object", "x-guidance": {"whitespace_pattern": "\\s+"}}"#;
    for grammar in [Grammar::json_object(), Grammar::Json(sloppy.into())] {
        let compiled = compile(&grammar);
        for before in ["{", "{\"a\"", "{\"a\":", "{\"a\":[", "{\"a\":[1", "{\"a\":[1,", "{\"a\":1"]
        {
            for first in *b" \n\r" {
                let mut matcher = compiled.matcher();
                let begin = before.bytes().chain([first]);
                begin.for_each(|byte| assert!(matcher.advance(u32::from(byte)), "{before}"));
                // As much as ever it takes, whichever comes first.
                let mut more = || b"\n\t \r".iter().any(|&byte| matcher.advance(u32::from(byte)));
                let spaces = 1 + (0..1000).take_while(|_| more()).count();
                assert!((1..=Grammar::LONGEST_GAP).contains(&spaces), "{spaces} after {before}");
                assert!(!next(&mut matcher).0.is_empty(), "there is a way on after {before}");
            }
        }
    }
}

#[test]
fn control_tokens_and_ends_are_never_part_of_a_text() {
    let mut anything = compile(&Grammar::Regex("(?s:.*)".into())).matcher();
    let (ids, end) = next(&mut anything);
    assert_eq!(end, End::May);
    assert!(ids.contains(&u32::from(b'a')) && ids.len() > 100);
    for id in [CONTROL, ENDS[0], ENDS[1]] {
        assert!(!ids.contains(&id), "{id}");
    }
    let mut one = compile(&text("a")).matcher();
    assert_eq!(next(&mut one), (vec![u32::from(b'a')], End::MayNot));
    assert!(one.advance(u32::from(b'a')));
    assert_eq!(next(&mut one), (vec![], End::May), "the text must end");
}

#[test]
fn a_vocabulary_without_an_end_that_fills_its_words_will_do() {
    let pieces: Vec<&[u8]> =
        [b"a".as_slice(), b"b"].into_iter().chain([b"".as_slice(); 30]).collect();
    let grammars = constrain::Grammars::new(&constrain::Vocabulary { pieces, ends: &[] });
    let mut matcher = grammars.compile(&text("ab")).expect("it is a grammar").matcher();
    let mut allowed = [0];
    assert_eq!((matcher.allow(&mut allowed), allowed), (End::MayNot, [1]));
    assert!(matcher.advance(0) && matcher.advance(1));
    let mut allowed = [0];
    assert_eq!((matcher.allow(&mut allowed), allowed), (End::May, [0]));
}
