//! Same seed, same bytes: outputs with every drafter, width and chunk size against plain ones.

use super::workload::Workload;
use crate::args::LosslessArgs;
use crate::failure::Failure;
use crate::session::{self, load};
use engine::draft::{Drafter, Scripted};
use engine::{Engine, EngineOptions, Output, Request, Speculation};
use std::io::{Write, stdout};
use std::time::Instant;

/// Plain outputs, and the requests they belong to.
struct Truth {
    temperature: f32,
    prompts: Vec<usize>,
    outputs: Vec<Output>,
}

pub(crate) fn run(args: LosslessArgs) -> Result<(), Failure> {
    let pair = load(&args.model)?;
    let workload = Workload::read(&args.workload, &pair)?;
    let plain = session::engine(pair, workload.options())?;
    if plain.info().draft.is_none() {
        return Err(Failure::input("there is no drafter to check; name one with --draft"));
    }
    let truths = truths(plain, &workload, &args.temperatures)?;
    let mut check = Check { different: 0 };
    let mut drafted = workload.engine(&args.model)?;
    for truth in &truths {
        for &width in &args.widths {
            let requests = workload.requests(truth.temperature, Speculation::Width(width));
            let what = format!("DFlash, width {width}");
            check.compare(&what, truth, &mut drafted, requests)?;
        }
    }
    drop(drafted);
    for truth in &truths {
        for &width in &args.scripted {
            for (name, drafter) in scripted(truth, width) {
                let mut engine = workload.engine_with(&args.model, drafter)?;
                let requests = workload.requests(truth.temperature, Speculation::Width(width));
                let what = format!("{name} drafter, width {width}");
                check.compare(&what, truth, &mut engine, requests)?;
            }
        }
        for &chunk in &args.chunks {
            // One request at a time as well: neither chunks nor neighbours change anything.
            let options = EngineOptions { chunk, max_running: 1, ..workload.options() };
            let mut engine = session::engine(load(&args.model)?, options)?;
            let requests = workload.requests(truth.temperature, Speculation::Auto);
            let what = format!("DFlash, one at a time, chunks of {chunk}");
            check.compare(&what, truth, &mut engine, requests)?;
        }
    }
    if check.different > 0 { Err(Failure::Different) } else { Ok(()) }
}

fn truths(
    mut plain: Engine,
    workload: &Workload,
    temperatures: &[f32],
) -> Result<Vec<Truth>, Failure> {
    let prompts: Vec<usize> = workload.prompts.iter().map(|p| p.ids.len()).collect();
    let mut truths = Vec::new();
    for &temperature in temperatures {
        let started = Instant::now();
        let outputs = plain.run(workload.requests(temperature, Speculation::Off))?;
        let tokens: usize = outputs.iter().map(|o| o.tokens.len()).sum();
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "T {temperature}, plain: {} outputs, {tokens} tokens, {seconds:.0} s",
            outputs.len()
        );
        truths.push(Truth { temperature, prompts: prompts.clone(), outputs });
    }
    Ok(truths)
}

struct Check {
    different: usize,
}

impl Check {
    fn compare(
        &mut self,
        what: &str,
        truth: &Truth,
        engine: &mut Engine,
        requests: Vec<Request>,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let outputs = engine.run(requests)?;
        let same = |(a, b): &(&Output, &Output)| a.ids() == b.ids() && a.text == b.text;
        let equal = outputs.iter().zip(&truth.outputs).filter(same).count();
        self.different += outputs.len() - equal;
        let (committed, steps) =
            outputs.iter().fold((0, 0), |(c, s), o| (c + o.stats.committed, s + o.stats.steps));
        let mut out = stdout().lock();
        writeln!(
            out,
            "T {}, {what}: {equal} of {} equal, τ {:.2}, {:.0} s",
            truth.temperature,
            outputs.len(),
            committed as f64 / steps.max(1) as f64,
            started.elapsed().as_secs_f64()
        )?;
        Ok(out.flush()?)
    }
}

/// A drafter that is always right, one that never is, and one that knows nothing.
fn scripted(truth: &Truth, width: usize) -> Vec<(&'static str, Box<dyn Drafter>)> {
    let ids: Vec<Vec<u32>> = truth.outputs.iter().map(Output::ids).collect();
    let (prompts, requests) = (truth.prompts.clone(), ids.len());
    // Requests are numbered in the order of their submission, one run an engine.
    let next = move |id: u64, position: usize| {
        let id = id as usize % requests;
        ids[id].get(position - prompts[id]).copied().unwrap_or(0)
    };
    let wrong = {
        let next = next.clone();
        move |id, position| if next(id, position) == 5 { 6 } else { 5 }
    };
    let random = |id: u64, position: usize| {
        let mixed = (id << 32 | position as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 40) as u32 % 1000
    };
    vec![
        ("perfect", Box::new(Scripted::new(width, next))),
        ("wrong", Box::new(Scripted::new(width, wrong))),
        ("random", Box::new(Scripted::new(width, random))),
    ]
}
