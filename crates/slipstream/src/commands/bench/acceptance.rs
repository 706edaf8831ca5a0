//! Acceptance length τ over a set of prompts: tokens committed per verify pass, bonus included. And how much the
//! drafter's confidences tell of what is accepted.

use super::told::{Kept, Proposals, Told};
use super::workload::Workload;
use crate::args::AcceptanceArgs;
use crate::failure::Failure;
use crate::session::{engine_around, load};
use engine::draft::Drafter;
use engine::{Output, Speculation, Stats};
use std::collections::BTreeMap;
use std::io::{Write, stdout};

pub(crate) fn run(args: AcceptanceArgs) -> Result<(), Failure> {
    let pair = load(&args.model)?;
    let workload = Workload::read(&args.workload, &pair)?;
    let proposals = Proposals::default();
    let kept = |own| -> Box<dyn Drafter> { Box::new(Kept::new(own, &proposals)) };
    let mut engine = engine_around(pair, workload.options(), kept)?;
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
    let widths = |&t: &f32| args.widths.iter().map(move |&width| (t, width));
    for (run, (temperature, width)) in args.temperatures.iter().flat_map(widths).enumerate() {
        let requests = workload.requests(temperature, Speculation::Width(width));
        let outputs = engine.run(requests)?;
        report(&mut out, temperature, width, &workload, &outputs)?;
        writeln!(out, "  confidences: {}", told(&proposals, &workload, &outputs, run))?;
        out.flush()?;
    }
    Ok(())
}

/// What the confidences of a run's drafts tell, the first run at 0.
fn told(proposals: &Proposals, workload: &Workload, outputs: &[Output], run: usize) -> Told {
    let outputs: Vec<Vec<u32>> = outputs.iter().map(Output::ids).collect();
    proposals.told(|id| {
        // Requests are numbered in the order of their submission, as many a run. A step that had been launched when
        // the last of the run before ended may have come to be afterwards.
        let at = (id as usize).checked_sub(run * outputs.len())?;
        Some((workload.prompts[at].ids.len(), &outputs[at][..]))
    })
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
    Ok(())
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
