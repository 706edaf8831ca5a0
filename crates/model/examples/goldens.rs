//! Checks a checkpoint's tokenizer and chat template against golden prompts, and times loading:
//!
//! ```text
//! cargo run --release -p slipstream-model --example goldens -- MODEL GOLDENS.json
//! ```
//!
//! The golden file has `cases`, each with `messages`, `prompt_text`, `prompt_ids`, `output_ids` and
//! `output_text`.

use model::chat::{ChatOptions, ChatTemplate, Message};
use model::checkpoint::Checkpoint;
use model::tokenizer::{Specials, Tokenizer};
use serde::Deserialize;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Message>,
    prompt_text: String,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
    output_text: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, model, goldens] = arguments.as_slice() else {
        return Err("usage: goldens MODEL GOLDENS.json".into());
    };
    let goldens: Goldens = serde_json::from_slice(&std::fs::read(goldens)?)?;
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let start = Instant::now();
    let tokenizer = Tokenizer::load(&checkpoint)?;
    println!(
        "{} tokens in {:.1?}, ends {:?}",
        tokenizer.len(),
        start.elapsed(),
        tokenizer.end_ids()
    );
    let template = ChatTemplate::load(&checkpoint, &tokenizer)?.ok_or("no chat template")?;

    for (number, case) in goldens.cases.iter().enumerate() {
        let options = ChatOptions::default();
        let output: String = case
            .output_ids
            .iter()
            .map(|&id| match tokenizer.piece(id) {
                [] => tokenizer.name(id),
                _ => tokenizer.decode(&[id]),
            })
            .collect();
        let checks = [
            ("text", template.render(&case.messages, &options)? == case.prompt_text),
            ("chat ids", template.encode(&tokenizer, &case.messages, &options)? == case.prompt_ids),
            ("raw ids", tokenizer.encode(&case.prompt_text, Specials::Parse) == case.prompt_ids),
            ("output", output == case.output_text),
        ];
        if let Some((what, _)) = checks.iter().find(|(_, right)| !right) {
            return Err(format!("case {number}: {what} differs").into());
        }
    }
    println!("{} cases agree", goldens.cases.len());
    Ok(())
}
