//! Every external dependency has a comment directly above it that says why it is there. A
//! dependency whose name extends the one above it (`serde`, `serde_json`) shares its comment.

use crate::report::Finding;
use crate::tree::File;
use toml_edit::{Document, Item, TableLike};

const SECTIONS: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// One entry of a dependency section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// The key.
    pub(crate) name: String,
    /// The section it stands in, without `workspace.` or `target.….`.
    pub(crate) section: &'static str,
    /// `path = …`, for crates of this repository.
    pub(crate) path: Option<String>,
    /// Inherited: `workspace = true`.
    pub(crate) workspace: bool,
    /// Line of the key.
    pub(crate) line: usize,
}

/// Every dependency that a manifest names, in the order of its lines.
///
/// # Errors
/// A manifest that is not TOML.
pub(crate) fn dependencies(text: &str) -> Result<Vec<Dependency>, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let root = document.as_table();
    let mut tables: Vec<&dyn TableLike> = vec![root];
    tables.extend(root.get("workspace").and_then(Item::as_table_like));
    if let Some(targets) = root.get("target").and_then(Item::as_table_like) {
        tables.extend(targets.iter().filter_map(|(_, target)| target.as_table_like()));
    }
    let mut all = Vec::new();
    for table in tables {
        for section in SECTIONS {
            let Some(entries) = table.get(section).and_then(Item::as_table_like) else { continue };
            all.extend(
                entries.iter().map(|(name, item)| entry(text, section, entries, name, item)),
            );
        }
    }
    all.sort_by_key(|dependency| dependency.line);
    Ok(all)
}

fn entry(
    text: &str,
    section: &'static str,
    entries: &dyn TableLike,
    name: &str,
    item: &Item,
) -> Dependency {
    let field = |key: &str| item.as_table_like().and_then(|table| table.get(key));
    let start = entries.key(name).and_then(|key| key.span()).map_or(0, |span| span.start);
    Dependency {
        name: name.to_owned(),
        section,
        path: field("path").and_then(Item::as_str).map(str::to_owned),
        workspace: field("workspace").and_then(Item::as_bool).unwrap_or(false),
        line: text[..start].matches('\n').count() + 1,
    }
}

/// Each `Cargo.toml` of the repository.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let manifests =
        files.iter().filter(|f| f.path == "Cargo.toml" || f.path.ends_with("/Cargo.toml"));
    manifests.flat_map(reasons).collect()
}

fn reasons(file: &File) -> Vec<Finding> {
    let all = match dependencies(&file.text) {
        Ok(all) => all,
        Err(error) => return vec![Finding::new(&file.path, 1, error, "write valid TOML")],
    };
    let lines: Vec<&str> = file.text.lines().collect();
    let commented = |line: usize| line >= 2 && lines[line - 2].trim_start().starts_with('#');
    let mut findings = Vec::new();
    // The last dependency with a reason, and the line that one sharing it would stand on.
    let mut above: Option<(String, usize)> = None;
    for dependency in all.iter().filter(|d| d.path.is_none() && !d.workspace) {
        let shares = above.as_ref().is_some_and(|(name, next)| {
            dependency.line == *next && dependency.name.starts_with(name.as_str())
        });
        if commented(dependency.line) {
            above = Some((dependency.name.clone(), dependency.line + 1));
        } else if shares {
            above = above.map(|(name, next)| (name, next + 1));
        } else {
            let what = format!("the dependency `{}` gives no reason", dependency.name);
            let remedy = "say in one comment line above it what it is for, or do without it";
            findings.push(Finding::new(&file.path, dependency.line, what, remedy));
            above = None;
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let found = check(&[File::new("crates/a/Cargo.toml", text)]);
        found.iter().map(|f| format!("{} {}", f.line, f.what)).collect()
    }

    #[test]
    fn a_comment_directly_above_is_a_reason() {
        assert!(names("[dependencies]\n# Errors.\nthiserror = \"2\"\n").is_empty());
        assert!(names("# Errors.\n[dependencies.thiserror]\nversion = \"2\"\n").is_empty());
    }

    #[test]
    fn without_a_comment_it_is_found() {
        let found = names("[dependencies]\n# Errors.\nthiserror = \"2\"\nrand = \"0.9\"\n");
        assert_eq!(found, ["4 the dependency `rand` gives no reason"]);
        let found = names("[target.'cfg(unix)'.dev-dependencies]\nlibc = \"0.2\"\n");
        assert_eq!(found, ["2 the dependency `libc` gives no reason"]);
    }

    #[test]
    fn a_family_shares_one_comment() {
        let text = "[workspace.dependencies]\n# JSON.\nserde = { version = \"1\" }\n\
            serde_json = \"1\"\nserde_yaml = \"1\"\n";
        assert!(names(text).is_empty());
        assert_eq!(
            names("[dependencies]\n# JSON.\nserde = \"1\"\n\nserde_json = \"1\"\n").len(),
            1
        );
    }

    #[test]
    fn the_house_and_inherited_entries_need_none() {
        let text = "[dependencies]\na = { path = \"../a\" }\nserde.workspace = true\n\
            tokio = { workspace = true, features = [\"rt\"] }\n";
        assert!(names(text).is_empty());
        let all = dependencies(text).expect("valid");
        assert_eq!(all.iter().map(|d| d.line).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(all[0].path.as_deref(), Some("../a"));
        assert!(all[1].workspace && all[2].workspace);
    }

    #[test]
    fn a_broken_manifest_is_found() {
        assert_eq!(names("[dependencies\n").len(), 1);
    }
}
