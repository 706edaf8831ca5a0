//! What orders one step after another, and what it costs: the same requests under each fence on the
//! simulated device, in virtual time. (`bench load --fence` measures the same on the CPU or a card.)

use super::workload::Workload;
use crate::args::FencesArgs;
use crate::failure::Failure;
use crate::session::load;
use device::{Device, LaneId, Sim, SimOptions, SimOrder, Usage};
use engine::{Engine, EngineOptions, Fence, Output, Speculation};
use std::io::{Write, stdout};
use std::time::Duration;

/// What the parts of a step cost in the model, by their tokens or rows.
fn durations(what: &'static str, size: usize) -> Duration {
    let (fixed, each) = match what {
        "verify" => (4_100, 8),
        "draft" => (800, 10),
        "absorb" => (20, 1),
        "write pages" | "snapshot pages" | "results" => (10, 0),
        "plan" => (60, 1),
        "commit" => (40, 1),
        _ => (0, 0),
    };
    Duration::from_micros(fixed + each * size as u64)
}

pub(crate) fn run(args: FencesArgs) -> Result<(), Failure> {
    let workload = Workload::read(&args.workload, &load(&args.model)?)?;
    let mut out = stdout().lock();
    writeln!(
        out,
        "VIRTUAL TIME, by a model of an 8B target on one large GPU: {} prompts, {} at once, up to {} \
         tokens, T {}",
        workload.prompts.len(),
        args.workload.running,
        args.workload.max_tokens,
        args.temperature,
    )?;
    let head =
        "fence   host blocked ms a step (land + fence)  device idle    tok/s  launched ahead";
    writeln!(out, "{head}")?;
    let mut answers = None;
    for fence in Fence::ALL {
        let order = SimOrder::Timed;
        let sim = Sim::with(SimOptions { order, durations, ..SimOptions::default() });
        let options = EngineOptions { fence, ..workload.options() };
        let mut engine = Engine::on(&sim, load(&args.model)?, options);
        let outputs = answer(&mut engine, &workload, &args)?;
        report(&mut out, fence, &engine, &outputs)?;
        let ids: Vec<_> = outputs.iter().map(Output::ids).collect();
        if *answers.get_or_insert_with(|| ids.clone()) != ids {
            return Err(Failure::Different);
        }
    }
    Ok(())
}

fn answer(
    engine: &mut Engine<Sim>,
    workload: &Workload,
    args: &FencesArgs,
) -> Result<Vec<Output>, Failure> {
    let speculation = match (args.model.plain, args.model.width) {
        (true, _) => Speculation::Off,
        (false, Some(width)) => Speculation::Width(width),
        (false, None) => Speculation::Auto,
    };
    let outputs = engine.run(workload.requests(args.temperature, speculation))?;
    // The step behind the last one counts too.
    while !engine.is_idle() {
        engine.turn()?;
    }
    Ok(outputs)
}

/// What it took from the beginning on, with a fresh engine.
fn report(
    out: &mut impl Write,
    fence: Fence,
    engine: &Engine<Sim>,
    outputs: &[Output],
) -> Result<(), Failure> {
    let Usage { results, fence: own, busy } = engine.device().usage();
    let wall = engine.device().clock().now().as_secs_f64();
    let counters = engine.counters();
    let steps = counters.steps as f64;
    let each = |time: Duration| time.as_secs_f64() * 1e3 / steps;
    let (landing, own) = (each(results.time), each(own.time));
    let tokens: usize = outputs.iter().map(|output| output.tokens.len()).sum();
    writeln!(
        out,
        "{:<7} {:>13.3} ({landing:.3} + {own:.3}) {:>20.2} % {:>9.1} {:>12.1} %",
        fence.name(),
        landing + own,
        100.0 * (1.0 - busy[LaneId::Forward.index()].as_secs_f64() / wall),
        tokens as f64 / wall,
        100.0 * counters.led as f64 / steps,
    )?;
    Ok(())
}
