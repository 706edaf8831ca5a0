//! What orders one step after another, and what it costs: the same requests under each fence, on
//! the CPU by its own time, or on the simulated device by virtual time.

use super::workload::Workload;
use crate::args::{BenchDevice, FencesArgs};
use crate::failure::Failure;
use crate::session::{adaptive, load};
use device::{HostDevice, LaneId, Sim, SimOptions, SimOrder, Threads};
use engine::{Engine, EngineOptions, Fence, Output, Speculation};
use std::io::{Write, stdout};
use std::time::Duration;

/// One pass over the prompts under one fence, by what it took a step.
struct Pass {
    /// Milliseconds that the host waited in landing, and for the fence.
    landing: f64,
    fence: f64,
    /// Share of the time in which the forward lane ran nothing.
    idle: f64,
    /// Tokens a second.
    rate: f64,
    /// Share of the steps that were launched before the one ahead had ended.
    led: f64,
}

pub(crate) fn run(args: FencesArgs) -> Result<(), Failure> {
    match args.device {
        BenchDevice::Cpu => compare(&args, "measured on the CPU", Threads::new),
        BenchDevice::Sim => {
            let what = "VIRTUAL TIME, by a model of an 8B target on one large GPU";
            let order = SimOrder::Timed;
            let options = SimOptions { order, durations, ..SimOptions::default() };
            compare(&args, what, || Sim::with(options))
        }
    }
}

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

fn compare<D: HostDevice>(
    args: &FencesArgs,
    what: &str,
    device: impl Fn() -> D,
) -> Result<(), Failure> {
    let workload = Workload::read(&args.workload, &load(&args.model)?)?;
    let mut engines = Vec::new();
    for fence in Fence::ALL {
        let options = adaptive(EngineOptions { fence, ..workload.options() });
        engines.push((fence, Engine::on(&device(), load(&args.model)?, options), Vec::new()));
    }
    let mut out = stdout().lock();
    writeln!(
        out,
        "{what}: {} prompts, {} at once, up to {} tokens, T {}, medians of {} interleaved runs",
        workload.prompts.len(),
        args.workload.running,
        args.workload.max_tokens,
        args.temperature,
        args.repeats
    )?;
    let mut answers = None;
    for _ in 0..args.repeats {
        for (_, engine, passes) in &mut engines {
            let (pass, outputs) = measure(engine, &workload, args)?;
            passes.push(pass);
            let ids: Vec<_> = outputs.iter().map(Output::ids).collect();
            if *answers.get_or_insert_with(|| ids.clone()) != ids {
                return Err(Failure::Different);
            }
        }
    }
    let head =
        "fence   host blocked ms a step (land + fence)  device idle    tok/s  launched ahead";
    writeln!(out, "{head}")?;
    for (fence, _, passes) in &engines {
        report(&mut out, *fence, passes)?;
    }
    Ok(())
}

fn measure<D: HostDevice>(
    engine: &mut Engine<D>,
    workload: &Workload,
    args: &FencesArgs,
) -> Result<(Pass, Vec<Output>), Failure> {
    let speculation = args.model.width.map_or(Speculation::Auto, Speculation::Width);
    let read = |engine: &Engine<D>| {
        (engine.device().clock().now(), engine.device().usage(), engine.counters())
    };
    let (start, before, counters) = read(engine);
    let outputs = engine.run(workload.requests(args.temperature, speculation))?;
    let (end, after, counted) = read(engine);
    let (wall, counted) = ((end - start).as_secs_f64(), counted - counters);
    let steps = counted.steps as f64;
    let busy = |usage: &device::Usage| usage.busy[LaneId::Forward.index()].as_secs_f64();
    let tokens: usize = outputs.iter().map(|output| output.tokens.len()).sum();
    let pass = Pass {
        landing: (after.results.time - before.results.time).as_secs_f64() * 1e3 / steps,
        fence: (after.fence.time - before.fence.time).as_secs_f64() * 1e3 / steps,
        idle: 1.0 - (busy(&after) - busy(&before)) / wall,
        rate: tokens as f64 / wall,
        led: counted.led as f64 / steps,
    };
    Ok((pass, outputs))
}

fn report(out: &mut impl Write, fence: Fence, passes: &[Pass]) -> Result<(), Failure> {
    let median = |figure: fn(&Pass) -> f64| {
        let mut figures: Vec<f64> = passes.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    let (landing, own) = (median(|p| p.landing), median(|p| p.fence));
    writeln!(
        out,
        "{:<7} {:>13.3} ({landing:.3} + {own:.3}) {:>20.2} % {:>9.1} {:>12.1} %",
        fence.name(),
        landing + own,
        100.0 * median(|p| p.idle),
        median(|p| p.rate),
        100.0 * median(|p| p.led),
    )?;
    Ok(())
}
