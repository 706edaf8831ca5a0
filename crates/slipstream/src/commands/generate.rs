//! `slipstream generate`: prompts in, text or JSON lines out, for scripts.

mod format;
mod input;
mod record;

use crate::args::GenerateArgs;
use crate::commands::chat::seed;
use crate::failure::Failure;
use crate::render;
use crate::session::{Session, uninterrupted};
use engine::{Constrained, Output, Request, Sampling, Update};
use input::Prompt;
use model::chat::Message;
use record::{Record, Refusal};
use serde::Serialize;
use std::io::{IsTerminal, Write, stdout};

pub(crate) fn run(args: GenerateArgs) -> Result<(), Failure> {
    let prompts = input::read(&args.input)?;
    let mut session = Session::open(&args.model)?;
    let constraint = format::read(&args.format, &session.tokenizer)?;
    let sampling = args.sampling.sampling();
    if !args.json {
        let [prompt] = &prompts[..] else { panic!("several prompts are read with --json only") };
        let request = request(&session, &args, prompt, sampling, constraint)?;
        return text(&mut session, request);
    }
    let mut refused = None;
    for (index, prompt) in prompts.iter().enumerate() {
        let request = request(&session, &args, prompt, sampling, constraint.clone());
        let done = request.and_then(|request| {
            let output = session.run(request.clone(), &mut |_| Ok(()))?;
            Ok((request, output))
        });
        match done {
            Ok((request, output)) => {
                line(&Record::new(index, &request, &output, &session.tokenizer))?;
                uninterrupted(output.reason)?;
            }
            // One bad prompt of a batch does not cost the others.
            Err(Failure::Input(problem)) if args.input.batch.is_some() => {
                line(&Refusal { index, error: &problem })?;
                refused = Some(format!("line {}: {problem}", index + 1));
            }
            Err(other) => return Err(other),
        }
    }
    refused.map_or(Ok(()), |problem| Err(Failure::Input(problem)))
}

fn request(
    session: &Session,
    args: &GenerateArgs,
    prompt: &Prompt,
    sampling: Sampling,
    constraint: Option<Constrained>,
) -> Result<Request, Failure> {
    let ids = match prompt {
        Prompt::Ids(ids) => ids.clone(),
        // Not left to the tokenizer: it may put BOS in front of nothing.
        Prompt::Text(text) if text.is_empty() => {
            return Err(Failure::input("prompt: is empty; give at least one token"));
        }
        Prompt::Text(text) if args.chat => {
            let system = args.system.iter().map(|text| Message::new("system", text));
            let messages: Vec<_> = system.chain([Message::new("user", text)]).collect();
            session.encode_chat(&messages)?
        }
        Prompt::Text(text) => session.tokenizer.encode_prompt(text),
    };
    let plain = session.request(ids, &args.sampling, sampling);
    Ok(Request { logprobs: args.logprobs, constraint, ..plain })
}

/// Streams the text, exactly; on a terminal a line break follows.
fn text(session: &mut Session, request: Request) -> Result<(), Failure> {
    let sampling = request.sampling;
    let output = session.run(request, &mut |update: &Update| {
        let mut out = stdout().lock();
        for segment in &update.text {
            out.write_all(segment.text.as_bytes())?;
        }
        out.flush()
    })?;
    if stdout().is_terminal() {
        writeln!(stdout())?;
    }
    report(&output, &sampling);
    uninterrupted(output.reason)
}

fn report(output: &Output, sampling: &Sampling) {
    eprintln!("{}{}", render::stats_line(&output.stats, output.reason), seed(sampling));
}

fn line(record: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string(record).expect("records have text keys only");
    let mut out = stdout().lock();
    writeln!(out, "{json}")?;
    Ok(out.flush()?)
}
