//! Which crate may import which: the arrows of ARCHITECTURE.md, held by a table.
//!
//! The pure crates also stay off the operating system: a clock or a file in a planner would make
//! its results depend on more than its arguments.

use super::crate_of;
use super::manifests::{Dependency, dependencies};
use super::source::{sequences, std_modules};
use crate::report::Finding;
use crate::tree::File;

/// A crate (by its folder) and the house's crates it may depend on. `device` and `schedule` stand
/// together in `engine`'s row only.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("cache", &[]),
    ("constrain", &[]),
    ("device", &[]),
    ("fetch", &[]),
    ("schedule", &["cache"]),
    ("kernels", &["device"]),
    ("model", &["device", "kernels"]),
    ("engine", &["device", "kernels", "model", "cache", "schedule"]),
    ("server", &["device", "kernels", "model", "engine", "constrain"]),
    ("telemetry", &["device", "engine", "server"]),
    ("slipstream", &["device", "kernels", "model", "engine", "server", "telemetry", "fetch"]),
];

/// Tests of any crate may get the default pair.
const TESTS_MAY_IMPORT: &str = "fetch";

/// Crates without a device, a clock, a file or a thread.
const PURE: &[&str] = &["cache", "schedule"];

/// What a pure crate leaves alone, as `std::…`.
const IMPURE_MODULES: &[&str] = &["env", "fs", "net", "process", "thread"];

/// `std::time::Duration` is plain data; these two read a clock.
const CLOCKS: &[&str] = &["Instant", "SystemTime"];

/// Manifests against [`MAY_IMPORT`], sources of [`PURE`] crates against the operating system.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let house = house_names(files);
    let manifests = files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let mut findings: Vec<Finding> = manifests
        .filter_map(|file| crate_of(&file.path).map(|name| (name, file)))
        .flat_map(|(name, file)| imports_of(name, file, &house))
        .collect();
    let sources = files.iter().filter(|file| file.extension() == "rs");
    for file in sources.filter(|file| crate_of(&file.path).is_some_and(|c| PURE.contains(&c))) {
        findings.extend(impurities(file));
    }
    findings
}

/// Keys of the root's `[workspace.dependencies]` that lie in the repository, with their folder.
fn house_names(files: &[File]) -> Vec<(String, String)> {
    let root = files.iter().find(|file| file.path == "Cargo.toml");
    // A root that does not parse is reported by the check of the manifests.
    let all = root.and_then(|file| dependencies(&file.text).ok()).unwrap_or_default();
    all.into_iter().filter_map(|d| d.path.map(|path| (d.name, folder(&path).to_owned()))).collect()
}

fn folder(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

fn imports_of(name: &str, file: &File, house: &[(String, String)]) -> Vec<Finding> {
    let Some((_, may)) = MAY_IMPORT.iter().find(|(row, _)| *row == name) else {
        let what = format!("the crate `{name}` has no row in the table of imports");
        let remedy = "add it to MAY_IMPORT in xtask/src/tidy/imports.rs and to ARCHITECTURE.md";
        return vec![Finding::new(&file.path, 1, what, remedy)];
    };
    let target = |dependency: &Dependency| match &dependency.path {
        Some(path) => Some(folder(path).to_owned()),
        None if dependency.workspace => {
            house.iter().find(|(key, _)| *key == dependency.name).map(|(_, folder)| folder.clone())
        }
        None => None,
    };
    let mut findings = Vec::new();
    for dependency in dependencies(&file.text).unwrap_or_default() {
        let Some(imported) = target(&dependency) else { continue };
        let for_tests = dependency.section == "dev-dependencies" && imported == TESTS_MAY_IMPORT;
        if !may.contains(&imported.as_str()) && !for_tests {
            let what = format!("`{name}` imports `{imported}`, against the direction of imports");
            let remedy = "use what the crates below hand up, or move the code to where both meet";
            findings.push(Finding::new(&file.path, dependency.line, what, remedy));
        }
    }
    findings
}

fn impurities(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, name: &str| {
        let what = format!("`{name}` in a pure crate");
        let remedy = "let the engine measure or read it and pass the value in";
        findings.push(Finding::new(&file.path, line, what, remedy));
    };
    // A file that does not parse is reported by the check of the source.
    for sequence in sequences(&file.text).unwrap_or_default() {
        for (line, module) in std_modules(&sequence) {
            if IMPURE_MODULES.contains(&module.as_str()) {
                found(line, &format!("std::{module}"));
            }
        }
        for tree in &sequence {
            let proc_macro2::TokenTree::Ident(ident) = tree else { continue };
            if let Some(clock) = CLOCKS.iter().find(|clock| ident == **clock) {
                found(ident.span().start().line, clock);
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> File {
        let text = "[workspace.dependencies]\n\
            device = { package = \"slipstream-device\", path = \"crates/device\" }\n\
            cache = { path = \"crates/cache\" }\n\
            schedule = { path = \"crates/schedule\" }\n\
            fetch = { path = \"crates/fetch\" }\n\
            serde = \"1\"\n";
        File::new("Cargo.toml", text)
    }

    fn manifest(name: &str, text: &str) -> Vec<Finding> {
        check(&[root(), File::new(&format!("crates/{name}/Cargo.toml"), text)])
    }

    #[test]
    fn arrows_down_are_allowed() {
        let text = "[dependencies]\ncache.workspace = true\nserde.workspace = true\n";
        assert_eq!(manifest("schedule", text), []);
    }

    #[test]
    fn arrows_up_are_found_with_their_line() {
        let found = manifest("cache", "[dependencies]\nschedule.workspace = true\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].what.contains("`cache` imports `schedule`"), "{}", found[0]);
    }

    #[test]
    fn a_path_beside_the_workspace_table_is_seen() {
        let text = "[target.'cfg(unix)'.dependencies]\nx = { path = \"../device\" }\n";
        let found = manifest("schedule", text);
        assert!(found[0].what.contains("`schedule` imports `device`"), "{}", found[0]);
    }

    #[test]
    fn only_tests_may_fetch() {
        assert_eq!(manifest("engine", "[dev-dependencies]\nfetch.workspace = true\n"), []);
        assert_eq!(manifest("engine", "[dependencies]\nfetch.workspace = true\n").len(), 1);
        assert_eq!(manifest("slipstream", "[dependencies]\nfetch.workspace = true\n"), []);
    }

    #[test]
    fn an_unknown_crate_is_found() {
        let found = manifest("extra", "[package]\nname = \"extra\"\n");
        assert!(found[0].what.contains("no row"), "{}", found[0]);
    }

    #[test]
    fn rows_import_only_rows_above_them_and_two_sides_meet_once() {
        for (i, (name, may)) in MAY_IMPORT.iter().enumerate() {
            for imported in *may {
                let row = MAY_IMPORT.iter().position(|(row, _)| row == imported);
                // `fetch` and the pure crates are leaves; every other row follows what it uses.
                assert!(row.is_some_and(|row| row < i), "{name} imports {imported}");
            }
            let both = may.contains(&"device") && may.contains(&"schedule");
            assert_eq!(both, *name == "engine", "{name}");
        }
    }

    #[test]
    fn pure_crates_read_no_clock_and_no_file() {
        let text = "//! Pages.\nuse std::{fs::File, time::Duration};\nfn now() -> Instant {}\n";
        let found = check(&[File::new("crates/cache/src/a.rs", text)]);
        let whats: Vec<_> = found.iter().map(|f| f.what.as_str()).collect();
        assert_eq!(whats, ["`std::fs` in a pure crate", "`Instant` in a pure crate"]);
        assert_eq!(check(&[File::new("crates/engine/src/a.rs", text)]), []);
    }
}
