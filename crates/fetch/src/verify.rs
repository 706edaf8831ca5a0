//! Checks a model's files against their known lengths and checksums. A file that passed leaves a
//! small mark (its path, length and time of change), so that it is not read through again at each
//! start.

use crate::known::{Known, KnownFile};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Whether the marks of earlier checks count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Read a file through unless it is marked and unchanged.
    Marked,
    /// Read every file through.
    Full,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// There is none.
    Missing,
    /// It is not the file that it should be, or cannot be read.
    Damaged(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Missing => f.write_str("not there"),
            Flaw::Damaged(how) => write!(f, "damaged: {how}"),
        }
    }
}

impl From<io::Error> for Flaw {
    fn from(error: io::Error) -> Flaw {
        match error.kind() {
            io::ErrorKind::NotFound => Flaw::Missing,
            _ => Flaw::Damaged(error.to_string()),
        }
    }
}

/// Checks `file` of a known model at `path`; `marks` is the folder of marks.
pub(crate) fn file(path: &Path, file: &KnownFile, marks: &Path, check: Check) -> Result<(), Flaw> {
    let metadata = fs::metadata(path)?;
    if metadata.len() != file.size {
        let (found, size) = (metadata.len(), file.size);
        return Err(Flaw::Damaged(format!("{found} bytes instead of {size}")));
    }
    let mark = marks.join(file.sha256);
    let seen = description(path, &metadata);
    if check == Check::Marked && fs::read_to_string(&mark).is_ok_and(|text| text == seen) {
        return Ok(());
    }
    let found = sha256(path)?;
    if found != file.sha256 {
        let _ = fs::remove_file(&mark);
        return Err(Flaw::Damaged(format!("sha256 {found} instead of {}", file.sha256)));
    }
    write_mark(&mark, &seen);
    Ok(())
}

/// Marks `file` at `path` as checked: for a checked file that was moved.
pub(crate) fn mark(path: &Path, file: &KnownFile, marks: &Path) {
    if let Ok(metadata) = fs::metadata(path) {
        write_mark(&marks.join(file.sha256), &description(path, &metadata));
    }
}

/// A cache that cannot be written costs a check at each start, nothing else.
fn write_mark(mark: &Path, text: &str) {
    let folder = mark.parent().expect("a mark lies in the folder of marks");
    let _ = fs::create_dir_all(folder).and_then(|()| fs::write(mark, text));
}

/// Checks every file of `known` in `folder`; the error also tells which file.
pub(crate) fn folder(
    folder: &Path,
    known: &Known,
    marks: &Path,
    check: Check,
) -> Result<(), (PathBuf, Flaw)> {
    for entry in known.files {
        let path = folder.join(entry.name);
        file(&path, entry, marks, check).map_err(|flaw| (path, flaw))?;
    }
    Ok(())
}

/// The SHA-256 of a file in lower-case hexadecimal digits.
pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn description(path: &Path, metadata: &fs::Metadata) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let changed = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |age| age.as_nanos());
    format!("{}\n{}\n{changed}\n", path.display(), metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    // "hello" and its published digest.
    const HELLO: KnownFile = KnownFile {
        name: "hello",
        size: 5,
        sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    };

    #[test]
    fn damage_of_either_kind_is_found_and_a_mark_spares_the_reading() {
        let temp = tempfile::tempdir().unwrap();
        let (path, marks) = (temp.path().join("hello"), temp.path().join("marks"));
        let check = |check| file(&path, &HELLO, &marks, check);
        assert_eq!(check(Check::Marked), Err(Flaw::Missing));

        fs::write(&path, "hell").unwrap();
        assert_eq!(check(Check::Marked), Err(Flaw::Damaged("4 bytes instead of 5".into())));

        fs::write(&path, "jello").unwrap();
        let flaw = check(Check::Marked).unwrap_err().to_string();
        assert!(flaw.starts_with("damaged: sha256 "), "{flaw}");

        fs::write(&path, "hello").unwrap();
        assert_eq!(check(Check::Marked), Ok(()));
        assert!(marks.join(HELLO.sha256).exists());

        // The mark vouches for this length and time of change only.
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, "jello").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(before).unwrap();
        assert_eq!(check(Check::Marked), Ok(()), "same length and time: the mark counts");
        assert!(check(Check::Full).is_err(), "a full check reads the file");
        file.set_modified(before + std::time::Duration::from_secs(1)).unwrap();
        assert!(check(Check::Marked).is_err(), "another time: the mark does not count");
    }
}
