//! The limits of this machine, measured, and the passes of a pair beside them.

use super::bed::{Bed, PAGE};
use crate::args::CeilingsArgs;
use crate::failure::Failure;
use crate::session::{cpu, load, on_host};
use device::Cpu;
use engine::OnHost;
use kernels::{ceiling, gemm};
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::{Pass, Work};
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

/// Words of the buffer that is read: 256 MiB, several times the caches.
const WORDS: usize = 32 << 20;
/// Bytes of it that are worth a thread's while to write.
const CHUNK: usize = 1 << 20;
/// Rounds of multiplications in one reading, some milliseconds.
const ROUNDS: usize = 1 << 19;
/// How long each thing is repeated. Short, so that limits and passes are seen in the same seconds: a
/// machine's speed wanders.
const REPEAT: Duration = Duration::from_millis(250);

/// What the machine can do in a second.
struct Ceilings {
    bytes: f64,
    /// Integer operations, as the products of quantized weights do them.
    integers: f64,
    floats: f64,
}

pub(crate) fn run(args: CeilingsArgs) -> Result<(), Failure> {
    let cpu = cpu(&args.model);
    let pair = load(&args.model)?;
    let most = args.rows.iter().max().copied().unwrap_or(1);
    let context = pair.context();
    let models = on_host(&pair)?;
    if args.context + most > context {
        return Err(Failure::input(format!(
            "--context {}: with {most} rows it passes the model's {context} tokens; give less",
            args.context
        )));
    }
    let ceilings = measure(&cpu);
    let mut out = stdout().lock();
    writeln!(out, "{} threads; fastest tenth of the readings", cpu.threads())?;
    writeln!(out, "memory    {:>8.1} GB/s", ceilings.bytes / 1e9)?;
    writeln!(out, "integers  {:>8.0} GOP/s", ceilings.integers / 1e9)?;
    writeln!(out, "floats    {:>8.0} GFLOP/s", ceilings.floats / 1e9)?;
    writeln!(
        out,
        "\n{:<24} {:>9} {:>8} {:>9} {:>9} {:>9} {:>8}",
        "pass", "MB", "GOP", "read, ms", "mult, ms", "took, ms", "of limit"
    )?;
    for &rows in &args.rows {
        let (body, head) = target(&cpu, models, args.context, rows);
        let (layers, output) = models.target.work();
        row(&mut out, &ceilings, &format!("target {rows} rows"), (layers, rows), body)?;
        row(&mut out, &ceilings, &format!("  its head on {rows}"), (output, rows), head)?;
    }
    if let Some(draft) = &models.draft {
        let took = drafter(&cpu, models, draft, args.context);
        let (block, what) = (draft.config().block, "drafter, one block");
        row(&mut out, &ceilings, what, (draft.work(), block), took)?;
    }
    Ok(out.flush()?)
}

/// One line: what a pass takes at least, and what it took in seconds.
fn row(
    out: &mut impl Write,
    ceilings: &Ceilings,
    name: &str,
    (work, rows): (Work, usize),
    took: f64,
) -> Result<(), Failure> {
    let operations = (2 * work.weights * rows) as f64;
    let (read, multiply) = (work.bytes as f64 / ceilings.bytes, operations / ceilings.integers);
    writeln!(
        out,
        "{name:<24} {:>9.1} {:>8.2} {:>9.2} {:>9.2} {:>9.2} {:>6.0} %",
        work.bytes as f64 / 1e6,
        operations / 1e9,
        read * 1e3,
        multiply * 1e3,
        took * 1e3,
        100.0 * read.max(multiply) / took,
    )?;
    Ok(())
}

fn measure(cpu: &Cpu) -> Ceilings {
    let bytes = WORDS * size_of::<u64>();
    let buffer = cpu.replicated(bytes, CHUNK, &|_, chunk| chunk.fill(1));
    let seconds = time(|| _ = std::hint::black_box(ceiling::read(cpu, &buffer, WORDS)));
    let mut operations = 0;
    let integers = time(|| operations = gemm::integer_products(cpu, ROUNDS));
    let integers = operations as f64 / integers;
    let floats = time(|| operations = ceiling::floats(cpu, ROUNDS));
    Ceilings { bytes: bytes as f64 / seconds, integers, floats: operations as f64 / floats }
}

/// Seconds of a pass of `rows` rows of one request after `context` tokens, and of the head on them.
fn target(cpu: &Cpu, models: &OnHost, context: usize, rows: usize) -> (f64, f64) {
    let mut bed = Bed::new(models, context + rows);
    bed.lay(&vec![0; rows], context);
    let all: Vec<usize> = (0..rows).collect();
    let body = time(|| bed.forward(cpu));
    (body, time(|| _ = bed.head(cpu, &all)))
}

/// Seconds of a draft pass of one block after `context` tokens, without the head.
fn drafter(cpu: &Cpu, models: &OnHost, model: &Dflash, context: usize) -> f64 {
    let pages: Vec<u32> = (0..(context + 1).div_ceil(PAGE) as u32).collect();
    let kv = model.kv_pool(models.kv, pages.len(), PAGE);
    let (mut w, mut pass) = (DraftWorkspace::default(), Pass::default());
    pass.push_block(&vec![0; model.config().block], context, &pages);
    time(|| model.draft(cpu, &mut w, &kv, &models.target, &pass))
}

/// Seconds of the slowest of the fastest tenth of the calls: on a shared machine the others measure
/// the neighbours.
fn time(mut call: impl FnMut()) -> f64 {
    let (begun, mut calls) = (Instant::now(), Vec::new());
    while calls.len() < 10 || begun.elapsed() < REPEAT {
        let start = Instant::now();
        call();
        calls.push(start.elapsed().as_secs_f64());
    }
    calls.sort_unstable_by(f64::total_cmp);
    calls[calls.len() / 10]
}
