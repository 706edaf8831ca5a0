//! Slipstream as a library: load a pair, submit two requests, stream their text, read what
//! drafting did. `cargo run --release -p slipstream-engine --example library`

use device::Cpu;
use engine::{Engine, EngineOptions, Limits, Pair, PairOptions, Request, Stops};
use fetch::{DEFAULT_DRAFTER, DEFAULT_TARGET, Progress};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let get = |name| fetch::resolve(name, Progress::for_stderr());
    let (target, draft) = (get(DEFAULT_TARGET)?, get(DEFAULT_DRAFTER)?);
    let pair = Pair::load(&Cpu::host(), &target, Some(&draft), &PairOptions::default())?;
    let tokenizer = pair.tokenizer.clone();
    let options = EngineOptions { max_running: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(pair, options);
    for text in ["The capital of France is", "Two plus two is"] {
        let id = engine.submit(Request {
            stops: Stops { ids: tokenizer.end_ids().to_vec(), strings: vec!["\n".into()] },
            limits: Limits { max_tokens: Some(24), ..Limits::default() },
            ..Request::new(tokenizer.encode_prompt(text))
        })?;
        println!("{id:?}: {text} …");
    }
    while !engine.is_idle() {
        for update in engine.turn()? {
            for segment in &update.text {
                println!("{:?} adds {:?} (drafted: {})", update.id, segment.text, segment.drafted);
            }
            if let Some(end) = update.finished {
                let (tokens, tau) = (end.stats.output_tokens, end.stats.tau());
                println!(
                    "{:?} ends: {}, {tokens} tokens, τ {tau:.2}",
                    update.id,
                    end.reason.name()
                );
            }
        }
    }
    Ok(())
}
