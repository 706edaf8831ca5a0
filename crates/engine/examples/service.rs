//! Slipstream as a service: an engine on its own thread, two requests streamed at once from two
//! threads. `cargo run --release -p slipstream-engine --example service`

use device::Cpu;
use engine::{Engine, EngineOptions, Limits, Pair, PairOptions, Request, Service, Stops, Stream};
use fetch::{DEFAULT_DRAFTER, DEFAULT_TARGET, Progress};
use std::error::Error;
use std::thread;
use std::time::Duration;

/// Prints text as it comes, then what the request took.
fn listen(name: &str, stream: Stream) -> Result<(), engine::EngineLost> {
    for event in stream {
        let update = event?;
        for segment in &update.text {
            println!("{name} adds {:?} (drafted: {})", segment.text, segment.drafted);
        }
        if let Some(end) = update.finished {
            let (tokens, tau) = (end.stats.output_tokens, end.stats.tau());
            println!("{name} ends: {}, {tokens} tokens, τ {tau:.2}", end.reason.name());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let get = |name| fetch::resolve(name, Progress::for_stderr());
    let (target, draft) = (get(DEFAULT_TARGET)?, get(DEFAULT_DRAFTER)?);
    let pair = Pair::load(&Cpu::host(), &target, Some(&draft), &PairOptions::default())?;
    let tokenizer = pair.tokenizer.clone();
    let options = EngineOptions { max_running: 2, ..EngineOptions::default() };
    let service = Service::start(Engine::new(pair, options));
    let request = |text: &str| Request {
        stops: Stops { ids: tokenizer.end_ids().to_vec(), strings: vec!["\n".into()] },
        limits: Limits {
            max_tokens: Some(24),
            timeout: Some(Duration::from_secs(60)),
            ..Limits::default()
        },
        ..Request::new(tokenizer.encode_prompt(text))
    };
    let france = service.handle().stream(request("The capital of France is"))?;
    let sum = service.handle().stream(request("Two plus two is"))?;
    thread::scope(|scope| {
        let other = scope.spawn(|| listen("France", france));
        listen("the sum", sum).and(other.join().expect("listening does not panic"))
    })?;
    println!("{} steps in all", service.handle().snapshot().counters.steps);
    service.handle().drain();
    service.join()?;
    Ok(())
}
