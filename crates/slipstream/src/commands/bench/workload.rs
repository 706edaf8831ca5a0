//! Prompts of a benchmark, and the engine that runs them several at a time.

use crate::args::{ModelArgs, WorkloadArgs};
use crate::failure::Failure;
use crate::session::{engine, load};
use engine::draft::Drafter;
use engine::{Engine, EngineOptions, Limits, Pair, Request, Sampling, Speculation, Stops};
use model::chat::{ChatOptions, Message};
use serde::Deserialize;
use std::path::Path;

/// Prompts that the default drafter was not trained on.
const HELDOUT: &str = include_str!("../../../../../models/heldout-prompts.jsonl");

/// One line of the prompt file.
#[derive(Deserialize)]
pub(super) struct Line {
    pub(super) topic: String,
    pub(super) prompt: String,
}

/// A prompt as the model reads it.
pub(crate) struct Prompt {
    pub(crate) topic: String,
    pub(crate) ids: Vec<u32>,
}

/// The prompts of a run and how long their answers may be.
pub(crate) struct Workload {
    pub(crate) prompts: Vec<Prompt>,
    ends: Vec<u32>,
    max_tokens: usize,
    running: usize,
}

impl Workload {
    /// Reads the prompts and puts them into the model's chat format.
    pub(crate) fn read(args: &WorkloadArgs, pair: &Pair) -> Result<Workload, Failure> {
        let lines = lines(args.prompts.as_deref())?;
        let count = args.count.unwrap_or(lines.len()).min(lines.len());
        // Evenly from the whole file, which is sorted by topic.
        let chosen = (0..count).map(|i| &lines[i * lines.len() / count]);
        let prompts = chosen.map(|line| {
            Ok(Prompt { topic: line.topic.clone(), ids: chat_ids(pair, &line.prompt)? })
        });
        Ok(Workload {
            prompts: prompts.collect::<Result<_, Failure>>()?,
            ends: pair.tokenizer.end_ids().to_vec(),
            max_tokens: args.max_tokens,
            running: args.running,
        })
    }

    /// The requests, all with the same temperature; request `i` has seed `i`.
    pub(crate) fn requests(&self, temperature: f32, speculation: Speculation) -> Vec<Request> {
        let request = |(i, prompt): (usize, &Prompt)| Request {
            sampling: Sampling { temperature, seed: i as u64, ..Sampling::default() },
            stops: Stops { ids: self.ends.clone(), strings: vec![] },
            limits: Limits { max_tokens: Some(self.max_tokens), ..Limits::default() },
            speculation,
            ..Request::new(prompt.ids.clone())
        };
        self.prompts.iter().enumerate().map(request).collect()
    }

    /// Options of an engine that holds `running` of these requests at once.
    pub(crate) fn options(&self) -> EngineOptions {
        let longest = self.prompts.iter().map(|p| p.ids.len()).max().unwrap_or(0);
        let page_size = EngineOptions::default().page_size;
        let each = (longest + self.max_tokens).next_multiple_of(page_size);
        EngineOptions {
            max_running: self.running,
            kv_tokens: Some(self.running * each),
            ..EngineOptions::default()
        }
    }

    /// An engine with the pair's own drafter.
    pub(crate) fn engine(&self, model: &ModelArgs) -> Result<Engine, Failure> {
        engine(load(model)?, self.options())
    }

    /// An engine over the same target with `drafter`.
    pub(crate) fn engine_with(
        &self,
        model: &ModelArgs,
        drafter: Box<dyn Drafter>,
    ) -> Result<Engine, Failure> {
        let (pair, options) = (load(model)?, self.options());
        pair.fits(&options)?;
        Ok(Engine::with_drafter(pair, drafter, options))
    }
}

/// The lines of a prompt file, at least one; the held-out prompts without a file.
///
/// # Errors
/// A file that cannot be read, or a line that is none.
pub(super) fn lines(path: Option<&Path>) -> Result<Vec<Line>, Failure> {
    let Some(path) = path else { return parse(Path::new("held-out prompts"), HELDOUT) };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::input(format!("--prompts {}: {e}", path.display())))?;
    parse(path, &text)
}

/// A user's question in the model's chat format.
///
/// # Errors
/// A model without a chat template.
pub(super) fn chat_ids(pair: &Pair, question: &str) -> Result<Vec<u32>, Failure> {
    let Some(template) = &pair.template else {
        return Err(Failure::input("the model has no chat template, which the prompts need"));
    };
    let messages = [Message::new("user", question)];
    Ok(template.encode(&pair.tokenizer, &messages, &ChatOptions::default())?)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Line>, Failure> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lines: Vec<Line> = lines
        .map(|(i, line)| {
            serde_json::from_str(line).map_err(|e| {
                Failure::input(format!(
                    "--prompts {}: line {}: {e}; give {{\"topic\": \"…\", \"prompt\": \"…\"}}",
                    path.display(),
                    i + 1
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    if lines.is_empty() {
        return Err(Failure::input(format!("--prompts {}: holds no prompt", path.display())));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_is_named() {
        let good = "{\"topic\": \"a\", \"prompt\": \"b\"}\n\n";
        assert_eq!(parse(Path::new("p"), good).unwrap().len(), 1);
        for (text, part) in [(format!("{good}nonsense"), "line 3"), (String::new(), "no prompt")] {
            let Err(Failure::Input(problem)) = parse(Path::new("p"), &text) else {
                panic!("{text:?} was taken")
            };
            assert!(problem.contains(part), "{problem}");
        }
    }
}
