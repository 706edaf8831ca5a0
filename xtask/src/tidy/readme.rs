//! The README's test command is the one that the gate runs.
//!
//! In `README.md` the fenced block after `<!-- test-command -->`, in `.ci/run` the lines between
//! `# <test-command>` and `# </test-command>`.

use crate::report::Finding;
use crate::tree::File;

const README: &str = "README.md";
const GATE: &str = ".ci/run";

/// Both files hold the command, and it is the same.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let read = |path: &str, from: fn(&str) -> Option<Vec<&str>>, marks: &str| {
        let file = files.iter().find(|file| file.path == path);
        let Some(file) = file else {
            return Err(Finding::new(path, 1, "the file is missing", "write it"));
        };
        from(&file.text).filter(|command| !command.is_empty()).ok_or_else(|| {
            Finding::new(path, 1, "no test command", format!("put one between {marks}"))
        })
    };
    let told = read(README, in_readme, "`<!-- test-command -->` and the end of a fenced block");
    let run = read(GATE, in_gate, "`# <test-command>` and `# </test-command>`");
    match (told, run) {
        (Ok(told), Ok(run)) if told == run => vec![],
        (Ok(told), Ok(run)) => {
            let what =
                format!("tests are `{}`, the gate runs `{}`", told.join("; "), run.join("; "));
            vec![Finding::new(README, 1, what, "make the two the same")]
        }
        (told, run) => told.err().into_iter().chain(run.err()).collect(),
    }
}

fn in_readme(text: &str) -> Option<Vec<&str>> {
    let mut lines = text.lines().skip_while(|line| line.trim() != "<!-- test-command -->").skip(1);
    lines.find(|line| !line.trim().is_empty()).filter(|line| line.starts_with("```"))?;
    Some(lines.take_while(|line| !line.starts_with("```")).map(str::trim).collect())
}

fn in_gate(text: &str) -> Option<Vec<&str>> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| *line == "# <test-command>")?;
    Some(lines.take_while(|line| *line != "# </test-command>").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(readme: &str, gate: &str) -> Vec<String> {
        let files = [File::new(README, readme), File::new(GATE, gate)];
        check(&files).into_iter().map(|finding| finding.what).collect()
    }

    const TOLD: &str = "# S\n<!-- test-command -->\n\n```sh\ncargo test --release\n```\nmore\n";

    #[test]
    fn the_same_command_passes() {
        let gate = "x\n# <test-command>\n  cargo test --release\n# </test-command>\ny\n";
        assert!(whats(TOLD, gate).is_empty());
    }

    #[test]
    fn another_command_is_found() {
        let gate = "# <test-command>\ncargo test\n# </test-command>\n";
        assert_eq!(
            whats(TOLD, gate),
            ["tests are `cargo test --release`, the gate runs `cargo test`"]
        );
    }

    #[test]
    fn a_missing_marker_or_file_is_found() {
        assert_eq!(whats("```sh\ncargo test\n```\n", "cargo test\n"), ["no test command"; 2]);
        assert_eq!(whats(TOLD, "# <test-command>\n# </test-command>\n"), ["no test command"]);
        assert_eq!(check(&[]).len(), 2);
    }
}
