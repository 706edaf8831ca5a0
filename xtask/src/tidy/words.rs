//! Notes to oneself in source: work that is not done belongs in an issue, not in a file.

use crate::report::Finding;
use crate::tree::File;

const NOTES: &[&str] = &["TODO", "FIXME", "XXX"];

/// Files of these kinds are read.
const SOURCES: &[&str] = &["rs", "py", "cu", "cuh", "sh", "toml"];

/// This file names the words.
const ALLOWED: &str = "xtask/src/tidy/words.rs";

/// Source files and scripts that hold one of [`NOTES`] as a word.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let read = |file: &&File| {
        (SOURCES.contains(&file.extension()) || file.path.starts_with(".ci/"))
            && file.path != ALLOWED
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(read) {
        for (number, line) in file.lines() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if let Some(word) = words.find(|word| NOTES.contains(word)) {
                let what = format!("the note `{word}`");
                findings.push(Finding::new(&file.path, number, what, "do it, or file an issue"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_as_whole_words() {
        let files = [
            File::new("a.rs", "// fine\n// TODO: more\nlet TODOS = 1;\n"),
            File::new("b.py", "x = 1  # FIXME(me)\n"),
            File::new(".ci/run", "# XXX\n"),
            File::new("c.md", "no TODO in source\n"),
        ];
        let found: Vec<_> = check(&files).into_iter().map(|f| (f.file, f.line, f.what)).collect();
        let want = [
            ("a.rs".to_owned(), 2, "the note `TODO`".to_owned()),
            ("b.py".to_owned(), 1, "the note `FIXME`".to_owned()),
            (".ci/run".to_owned(), 1, "the note `XXX`".to_owned()),
        ];
        assert_eq!(found, want);
    }
}
