//! What Rust source may not contain: long functions, `unsafe` outside its two crates, unfinished
//! or silenced code. Works on tokens, so text in strings and comments does not count and code in
//! macro bodies does.

use super::crate_of;
use crate::report::Finding;
use crate::tree::File;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Lines of one function, from `fn` to its closing brace.
const MOST_LINES: usize = 70;

/// The crates that may say `unsafe`.
const UNSAFE_CRATES: &[&str] = &["device", "kernels"];

/// Macros that mark unfinished code or a forgotten probe.
const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// Each run of sibling tokens in `text`: the top level, and the inside of every bracket pair.
///
/// # Errors
/// Text that is not Rust.
pub(crate) fn sequences(text: &str) -> Result<Vec<Vec<TokenTree>>, String> {
    let stream: TokenStream = text.parse().map_err(|error| format!("not Rust: {error}"))?;
    let mut all = Vec::new();
    let mut open = vec![stream];
    while let Some(stream) = open.pop() {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        for tree in &trees {
            if let TokenTree::Group(group) = tree {
                open.push(group.stream());
            }
        }
        all.push(trees);
    }
    Ok(all)
}

/// The modules named as `std::module` or `std::{module…, …}` in one sequence, with their lines.
pub(crate) fn std_modules(sequence: &[TokenTree]) -> Vec<(usize, String)> {
    let mut modules = Vec::new();
    for window in sequence.windows(4) {
        let [root, first, second, rest] = window else { continue };
        if !(is_ident(root, "std") && is_punct(first, ':') && is_punct(second, ':')) {
            continue;
        }
        match rest {
            TokenTree::Ident(ident) => modules.push((line(rest), ident.to_string())),
            TokenTree::Group(group) => modules.extend(group.stream().into_iter().filter_map(|t| {
                let TokenTree::Ident(ident) = &t else { return None };
                Some((line(&t), ident.to_string()))
            })),
            _ => {}
        }
    }
    modules
}

/// Every Rust file of the repository.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    files.iter().filter(|file| file.extension() == "rs").flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Finding> {
    let sequences = match sequences(&file.text) {
        Ok(sequences) => sequences,
        Err(error) => return vec![Finding::new(&file.path, 1, error, "make it compile")],
    };
    let may_be_unsafe = crate_of(&file.path).is_some_and(|name| UNSAFE_CRATES.contains(&name));
    let mut findings = Vec::new();
    for sequence in &sequences {
        let mut found = |line, what: String, remedy: &str| {
            findings.push(Finding::new(&file.path, line, what, remedy));
        };
        for (line, name, lines) in long_functions(sequence) {
            let what = format!("fn {name} has {lines} lines, {MOST_LINES} are allowed");
            found(line, what, "give its parts names of their own");
        }
        for tree in sequence.iter().filter(|tree| is_ident(tree, "unsafe") && !may_be_unsafe) {
            let what = "`unsafe` outside of device and kernels".to_owned();
            found(line(tree), what, "offer a safe function there and call it here");
        }
        for (line, what) in unfinished(sequence).into_iter().chain(silenced(sequence)) {
            found(line, what, "finish it or remove it");
        }
    }
    findings
}

/// (line, name, lines) of each function in `sequence` with a body that is too long.
fn long_functions(sequence: &[TokenTree]) -> Vec<(usize, String, usize)> {
    let mut long = Vec::new();
    for (i, tree) in sequence.iter().enumerate() {
        // `fn(` is a type, not a function.
        let name = match sequence.get(i + 1) {
            Some(name) if is_ident(tree, "fn") && !matches!(name, TokenTree::Group(_)) => name,
            _ => continue,
        };
        let end = sequence[i..].iter().find(|tree| is_punct(tree, ';') || is_brace(tree));
        if let Some(body @ TokenTree::Group(_)) = end {
            let lines = body.span().end().line - line(tree) + 1;
            if lines > MOST_LINES {
                long.push((line(tree), name.to_string(), lines));
            }
        }
    }
    long
}

fn unfinished(sequence: &[TokenTree]) -> Vec<(usize, String)> {
    let pairs = sequence.windows(2).filter(|pair| is_punct(&pair[1], '!'));
    let calls = pairs.filter_map(|pair| {
        let name = UNFINISHED.iter().find(|name| is_ident(&pair[0], name))?;
        Some((line(&pair[0]), format!("`{name}!`")))
    });
    calls.collect()
}

/// Ignored tests, and lints about unused code that were switched off.
fn silenced(sequence: &[TokenTree]) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (i, tree) in sequence.iter().enumerate() {
        let next = match sequence.get(i + 1) {
            Some(TokenTree::Group(group)) => group,
            _ => continue,
        };
        let inside: Vec<TokenTree> = next.stream().into_iter().collect();
        let in_attribute = is_punct(tree, '#') || is_ident(tree, "cfg_attr");
        // The name of an attribute: first in its brackets, or after a comma of `cfg_attr`.
        let names = inside.iter().enumerate().filter(|(k, _)| *k == 0 || is_comma(&inside[k - 1]));
        if in_attribute && names.into_iter().any(|(_, name)| is_ident(name, "ignore")) {
            all.push((line(tree), "an ignored test".to_owned()));
        }
        if is_ident(tree, "allow") || is_ident(tree, "expect") {
            let lint = inside.iter().map(ToString::to_string);
            let lint = lint.into_iter().find(|l| l == "dead_code" || l.starts_with("unused"));
            all.extend(lint.map(|lint| (line(tree), format!("the lint `{lint}` is silenced"))));
        }
    }
    all
}

fn line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

fn is_ident(tree: &TokenTree, name: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == name)
}

fn is_punct(tree: &TokenTree, char: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == char)
}

fn is_comma(tree: &TokenTree) -> bool {
    is_punct(tree, ',')
}

fn is_brace(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check(&[File::new(path, text)]).into_iter().map(|f| (f.line, f.what)).collect()
    }

    fn whats(text: &str) -> Vec<String> {
        found("crates/model/src/a.rs", text).into_iter().map(|(_, what)| what).collect()
    }

    #[test]
    fn a_function_of_the_limit_passes_and_one_line_more_does_not() {
        let body = |lines: usize| format!("fn f() {{{}}}\n", "\n".repeat(lines - 1));
        assert!(whats(&body(MOST_LINES)).is_empty());
        assert_eq!(whats(&body(MOST_LINES + 1)), ["fn f has 71 lines, 70 are allowed"]);
    }

    #[test]
    fn functions_in_macros_and_tests_count_too() {
        let text =
            format!("proptest! {{\n #[test]\n fn p(x in 0..3) {{{}}}\n}}\n", "\n".repeat(80));
        assert_eq!(whats(&text), ["fn p has 81 lines, 70 are allowed"]);
    }

    #[test]
    fn declarations_and_function_types_are_no_bodies() {
        let rest = "\n".repeat(90);
        assert!(whats(&format!("trait T {{ fn f(&self); }}\nmod m {{{rest}}}\n")).is_empty());
        assert!(whats(&format!("type F = fn(u8);\nmod m {{{rest}}}\n")).is_empty());
    }

    #[test]
    fn unsafe_belongs_to_two_crates() {
        let text = "fn f() { unsafe { g() } }\n";
        assert!(found("crates/kernels/src/a.rs", text).is_empty());
        assert!(found("crates/device/src/a.rs", text).is_empty());
        let want = vec![(1, "`unsafe` outside of device and kernels".to_owned())];
        assert_eq!(found("crates/model/src/a.rs", text), want);
        assert_eq!(found("xtask/src/a.rs", text), want);
        assert!(whats("//! unsafe\nconst A: &str = \"unsafe\";\n").is_empty());
        assert!(whats("#![deny(unsafe_code)]\n").is_empty());
    }

    #[test]
    fn unfinished_code_is_found() {
        assert_eq!(whats("fn f() { todo!() }"), ["`todo!`"]);
        assert_eq!(whats("fn f() { unimplemented!(\"x\") }"), ["`unimplemented!`"]);
        assert_eq!(whats("fn f() { dbg!(1); }"), ["`dbg!`"]);
        assert!(whats("fn todo() -> bool { todo() != true }").is_empty());
    }

    #[test]
    fn ignored_tests_are_found() {
        let want = ["an ignored test"];
        assert_eq!(whats("#[test]\n#[ignore]\nfn f() {}\n"), want);
        assert_eq!(whats("#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"), want);
        assert_eq!(whats("#[cfg_attr(miri, ignore)]\nfn f() {}\n"), want);
        assert!(whats("fn f(ignore: u8) { g(ignore) }\n").is_empty());
    }

    #[test]
    fn silenced_lints_are_found() {
        assert_eq!(whats("#[allow(dead_code)]\nfn f() {}\n"), ["the lint `dead_code` is silenced"]);
        let text = "#![expect(missing_docs, unused_variables)]\n";
        assert_eq!(whats(text), ["the lint `unused_variables` is silenced"]);
        assert!(whats("#[allow(non_camel_case_types)]\nenum E {}\n").is_empty());
        assert!(whats("fn f() { x.expect(\"unused\") }\n").is_empty());
    }

    #[test]
    fn what_does_not_parse_is_found() {
        assert_eq!(whats("fn f( {\n").len(), 1);
    }
}
