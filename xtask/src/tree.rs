//! The files of the repository: what git tracks, and new files it does not ignore.

use std::path::Path;
use std::process::Command;

/// A text file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// Its contents.
    pub(crate) text: String,
}

impl File {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    /// The part of the name after the last dot; empty without one.
    pub(crate) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Lines with their numbers, from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }
}

/// Reads the repository at `root`. Binary files keep their path and have no text, so that links
/// to them resolve.
pub(crate) fn load(root: &Path) -> Result<Vec<File>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git could not be started ({error}): install it"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git ls-files failed: {}", said.trim()));
    }
    let names = String::from_utf8(output.stdout).map_err(|_| "a path is not UTF-8: rename it")?;
    let mut files = Vec::new();
    for path in names.split('\0').filter(|path| !path.is_empty()) {
        let on_disk = root.join(path);
        // Deleted but not yet committed, or a link to a folder: nothing to read.
        if !on_disk.is_file() {
            continue;
        }
        let bytes = std::fs::read(&on_disk).map_err(|error| format!("{path}: {error}"))?;
        let text = String::from_utf8(bytes).unwrap_or_default();
        files.push(File { path: path.to_owned(), text });
    }
    if files.is_empty() {
        return Err(format!("{} holds no tracked file", root.display()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_are_of_the_name_not_of_the_folder() {
        assert_eq!(File::new("a.d/run", "").extension(), "");
        assert_eq!(File::new("a/b.tar.gz", "").extension(), "gz");
    }

    #[test]
    fn the_repository_holds_this_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a parent");
        let files = load(root).expect("git lists the repository");
        let this = files.iter().find(|file| file.path == "xtask/src/tree.rs").expect("listed");
        assert!(this.text.starts_with("//! The files of the repository"));
    }
}
