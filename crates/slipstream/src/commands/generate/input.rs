//! Where the prompts come from: the argument, a file, ids, a batch, or standard input.

use crate::args::InputArgs;
use crate::failure::Failure;
use serde::Deserialize;
use std::fs;
use std::io::{IsTerminal, Read, stdin};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A line of a batch: exactly one of the two.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    ids: Option<Vec<u32>>,
}

/// At least one prompt.
pub(super) fn read(args: &InputArgs) -> Result<Vec<Prompt>, Failure> {
    if let Some(path) = &args.batch {
        return batch(&contents(path)?, path);
    }
    let prompt = if !args.ids.is_empty() {
        Prompt::Ids(args.ids.clone())
    } else if let Some(path) = &args.file {
        Prompt::Text(contents(path)?)
    } else {
        match args.prompt.as_deref() {
            Some("-") => Prompt::Text(contents(Path::new("-"))?),
            Some(text) => Prompt::Text(text.to_owned()),
            None if stdin().is_terminal() => {
                return Err(Failure::input(
                    "no prompt: give it as an argument, with --file, --ids or --batch, or on \
                     standard input",
                ));
            }
            None => Prompt::Text(contents(Path::new("-"))?),
        }
    };
    // Found before any model is loaded.
    if prompt == Prompt::Text(String::new()) {
        return Err(Failure::input("prompt: is empty; give at least one token"));
    }
    Ok(vec![prompt])
}

/// The text of a file, or of standard input for `-`.
fn contents(path: &Path) -> Result<String, Failure> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let name =
        if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
    read.map_err(|error| Failure::Input(format!("{name}: {error}")))
}

fn batch(text: &str, path: &Path) -> Result<Vec<Prompt>, Failure> {
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let problem = |what: String| {
            Failure::Input(format!("--batch {}: line {}: {what}", path.display(), number + 1))
        };
        let line: Line = serde_json::from_str(line).map_err(|error| problem(error.to_string()))?;
        prompts.push(match (line.prompt, line.ids) {
            (Some(text), None) => Prompt::Text(text),
            (None, Some(ids)) => Prompt::Ids(ids),
            _ => return Err(problem("give either \"prompt\" or \"ids\"".into())),
        });
    }
    if prompts.is_empty() {
        return Err(Failure::Input(format!("--batch {}: holds no line", path.display())));
    }
    Ok(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_line_by_line() {
        let read = |text| batch(text, Path::new("b.jsonl"));
        assert_eq!(
            read("{\"prompt\": \"a\"}\n\n{\"ids\": [1, 2]}\n").unwrap(),
            [Prompt::Text("a".into()), Prompt::Ids(vec![1, 2])]
        );
        for (text, says) in [
            ("", "holds no line"),
            ("{\"prompt\": \"a\"}\n{", "line 2: "),
            ("{}", "line 1: give either"),
            ("{\"prompt\": \"a\", \"ids\": [1]}", "give either"),
            ("{\"promt\": \"a\"}", "unknown field `promt`"),
            ("{\"ids\": [-1]}", "line 1: "),
        ] {
            let Err(Failure::Input(problem)) = read(text) else { panic!("{text:?} was accepted") };
            assert!(problem.starts_with("--batch b.jsonl") && problem.contains(says), "{problem}");
        }
    }
}
