//! Acceptance length τ over a set of prompts: tokens committed per verify pass, bonus included.

use super::workload::Workload;
use crate::args::AcceptanceArgs;
use crate::failure::Failure;
use crate::session::load;
use engine::{Output, Speculation, Stats};
use std::collections::BTreeMap;
use std::io::{Write, stdout};

pub(crate) fn run(args: AcceptanceArgs) -> Result<(), Failure> {
    let pair = load(&args.model)?;
    let workload = Workload::read(&args.workload, &pair)?;
    drop(pair);
    let mut engine = workload.engine(&args.model)?;
    let Some(draft) = engine.info().draft.clone() else {
        return Err(Failure::input("there is no drafter to measure; name one with --draft"));
    };
    let mut out = stdout().lock();
    writeln!(
        out,
        "{} prompts, up to {} tokens, draft width {}",
        workload.prompts.len(),
        args.workload.max_tokens,
        draft.block
    )?;
    for &temperature in &args.temperatures {
        for &width in &args.widths {
            let requests = workload.requests(temperature, Speculation::Width(width));
            let outputs = engine.run(requests)?;
            report(&mut out, temperature, width, &workload, &outputs)?;
        }
    }
    Ok(())
}

fn report(
    out: &mut impl Write,
    temperature: f32,
    width: usize,
    workload: &Workload,
    outputs: &[Output],
) -> Result<(), Failure> {
    let mut topics: BTreeMap<&str, Sum> = BTreeMap::new();
    let mut all = Sum::default();
    for (prompt, output) in workload.prompts.iter().zip(outputs) {
        topics.entry(&prompt.topic).or_default().add(&output.stats);
        all.add(&output.stats);
    }
    writeln!(
        out,
        "\nT {temperature}, verify width {width}: τ {:.3} ({} tokens in {} passes)",
        all.tau(),
        all.committed,
        all.steps
    )?;
    let by_topic: Vec<String> =
        topics.iter().map(|(topic, sum)| format!("{topic} {:.2}", sum.tau())).collect();
    writeln!(out, "  by topic: {}", by_topic.join(", "))?;
    let reach = |k: usize| all.accepted.iter().skip(k).sum::<usize>() as f64 / all.steps as f64;
    let reached: Vec<String> = (1..width).map(|k| format!("{:.2}", reach(k))).collect();
    writeln!(out, "  P(at least k drafts accepted), k = 1 …: {}", reached.join(" "))?;
    Ok(out.flush()?)
}

/// Figures of several requests.
#[derive(Default)]
struct Sum {
    committed: usize,
    steps: usize,
    accepted: Vec<usize>,
}

impl Sum {
    fn add(&mut self, stats: &Stats) {
        self.committed += stats.committed;
        self.steps += stats.steps;
        let length = self.accepted.len().max(stats.accepted.len());
        self.accepted.resize(length, 0);
        for (sum, passes) in self.accepted.iter_mut().zip(&stats.accepted) {
            *sum += passes;
        }
    }

    fn tau(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.committed as f64 / self.steps as f64 }
    }
}
