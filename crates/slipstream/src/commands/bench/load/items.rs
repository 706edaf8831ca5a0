//! The requests of a load, before any of them runs: drawn from a seed, or read from a trace.

use super::args::{Answer, RequestArgs};
use super::lengths::{Draws, Lengths};
use super::trace::{self, Entry, Prompt};
use crate::commands::bench::workload;
use crate::failure::Failure;
use engine::{Limits, Pair, Request, Sampling, Speculation, Stops};
use model::tokenizer::Specials;
use std::path::Path;
use std::time::Duration;

/// Requests when nobody says how many.
const REQUESTS: usize = 64;
/// Output tokens at most when nobody says how many.
const OUTPUT: Lengths = Lengths::Fixed(128);

/// One request of a load.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    /// When it comes, from the start of the load; looked at only when arrivals are replayed.
    pub(super) at: Duration,
    /// Prompt ids.
    pub(super) prompt: Vec<u32>,
    /// Output tokens at most.
    pub(super) max_tokens: usize,
    pub(super) seed: u64,
    pub(super) temperature: f32,
    pub(super) end: End,
}

/// What ends an output before its length cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The model's end-of-text.
    Eos,
    /// Nothing.
    Length,
}

impl Item {
    /// As the engine takes it; `ends` are the model's end ids.
    pub(super) fn request(&self, ends: &[u32], speculation: Speculation) -> Request {
        let Item { temperature, seed, .. } = *self;
        let ids = match self.end {
            End::Eos => ends.to_vec(),
            End::Length => Vec::new(),
        };
        Request {
            sampling: Sampling { temperature, seed, ..Sampling::default() },
            stops: Stops { ids, strings: Vec::new() },
            limits: Limits { max_tokens: Some(self.max_tokens), ..Limits::default() },
            speculation,
            ..Request::new(self.prompt.clone())
        }
    }
}

/// Builds the items that `args` and, if there is one, the trace ask for.
///
/// # Errors
/// Files that cannot be read, and lengths that the model's context cannot hold.
pub(super) fn build(
    args: &RequestArgs,
    trace: Option<&Path>,
    pair: &Pair,
) -> Result<Vec<Item>, Failure> {
    let mut maker = Maker { args, pair, sentences: sentences(args, pair)?, draws: draws(args) };
    match trace {
        Some(path) => {
            let entries = trace::read(path)?;
            let count = args.requests.iter().max().copied().unwrap_or(entries.len());
            if count > entries.len() {
                let problem =
                    format!("--requests {count}: the trace has {}; give no more", entries.len());
                return Err(Failure::input(problem));
            }
            let entries = entries.into_iter().take(count).enumerate();
            entries.map(|(i, entry)| maker.replayed(i, entry)).collect()
        }
        None => maker.drawn(args.requests.iter().max().copied().unwrap_or(REQUESTS)),
    }
}

fn draws(args: &RequestArgs) -> Draws {
    Draws::new(args.seed)
}

/// The prompts' texts as tokens that can stand one after another.
fn sentences(args: &RequestArgs, pair: &Pair) -> Result<Vec<Vec<u32>>, Failure> {
    let lines = workload::lines(args.prompts.as_deref())?;
    let encode = |text: &str| pair.tokenizer.encode(&format!(" {text}"), Specials::AsText);
    let sentences = lines.iter().map(|line| encode(&line.prompt)).filter(|ids| !ids.is_empty());
    let sentences: Vec<_> = sentences.collect();
    if sentences.is_empty() {
        return Err(Failure::input("--prompts: no line has any text; give at least one that has"));
    }
    Ok(sentences)
}

struct Maker<'a> {
    args: &'a RequestArgs,
    pair: &'a Pair,
    sentences: Vec<Vec<u32>>,
    draws: Draws,
}

impl Maker<'_> {
    fn drawn(&mut self, count: usize) -> Result<Vec<Item>, Failure> {
        let args = self.args;
        let prefixes: Vec<Vec<u32>> = match args.shared_prefix {
            share if share > 0.0 => {
                (0..args.prefixes).map(|_| self.text(args.prefix_tokens)).collect()
            }
            _ => Vec::new(),
        };
        let longest_prefix = prefixes.first().map_or(0, Vec::len);
        let questions = self.questions(count)?;
        self.fits(longest_prefix, &questions)?;
        let items = (0..count).map(|i| {
            let shares = |i: usize| (i as f64 * args.shared_prefix).floor();
            let mut prompt = Vec::new();
            if shares(i + 1) > shares(i) {
                prompt.extend(&prefixes[self.draws.below(prefixes.len())]);
            }
            // One token of output has room, whatever is drawn.
            let room = self.pair.context() - 1 - prompt.len();
            match args.input_tokens {
                Some(lengths) => {
                    let length = lengths.draw(&mut self.draws, room);
                    prompt.extend(self.text(length));
                }
                None => prompt.extend(&questions[i % questions.len()]),
            }
            let room = self.pair.context() - prompt.len();
            let max_tokens = args.output_tokens.unwrap_or(OUTPUT).draw(&mut self.draws, room);
            let (seed, temperature) = (args.seed.wrapping_add(i as u64), args.temperature);
            Item { at: Duration::ZERO, prompt, max_tokens, seed, temperature, end: self.end() }
        });
        Ok(items.collect())
    }

    /// The prompts in the chat format, evenly from the file, which is sorted by topic; none when
    /// prompts are drawn.
    fn questions(&self, count: usize) -> Result<Vec<Vec<u32>>, Failure> {
        if self.args.input_tokens.is_some() {
            return Ok(Vec::new());
        }
        let lines = workload::lines(self.args.prompts.as_deref())?;
        let count = count.min(lines.len());
        let chosen = (0..count).map(|i| &lines[i * lines.len() / count]);
        chosen.map(|line| workload::chat_ids(self.pair, &line.prompt)).collect()
    }

    /// Whether every length that can be drawn fits the context, besides those that have no end.
    fn fits(&self, prefix: usize, questions: &[Vec<u32>]) -> Result<(), Failure> {
        let (args, context) = (self.args, self.pair.context());
        let drawn = args.input_tokens.map(|lengths| lengths.longest().unwrap_or(1));
        let input = drawn.or(questions.iter().map(Vec::len).max()).unwrap_or(1);
        let output = args.output_tokens.unwrap_or(OUTPUT).longest().unwrap_or(1);
        let (flag, first) = match args.shared_prefix {
            share if share > 0.0 => ("--prefix-tokens, --input-tokens", prefix + input),
            _ => ("--input-tokens", input),
        };
        if first >= context {
            return Err(Failure::input(format!(
                "{flag}: prompts of up to {first} tokens do not fit the context of {context}; \
                 give shorter ones"
            )));
        }
        if first + output > context {
            return Err(Failure::input(format!(
                "--output-tokens: up to {first} tokens of prompt and {output} of output do not \
                 fit the context of {context}; give shorter ones"
            )));
        }
        Ok(())
    }

    /// What ends drawn outputs.
    fn end(&self) -> End {
        match (self.args.ignore_eos, self.args.output_tokens) {
            (Some(Answer::Yes), _) | (None, Some(_)) => End::Length,
            (Some(Answer::No), _) | (None, None) => End::Eos,
        }
    }

    /// The item of a trace's entry, the `i`-th.
    fn replayed(&mut self, i: usize, entry: Entry) -> Result<Item, Failure> {
        let Entry { at, prompt, max_tokens, seed, temperature, end } = entry;
        let prompt = match prompt {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) => workload::chat_ids(self.pair, &text)?,
            Prompt::Length(length) => self.text(length),
        };
        let seed = seed.unwrap_or(self.args.seed.wrapping_add(i as u64));
        Ok(Item { at, prompt, max_tokens, seed, temperature, end })
    }

    /// A prompt of `length` tokens: sentences in random order, the last one cut.
    fn text(&mut self, length: usize) -> Vec<u32> {
        let mut ids = self.pair.tokenizer.encode_prompt("");
        while ids.len() < length {
            let sentence = self.draws.below(self.sentences.len());
            ids.extend(&self.sentences[sentence]);
        }
        ids.truncate(length);
        ids
    }
}
