//! The checks of `tidy`. Each takes the files of the repository and returns what it found, so
//! that its tests need no disk.

mod imports;
mod links;
mod manifests;
mod openings;
mod places;
mod readme;
mod sizes;
mod source;
mod words;

use crate::report::Finding;
use crate::tree::File;

/// Runs every check; sorted by file and line.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let checks = [
        imports::check,
        links::check,
        manifests::check,
        openings::check,
        places::check,
        readme::check,
        sizes::check,
        source::check,
        words::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(files)).collect();
    findings.sort_by(|a, b| (&a.file, a.line, &a.what).cmp(&(&b.file, b.line, &b.what)));
    findings
}

/// `crates/NAME/…` → `NAME`.
fn crate_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split_once('/').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_all_checks_come_sorted() {
        let files = [
            File::new("crates/model/src/b.rs", "fn f() {}\n"),
            File::new("crates/model/src/a.rs", "//! A.\nfn f() { todo!() }\n"),
        ];
        let found = check(&files);
        let places: Vec<_> = found.iter().map(|f| (f.file.as_str(), f.line)).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert!(places.contains(&("crates/model/src/a.rs", 2)));
        assert!(places.contains(&("crates/model/src/b.rs", 1)));
    }
}
