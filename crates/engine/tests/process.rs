//! A process whose engine fails ends, non-zero, with the reason on standard error. Without a
//! harness: the test starts itself again as that process.

use device::Cpu;
use engine::draft::Scripted;
use engine::{
    Engine, EngineOptions, Event, Limits, Pair, PairOptions, Request, Service, Speculation,
};
use std::env;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

/// The first argument of a process that serves; the second says what breaks.
const SERVE: &str = "serve-and-break";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [SERVE, what] => serve(what),
        _ => check(),
    }
}

/// A plain program over a service, which returns what went wrong from `main`.
fn serve(what: &str) -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/qwen3");
    let pair = Pair::load(&Cpu::new(1), &model, None, &PairOptions::default())?;
    let breaks = what == "drafter";
    let drafter = Scripted::new(4, move |_, position| {
        assert!(!breaks || position < 20, "the drafter broke");
        0
    });
    let options = EngineOptions { max_running: 2, ..EngineOptions::default() };
    let service = Service::start(Engine::with_drafter(pair, Box::new(drafter), options));
    let request = Request {
        limits: Limits { max_tokens: Some(40), ..Limits::default() },
        // The drafter is asked at every position, however bad it is.
        speculation: Speculation::Width(4),
        ..Request::new(vec![1, 2, 3])
    };
    let breaks = what == "sink";
    let ticket = service.handle().submit(request.clone(), move |_: Event| {
        assert!(!breaks, "the sink broke");
        ControlFlow::Continue(())
    })?;
    let streams = [(); 3].map(|()| service.handle().stream(request.clone()));
    for stream in streams {
        println!("{} tokens", stream?.output()?.tokens.len());
    }
    service.handle().drain();
    service.join()?;
    drop(ticket);
    Ok(())
}

fn check() -> Result<(), Box<dyn Error>> {
    for (what, code, reason) in
        [("nothing", 0, ""), ("drafter", 1, "the drafter broke"), ("sink", 1, "the sink broke")]
    {
        let run = Command::new(env::current_exe()?).args([SERVE, what]).output()?;
        let (out, err) = (String::from_utf8(run.stdout)?, String::from_utf8(run.stderr)?);
        assert_eq!(run.status.code(), Some(code), "when {what} breaks: {err}");
        assert_eq!(
            out.lines().filter(|line| *line == "40 tokens").count(),
            3 * (1 - code as usize)
        );
        let last = err.lines().last().unwrap_or_default();
        assert!(last.starts_with("Error: ") == (code == 1) && last.contains(reason), "{err}");
        println!("when {what} breaks: exit code {code}");
    }
    Ok(())
}
