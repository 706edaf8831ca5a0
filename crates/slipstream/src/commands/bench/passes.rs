//! Passes of the target, each timed by itself: what other engines' benchmarks measure too.

use super::bed::Bed;
use crate::args::{ModelArgs, at_least_one};
use crate::failure::Failure;
use crate::session::{cpu, load, on_host};
use clap::Args;
use device::Cpu;
use engine::OnHost;
use serde::Serialize;
use std::io::{Write, stdout};
use std::time::Instant;

#[derive(Debug, Args)]
pub(crate) struct PassesArgs {
    /// Rows of the passes
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,16,512", value_parser = at_least_one)]
    rows: Vec<usize>,
    /// Tokens before the rows of a pass
    #[arg(long, value_name = "N", default_value_t = 0)]
    context: usize,
    /// Readings of each, after one that does not count
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    readings: usize,
    /// One JSON object a line instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

/// Readings of one pass, each in seconds.
#[derive(Serialize)]
struct Readings {
    rows: usize,
    context: usize,
    /// Layers on all rows and the head on the last: a prompt.
    prompt: Vec<f64>,
    /// Layers and head on all rows: a block to verify.
    verify: Vec<f64>,
}

pub(crate) fn run(args: PassesArgs) -> Result<(), Failure> {
    let model = ModelArgs { plain: true, ..args.model };
    let (cpu, pair) = (cpu(&model), load(&model)?);
    let (most, context) = (args.rows.iter().max().copied().unwrap_or(1), args.context);
    let models = on_host(&pair)?;
    let limit = models.target.config().context;
    if context + most > limit {
        return Err(Failure::input(format!(
            "--context {context}: with {most} rows it passes the model's {limit} tokens; give less"
        )));
    }
    let mut out = stdout().lock();
    for &rows in &args.rows {
        let found = measure(&cpu, models, (context, rows), args.readings);
        if args.json {
            let json = serde_json::to_string(&found).expect("readings have text keys only");
            writeln!(out, "{json}")?;
        } else {
            let rate = |readings: &[f64]| rows as f64 / median(readings);
            writeln!(
                out,
                "{rows:>5} rows after {context}: prompt {:>8.2} ms, {:>7.1} rows/s; verify {:>8.2} ms, \
                 {:>7.1} rows/s; medians of {}",
                median(&found.prompt) * 1e3,
                rate(&found.prompt),
                median(&found.verify) * 1e3,
                rate(&found.verify),
                args.readings
            )?;
        }
    }
    Ok(out.flush()?)
}

/// Times passes of `rows` rows of one request after `context` tokens.
fn measure(
    cpu: &Cpu,
    models: &OnHost,
    (context, rows): (usize, usize),
    readings: usize,
) -> Readings {
    let mut bed = Bed::new(models, context + rows);
    let vocab = models.target.config().vocab;
    // Ids from all over the vocabulary, as the rows of a text are.
    let ids: Vec<u32> = (0..rows).map(|i| (i * 7919 % vocab) as u32).collect();
    bed.lay(&ids, context);
    let (last, all) = ([rows - 1], (0..rows).collect::<Vec<_>>());
    let mut time = |head: &[usize]| -> Vec<f64> {
        let readings = (0..=readings).map(|_| {
            let start = Instant::now();
            bed.forward(cpu);
            bed.head(cpu, head);
            start.elapsed().as_secs_f64()
        });
        readings.skip(1).collect()
    };
    Readings { rows, context, prompt: time(&last), verify: time(&all) }
}

/// The middle one of the readings; the upper of two.
fn median(readings: &[f64]) -> f64 {
    let mut sorted = readings.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
