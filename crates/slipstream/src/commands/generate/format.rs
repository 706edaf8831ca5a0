//! What the output must be, from the options that say so.

use crate::args::FormatArgs;
use crate::failure::Failure;
use engine::Constrained;
use model::tokenizer::Tokenizer;
use server::{Grammar, Grammars};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The constraint that `args` ask for; `None` when the output may be anything.
pub(super) fn read(
    args: &FormatArgs,
    tokenizer: &Arc<Tokenizer>,
) -> Result<Option<Constrained>, Failure> {
    let Some((option, grammar)) = grammar(args)? else { return Ok(None) };
    let compiled = Grammars::new(tokenizer.clone()).compile(&grammar);
    compiled.map(Some).map_err(|error| Failure::input(format!("{option}: {error}")))
}

fn grammar(args: &FormatArgs) -> Result<Option<(&'static str, Grammar)>, Failure> {
    Ok(match args {
        FormatArgs { json_schema: Some(path), .. } => {
            Some(("--json-schema", Grammar::Json(text("--json-schema", path)?)))
        }
        FormatArgs { regex: Some(regex), .. } => Some(("--regex", Grammar::Regex(regex.clone()))),
        FormatArgs { grammar: Some(path), .. } => {
            Some(("--grammar", Grammar::written(text("--grammar", path)?)))
        }
        FormatArgs { choice, .. } if !choice.is_empty() => {
            Some(("--choice", Grammar::choice(choice.iter().cloned())))
        }
        FormatArgs { .. } => None,
    })
}

fn text(option: &str, path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("{option}: {}: {error}", path.display())))
}
