//! EBNF grammars: which texts each accepts, what is said about wrong ones, and that no text breaks what
//! reads them.

use crate::common::{accepts, compile, grammars, next};
use constrain::Grammar;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// A grammar, texts of it, and texts that are none.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

/// JSON, as llama.cpp's users write it.
const JSON: &str = r##"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"##;

const CASES: &[Case] = &[
    ("root ::= \"yes\" | \"no\"", &["yes", "no"], &["", "y", "yesno"]),
    // A literal that begins another, and what follows both: every way of reading counts.
    ("root ::= (\"a\" | \"ab\") (\"bc\" | \"c\")", &["abc", "abbc", "ac"], &["a", "ab", "abcc"]),
    ("root ::= [a-z]+ \"b\"", &["ab", "bbb"], &["b", "a", "aB"]),
    (
        "root ::= greeting \", \" name \"!\"\ngreeting ::= \"Hello\" | \"Hi\"\nname ::= [A-Z] [a-z]{1,3}",
        &["Hi, Ann!", "Hello, Bo!"],
        &["Hi, ann!", "Hi, Annie!", "Hi, A!"],
    ),
    // Operators, and blank space and comments wherever they may be.
    (
        "# first\nroot ::= # here\n  a? b * (\"c\" |\n \"d\")+ # there\n\n a::=\"a\"\nb\n::= \"b\"",
        &["c", "abbcd", "ad"],
        &["", "a", "ba"],
    ),
    (
        "root ::= \"a\"{2} \"b\"{2,} \"c\"{ 1 , 2 }",
        &["aabbc", "aabbbbcc"],
        &["abbc", "aabc", "aabbccc"],
    ),
    ("root ::= \"\" | \"x\"", &["", "x"], &["xx"]),
    ("root ::= (\"a\" | ) \"b\"", &["ab", "b"], &["a"]),
    ("root ::=\n  | \"a\"\n", &["", "a"], &["aa"]),
    // Escapes, in literals and in sets.
    (r#"root ::= "\"\\\n\t\x41\u00e9\U0001F600/""#, &["\"\\\n\tA\u{e9}\u{1f600}/"], &["\\n"]),
    (r#"root ::= [\]\\\-^"\x30-\u0039]+"#, &["]\\-^\"059"], &["a", "["]),
    ("root ::= [-a] [a-]", &["--", "aa"], &["b-", "-b"]),
    ("root ::= [^a-c\\n] .", &["dx", "\u{e9}\n", "\u{1f600}\u{e9}"], &["ax", "\nx", "d"]),
    // Recursion at the end alone is a repetition.
    ("root ::= \"[\" ws \"]\"\nws ::= ([ \\t] ws)?", &["[]", "[ \t ]"], &["[", "[x]"]),
    (
        "root ::= item \",\" root | item\nitem ::= [0-9]+ | \"x\" item",
        &["1", "1,22,xx3"],
        &["1,", "x", ""],
    ),
    (
        "root ::= \"a\" root | root | \"b\" (\"c\" root | \"d\")",
        &["bd", "aabd", "bcabd"],
        &["", "a", "bc"],
    ),
    // Recursion elsewhere is none.
    ("root ::= \"(\" root \")\" | [a-z]+", &["a", "((abc))"], &["()", "(a", "a)"]),
    (
        "root ::= root \"+\" term | term\nterm ::= [0-9]+ | \"(\" root \")\"",
        &["1", "1+2", "(1+22)+3"],
        &["", "+1", "1+", "(1"],
    ),
    (
        "root ::= a? \"z\"\na ::= \"x\" a \"y\" | opt\nopt ::= \"o\"?",
        &["z", "oz", "xxoyyz", "xyz"],
        &["xz", "xxyz"],
    ),
    (
        "root ::= even | odd\neven ::= \"\" | \"a\" odd2\nodd2 ::= \"a\" even\nodd ::= \"b\" even \"b\"",
        &["", "aa", "bb", "baab"],
        &["a", "b", "bab"],
    ),
    // A rule that leads nowhere is not looked at, and names may have more than letters.
    (
        "root ::= the-1st_rule.x\nthe-1st_rule.x ::= \"ok\"\nother ::= other \"no\"",
        &["ok"],
        &["no"],
    ),
];

#[test]
fn each_grammar_accepts_its_texts_and_no_others() {
    for (grammar, good, bad) in CASES {
        let compiled = compile(&Grammar::Ebnf((*grammar).to_owned()));
        for text in *good {
            assert!(accepts(&compiled, text), "{grammar}\nmust accept {text:?}");
        }
        for text in *bad {
            assert!(!accepts(&compiled, text), "{grammar}\nmust not accept {text:?}");
        }
    }
}

#[test]
fn the_grammar_of_json_is_json() {
    let compiled = compile(&Grammar::Ebnf(JSON.to_owned()));
    for text in [
        "{}",
        "{\"a\":1}",
        "{\"a\": [1, -2.5e+1, true, null ,\"x\\n\\u00e9\"], \"b\": {\"c\": []}}",
        "{\n    \"\u{e9}\": \"\"\n}\n",
    ] {
        assert!(accepts(&compiled, text), "{text}");
    }
    for text in ["", "[]", "{\"a\" 1}", "{\"a\": 01}", "{\"a\": \"\n\"}", "{\"a\": 1,}", "{} {}"] {
        assert!(!accepts(&compiled, text), "{text}");
    }
}

#[test]
fn a_grammar_says_by_its_looks_what_it_is() {
    assert_eq!(Grammar::written("start: \"::=\"".into()), Grammar::Lark("start: \"::=\"".into()));
    for ebnf in ["root ::= \"a\"", "# c\n\n  x-1.y::=\"b\"\nroot ::= x-1.y"] {
        assert_eq!(Grammar::written(ebnf.into()), Grammar::Ebnf(ebnf.into()));
    }
    let inside =
        Grammar::Sequence(vec![Grammar::Text("> ".into()), Grammar::Ebnf("root ::= [0-9]".into())]);
    assert!(accepts(&compile(&inside), "> 7") && !accepts(&compile(&inside), "7"));
}

#[test]
fn wrong_grammars_are_refused_with_the_line_and_what_was_expected() {
    let grammars = grammars();
    for (grammar, says) in [
        ("", "has no rule `root`"),
        ("start ::= \"a\"", "has no rule `root`; give this name"),
        ("root ::= a\n\nb ::= c", "line 1: there is no rule `a`; add it"),
        ("root \"x\"", "line 1: expected `::=` behind `root`, found '\"'"),
        ("root ::= \"a\"\nb \"x\"", "line 2: there is no rule `b`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: there is a rule `root` already"),
        ("root ::= \"a", "line 1: expected `\"` at the end of a literal, found the end"),
        (
            "root ::=\n  \"a\nb\"",
            "line 2: expected `\"` at the end of a literal, found the end of the line",
        ),
        ("root ::= [a-", "line 1: expected the end of a range, found the end"),
        ("root ::= [z-a]", "line 1: the range 'z' to 'a' runs backwards"),
        ("root ::= []", "expected a character of the set, found ']'"),
        ("root ::= (\"a\"", "line 1: expected `)`, found the end"),
        (
            "root ::= \"a\")",
            "expected a literal, a set of characters, a group, `|` or a rule, found ')'",
        ),
        (
            "root ::= \"a\"**",
            "expected a literal, a set of characters, a group, `|` or a rule, found '*'",
        ),
        ("root ::= * \"a\"", "found '*'"),
        ("root ::= 'a'", "found '\\''"),
        ("root ::= \"a\"{x}", "expected a count, found 'x'"),
        ("root ::= \"a\"{2", "expected `}`, found the end"),
        ("root ::= \"a\"{3,2}", "a repetition ends below where it begins"),
        ("root ::= \"a\"{1000000}", "more than 10000 times"),
        ("root ::= \"\\q\"", "expected an escape"),
        ("root ::= \"\\x4\"", "expected 2 hexadecimal digits"),
        ("root ::= \"\\uD800\"", "there is no character D800"),
        ("root ::= root", "line 1: the rule `root` leads back to itself and never ends"),
        (
            "root ::= \"b\" | x\nx ::= \"a\" x",
            "line 1: the rule `x` leads back to itself and never ends",
        ),
    ] {
        let error =
            grammars.compile(&Grammar::Ebnf(grammar.into())).expect_err(grammar).to_string();
        assert!(error.contains(says), "{grammar}\n{error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(200), ")".repeat(200));
    let error = grammars.compile(&Grammar::Ebnf(deep)).expect_err("too deep").to_string();
    assert!(error.contains("line 1: groups nest deeper than 100"), "{error}");
}

#[test]
fn hostile_grammars_are_compiled_or_refused() {
    let grammars = grammars();
    let chain = |count: usize, line: &dyn Fn(usize, usize) -> String| {
        (0..count).map(|i| line(i, i + 1)).collect::<String>()
    };
    for text in [
        "(".repeat(60_000),
        format!("root ::= \"a\"{}", "?".repeat(60_000)),
        format!("root ::= {}", "a ".repeat(30_000)),
        format!("root ::= \"{}\"", "\u{1f600}".repeat(16_000)),
        format!("root ::= {} root | \"b\" {}", "\"a\" ".repeat(8000), "| \"b\" ".repeat(4000)),
        format!(
            "root ::= r0\n{}r3000 ::= \"y\"",
            chain(3000, &|i, j| format!("r{i} ::= r{j} \"x\"\n"))
        ),
        format!("root ::= r0\n{}r60 ::= \"y\"", chain(60, &|i, j| format!("r{i} ::= r{j} r{j}\n"))),
        format!(
            "root ::= r0\n{}r60 ::= \"y\" root \"z\" | \"\"",
            chain(60, &|i, j| format!("r{i} ::= r{j} r{j}\n"))
        ),
        "root ::= x{1,9999}\nx ::= y{1,9999}\ny ::= z{1,9999}\nz ::= \"a\" | \"(\" root \")\""
            .to_owned(),
        "root ::= root root | \"a\" | \"\"".to_owned(),
    ] {
        match grammars.compile(&Grammar::Ebnf(text)) {
            Ok(fine) => {
                let mut matcher = fine.matcher();
                for _ in 0..40 {
                    let (ids, _) = next(&mut matcher);
                    if ids.last().is_none_or(|&last| !matcher.advance(last)) {
                        break;
                    }
                }
            }
            Err(error) => assert!(error.to_string().len() < 1500, "{error}"),
        }
    }
}

#[test]
fn no_text_breaks_what_reads_grammars() {
    const PARTS: [&str; 26] = [
        "root", " ::= ", "::=", "\n", " ", "|", "(", ")", "?", "*", "+", "{2,3}", "{", "}",
        "\"a\"", "\"", "[a-z]", "[^", "]", "-", ".", "\\", "\\x41", "# c", "\u{e9}", "b",
    ];
    let parts = prop::collection::vec(prop::sample::select(&PARTS[..]), 0..40);
    let text = (parts, any::<bool>()).prop_map(|(parts, begun)| {
        format!("{}{}", if begun { "root ::= " } else { "" }, parts.concat())
    });
    let grammars = grammars();
    let mut runner = TestRunner::new(ProptestConfig { cases: 400, ..ProptestConfig::default() });
    let outcome = runner.run(&text, |text| {
        if let Err(error) = grammars.compile(&Grammar::Ebnf(text.clone())) {
            let error = error.to_string();
            // Ours, not what Lark would say of what it was given.
            prop_assert!(!error.contains("cannot be used"), "{text:?}: {error}");
        }
        Ok(())
    });
    outcome.expect("every text is read or refused");
}
