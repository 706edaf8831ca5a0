//! Models split over several GGUF files: `NAME-00001-of-00003.gguf` and so on, as
//! `gguf-split` names them. The first part has the metadata; every part has its own tensors.

use super::metadata::Metadata;
use crate::error::LoadError;
use std::path::{Path, PathBuf};

/// Parts of a split model at most: the name has five digits.
const MAX_PARTS: usize = 99_999;

/// A file's place among the parts of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 0.
    pub(super) index: usize,
    /// Parts of the model; 1 for a whole one.
    pub(super) count: usize,
}

impl Place {
    /// What the metadata say.
    ///
    /// # Errors
    /// Keys of another type or that contradict each other.
    pub(super) fn of(metadata: &Metadata) -> Result<Place, LoadError> {
        // 0 is what a file that was never split may say.
        let count = metadata.u32("split.count")?.unwrap_or(1).max(1) as usize;
        let index = metadata.u32("split.no")?.unwrap_or(0) as usize;
        if count > MAX_PARTS || index >= count {
            return Err(LoadError::new(
                metadata.path(),
                "split.no",
                format!("is {index} of {count} parts, which cannot be"),
            ));
        }
        Ok(Place { index, count })
    }
}

/// The part of a file name before `-00001-of-00003.gguf`, and the place it claims.
pub(super) fn parse_name(name: &str) -> Option<(&str, Place)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (prefix, index) = rest.rsplit_once('-')?;
    let number = |digits: &str| -> Option<usize> {
        (digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()))
            .then(|| digits.parse().ok())
            .flatten()
    };
    let (index, count) = (number(index)?.checked_sub(1)?, number(count)?);
    (index < count).then_some((prefix, Place { index, count }))
}

/// The paths of all parts of the model that `path`, placed at `place`, belongs to.
///
/// # Errors
/// A file that was renamed, so that the others cannot be found.
pub(super) fn siblings(path: &Path, place: Place) -> Result<Vec<PathBuf>, LoadError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match parse_name(name) {
        Some((prefix, claimed)) if claimed == place => Ok((1..=place.count)
            .map(|part| path.with_file_name(file_name(prefix, part, place.count)))
            .collect()),
        _ => Err(LoadError::new(
            path,
            "split.count",
            format!(
                "the file is part {} of {}; its name must end in `{}` for the others to be found",
                place.index + 1,
                place.count,
                file_name("", place.index + 1, place.count),
            ),
        )),
    }
}

fn file_name(prefix: &str, part: usize, count: usize) -> String {
    format!("{prefix}-{part:05}-of-{count:05}.gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_their_place() {
        assert_eq!(
            parse_name("a-b-00002-of-00003.gguf"),
            Some(("a-b", Place { index: 1, count: 3 }))
        );
        for other in [
            "a.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-2-of-3.gguf",
            "a-0000x-of-00003.gguf",
            "a-00001-of-00003.bin",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
