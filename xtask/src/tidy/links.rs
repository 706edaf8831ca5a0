//! Relative links in Markdown: the file exists, and so does the heading behind a `#`.

use crate::report::Finding;
use crate::tree::File;
use std::collections::HashMap;

/// Every `.md` file of the repository.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let by_path: HashMap<&str, &File> = files.iter().map(|f| (f.path.as_str(), f)).collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.extension() == "md") {
        for (line, target) in links(&file.text) {
            if let Some(what) = problem(file, &target, files, &by_path) {
                let remedy = "correct the link, or add what it points to";
                findings.push(Finding::new(&file.path, line, what, remedy));
            }
        }
    }
    findings
}

fn problem(
    file: &File,
    target: &str,
    files: &[File],
    by_path: &HashMap<&str, &File>,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = resolve(&file.path, path) else {
        return Some(format!("the link `{target}` leaves the repository"));
    };
    let folder = path.is_empty() || files.iter().any(|f| f.path.starts_with(&format!("{path}/")));
    match by_path.get(path.as_str()) {
        None if folder => None,
        None => Some(format!("the link `{target}` leads nowhere")),
        Some(to) if heading.is_empty() || to.extension() != "md" => None,
        Some(to) => {
            let known = prose(&to.text).iter().any(|(_, line)| slug(line) == Some(heading.into()));
            (!known).then(|| format!("the link `{target}` names no heading of that file"))
        }
    }
}

/// `to`, as written in the file `from`, relative to the root; `None` when it lies outside.
fn resolve(from: &str, to: &str) -> Option<String> {
    if to.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    (!to.starts_with('/')).then(|| parts.join("/"))
}

/// The lines of `text` outside of code fences, with code spans blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((i + 1, line.to_owned()));
        }
    }
    lines
}

fn links(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    for (number, line) in prose(text) {
        // Odd pieces between backticks are code.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, mark) in line.match_indices("](") {
            let rest = &line[at + mark.len()..];
            let target = rest.split([')', ' ']).next().unwrap_or(rest);
            all.push((number, target.to_owned()));
        }
        // A definition: `[name]: target`.
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            all.push((number, target.trim().to_owned()));
        }
    }
    all
}

/// A heading's anchor as GitHub makes it; `None` for other lines.
fn slug(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#');
    if title.len() == line.len() || !title.starts_with(' ') {
        return None;
    }
    let kept = title.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(text: &str) -> Vec<String> {
        let files = [
            File::new("docs/a.md", text),
            File::new("docs/concepts/b.md", "# B\n\n## Draft `width`, verify width\n"),
            File::new("README.md", "# R\n"),
            File::new("image.png", ""),
        ];
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn links_that_resolve_pass() {
        let text = "[b](concepts/b.md) [r](../README.md#r) ![i](../image.png \"t\") [d](concepts/)\n\
            [h](concepts/b.md#draft-width-verify-width) [w](https://a.org/x) [s](#top)\n\n# Top\n\n\
            [m]: ../README.md\n";
        assert_eq!(whats(text), Vec::<String>::new());
    }

    #[test]
    fn links_that_do_not_are_found() {
        assert_eq!(whats("\n[c](c.md)\n"), ["the link `c.md` leads nowhere"]);
        assert_eq!(whats("[c](../../x.md)"), ["the link `../../x.md` leaves the repository"]);
        assert_eq!(whats("[c](/README.md)"), ["the link `/README.md` leaves the repository"]);
        assert_eq!(whats("[c]: nothing.md"), ["the link `nothing.md` leads nowhere"]);
        let heading = "the link `concepts/b.md#c` names no heading of that file";
        assert_eq!(whats("[c](concepts/b.md#c)"), [heading]);
    }

    #[test]
    fn code_is_not_read() {
        assert!(whats("```\n[c](c.md)\n```\n`[c](c.md)`\n").is_empty());
    }
}
