//! Files a reader can hold in the head: at most [`MOST_LINES`] lines of source.

use crate::report::Finding;
use crate::tree::File;

/// Lines of one source file.
const MOST_LINES: usize = 600;

const SOURCES: &[&str] = &["rs", "py", "cu", "cuh"];

/// Source files over [`MOST_LINES`].
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let sources = files.iter().filter(|file| SOURCES.contains(&file.extension()));
    let long = sources.filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > MOST_LINES).then(|| {
            let what = format!("{lines} lines, {MOST_LINES} are allowed");
            Finding::new(&file.path, MOST_LINES + 1, what, "split it by what its parts are for")
        })
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_itself_is_allowed_and_one_more_is_not() {
        let at = File::new("a.rs", &"\n".repeat(MOST_LINES));
        let over = File::new("b.py", &"\n".repeat(MOST_LINES + 1));
        let data = File::new("c.json", &"\n".repeat(MOST_LINES + 1));
        let found = check(&[at, over, data]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, "b.py");
        assert!(found[0].what.starts_with("601 lines"));
    }
}
