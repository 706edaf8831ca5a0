//! Plain and drafted decoding, one request at a time, in turns: A B B A.

use super::workload::Workload;
use crate::args::SpeedArgs;
use crate::commands::bench::mirrored;
use crate::failure::Failure;
use crate::session::{self, load};
use device::Device;
use engine::{Counters, Engine, EngineOptions, Output, Speculation};
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

/// One pass over the prompts.
struct Pass {
    /// Tokens a second after the first token, over all prompts.
    decode: f64,
    /// Mean time to the first token.
    first_token: Duration,
    counters: Counters,
    /// Share of the time in which no step ran.
    idle: f64,
    /// Time the host waited in landing, and for the fence.
    waited: [Duration; 2],
    outputs: Vec<Output>,
}

pub(crate) fn run(args: SpeedArgs) -> Result<(), Failure> {
    let pair = load(&args.model)?;
    let workload = Workload::read(&args.workload, &pair)?;
    let options = EngineOptions { max_running: 1, fence: args.fence, ..workload.options() };
    let mut engine = session::engine(pair, options)?;
    let kinds = match engine.info().draft {
        Some(_) => vec![("plain", Speculation::Off), ("drafted", drafted(args.model.width))],
        None => vec![("plain", Speculation::Off)],
    };
    let mut passes: Vec<Vec<Pass>> = kinds.iter().map(|_| Vec::new()).collect();
    for repeat in 0..args.repeats {
        let turn = kinds.iter().zip(&mut passes).collect();
        for ((_, speculation), passes) in mirrored(turn, repeat) {
            passes.push(measure(&mut engine, &workload, args.temperature, *speculation)?);
        }
    }
    let mut out = stdout().lock();
    writeln!(
        out,
        "{} prompts, up to {} tokens, T {}, median of {} interleaved runs (least – most)",
        workload.prompts.len(),
        args.workload.max_tokens,
        args.temperature,
        args.repeats
    )?;
    for ((name, _), passes) in kinds.iter().zip(&passes) {
        report(&mut out, name, passes)?;
    }
    if let [plain, drafted] = &passes[..] {
        let (p, d) = (median(plain, |p| p.decode), median(drafted, |p| p.decode));
        let same =
            plain[0].outputs.iter().zip(&drafted[0].outputs).all(|(a, b)| a.ids() == b.ids());
        writeln!(
            out,
            "drafted / plain: {:.2} ×, outputs {}",
            d / p,
            if same { "equal" } else { "DIFFERENT" }
        )?;
        if !same {
            return Err(Failure::Different);
        }
    }
    Ok(())
}

fn drafted(width: Option<usize>) -> Speculation {
    width.map_or(Speculation::Auto, Speculation::Width)
}

fn measure(
    engine: &mut Engine,
    workload: &Workload,
    temperature: f32,
    speculation: Speculation,
) -> Result<Pass, Failure> {
    let (before, usage, started) = (engine.counters(), engine.device().usage(), Instant::now());
    let mut outputs = Vec::new();
    for request in workload.requests(temperature, speculation) {
        outputs.extend(engine.run(vec![request])?);
    }
    let (mut tokens, mut time, mut first) = (0, Duration::ZERO, Duration::ZERO);
    for stats in outputs.iter().map(|output| &output.stats) {
        tokens += stats.output_tokens.saturating_sub(1);
        time += stats.total.saturating_sub(stats.first_token);
        first += stats.first_token;
    }
    let (after, wall) = (engine.device().usage(), started.elapsed());
    let counters = engine.counters() - before;
    Ok(Pass {
        idle: 1.0 - counters.times.total().as_secs_f64() / wall.as_secs_f64(),
        waited: [after.results.time - usage.results.time, after.fence.time - usage.fence.time],
        decode: tokens as f64 / time.as_secs_f64(),
        first_token: first / outputs.len() as u32,
        counters,
        outputs,
    })
}

fn report(out: &mut impl Write, name: &str, passes: &[Pass]) -> Result<(), Failure> {
    let rates = passes.iter().map(|p| p.decode);
    let least = rates.clone().fold(f64::INFINITY, f64::min);
    let most = rates.fold(0.0, f64::max);
    let (committed, steps) = passes[0]
        .outputs
        .iter()
        .fold((0, 0), |(c, s), o| (c + o.stats.committed, s + o.stats.steps));
    writeln!(
        out,
        "{name}: {:.1} tok/s ({least:.1} – {most:.1}), τ {:.2}, first token {:.1} ms",
        median(passes, |p| p.decode),
        committed as f64 / steps.max(1) as f64,
        median(passes, |p| p.first_token.as_secs_f64() * 1e3),
    )?;
    let per_step = |time: fn(&Pass) -> Duration| {
        median(passes, |p| time(p).as_secs_f64() * 1e3 / p.counters.steps as f64)
    };
    writeln!(
        out,
        "  a step: draft {:.2} ms, verify {:.2} ms, absorb {:.2} ms",
        per_step(|p| p.counters.times.draft),
        per_step(|p| p.counters.times.verify),
        per_step(|p| p.counters.times.absorb),
    )?;
    writeln!(
        out,
        "  host blocked a step: {:.2} ms landing, {:.2} ms at the fence; launched ahead {:.1} % of \
         steps; device idle {:.1} %",
        per_step(|p| p.waited[0]),
        per_step(|p| p.waited[1]),
        median(passes, |p| 100.0 * p.counters.led as f64 / p.counters.steps as f64),
        median(passes, |p| 100.0 * p.idle),
    )?;
    Ok(())
}

fn median(passes: &[Pass], figure: impl Fn(&Pass) -> f64) -> f64 {
    let mut figures: Vec<f64> = passes.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
