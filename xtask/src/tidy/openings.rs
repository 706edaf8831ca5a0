//! Every source file opens with what it is for.

use crate::report::Finding;
use crate::tree::File;

/// How a file of a kind opens, and the words for it.
const OPENINGS: &[(&str, &[&str], &str)] = &[
    ("rs", &["//! "], "a `//!` line"),
    ("py", &["\"\"\"", "r\"\"\""], "a docstring"),
    ("cu", &["// ", "/* "], "a comment"),
    ("cuh", &["// ", "/* "], "a comment"),
];

/// Source files whose first line (after a `#!` of a script) is no description.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some((_, opens, name)) = OPENINGS.iter().find(|(e, ..)| *e == file.extension()) else {
            continue;
        };
        let mut lines = file.lines().skip_while(|(_, line)| {
            // `#![` is a Rust attribute, not the first line of a script.
            line.starts_with("#!") && !line.starts_with("#![")
        });
        let first = lines.next();
        if !first.is_some_and(|(_, line)| opens.iter().any(|open| line.starts_with(open))) {
            let number = first.map_or(1, |(number, _)| number);
            let what = format!("the file does not open with {name}");
            findings.push(Finding::new(&file.path, number, what, "say there what it is for"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[File::new(path, text)]).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn rust_opens_with_a_module_comment() {
        assert!(lines("a.rs", "//! Pages.\n").is_empty());
        assert_eq!(lines("a.rs", "#![no_std]\n//! Pages.\n"), [1]);
        assert_eq!(lines("a.rs", "fn main() {}\n"), [1]);
        assert_eq!(lines("a.rs", "//!\n"), [1]);
        assert_eq!(lines("a.rs", ""), [1]);
    }

    #[test]
    fn python_opens_with_a_docstring_after_its_script_line() {
        assert!(lines("a.py", "#!/usr/bin/env python3\n\"\"\"Makes fixtures.\"\"\"\n").is_empty());
        assert_eq!(lines("a.py", "#!/usr/bin/env python3\nimport os\n"), [2]);
    }

    #[test]
    fn other_kinds_are_free() {
        assert!(lines("a.toml", "[package]\n").is_empty());
    }
}
