//! Measures whole passes of a pair: the target's over some rows of one request, its head, and the
//! drafter's.
//!
//!     cargo run --release -p slipstream-model --example pass_speed TARGET [DRAFTER [threads]]
//!
//! Milliseconds: the slowest of the fastest tenth, since on a shared machine the others measure the
//! neighbours, and the median.

use device::Cpu;
use model::Precision;
use model::checkpoint::Checkpoint;
use model::decoder::{Decoder, Workspace};
use model::dflash::{Dflash, DraftWorkspace};
use model::pass::Pass;
use std::path::Path;
use std::time::{Duration, Instant};

const ROWS: [usize; 7] = [1, 2, 4, 6, 8, 16, 256];
/// Tokens before the rows of a pass.
const CONTEXT: usize = 200;
const PAGE: usize = 16;
/// How long each pass is repeated, so that all of them are seen within the same second or two: the
/// machine's speed wanders. Run it several times.
const REPEAT: Duration = Duration::from_millis(200);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(target) = arguments.next() else {
        eprintln!("pass_speed TARGET [DRAFTER [threads]]: name the target's file or folder");
        std::process::exit(2);
    };
    let drafter = arguments.next();
    let threads = arguments.next().map(|t| t.parse().expect("a number of threads"));
    let cpu = threads.map_or_else(Cpu::host, Cpu::new);
    let files = Checkpoint::open(Path::new(&target)).expect("the target opens");
    let decoder = Decoder::load(&cpu, &files, Precision::AsStored).expect("the target loads");
    println!("{} threads, {CONTEXT} tokens before; ms: fastest tenth (median)", cpu.threads());
    for rows in ROWS {
        target_passes(&cpu, &decoder, rows);
    }
    if let Some(drafter) = drafter {
        let model = Dflash::load(&cpu, Path::new(&drafter), files.config(), None, Precision::Int8);
        draft_passes(&cpu, &decoder, &model.expect("the drafter loads"));
    }
}

/// Passes of `rows` rows, and the head on all of them.
fn target_passes(cpu: &Cpu, decoder: &Decoder, rows: usize) {
    let pages: Vec<u32> = (0..(CONTEXT + rows).div_ceil(PAGE) as u32).collect();
    let mut kv = decoder.kv_pool(pages.len(), PAGE);
    let (mut w, mut pass, mut logits) = (Workspace::default(), Pass::default(), Vec::new());
    pass.push(&vec![1; rows], CONTEXT, &pages, PAGE);
    let all: Vec<usize> = (0..rows).collect();
    let body = time(|| decoder.forward(cpu, &mut w, &mut kv, &pass, &[]));
    let head = time(|| decoder.logits(cpu, &mut w, &all, &mut logits));
    println!("verify {rows:>3} rows: {body}, head {head}");
}

/// Draft passes of one block, the head on some of its rows, and absorbing.
fn draft_passes(cpu: &Cpu, decoder: &Decoder, model: &Dflash) {
    let (block, vocab) = (model.config().block, decoder.config().vocab);
    let pages: Vec<u32> = (0..(CONTEXT + block).div_ceil(PAGE) as u32).collect();
    let mut kv = model.kv_pool(pages.len(), PAGE);
    let (mut w, mut pass, mut logits) = (DraftWorkspace::default(), Pass::default(), Vec::new());
    pass.push_block(&vec![1; block], CONTEXT, &pages);
    for (rows, ids) in [(0, 1), (3, vocab / 2), (3, vocab), (7, vocab / 2), (7, vocab)] {
        let wanted: Vec<usize> = (1..=rows).collect();
        let draft =
            time(|| model.draft(cpu, &mut w, &kv, decoder, &pass, &wanted, ids, &mut logits));
        println!("draft {block} rows, head on {rows} of them, {ids} ids: {draft}");
    }
    for rows in [1, 4, 64] {
        let features =
            vec![0.5; rows * model.config().target_layers.len() * decoder.config().hidden];
        let (positions, slots): (Vec<u32>, Vec<u32>) =
            ((0..rows as u32).collect(), (0..rows as u32).collect());
        let absorb = time(|| model.absorb(cpu, &mut w, &mut kv, &features, &positions, &slots));
        println!("absorb {rows} rows: {absorb}");
    }
}

/// How long `call` takes.
fn time(mut call: impl FnMut()) -> String {
    let (begin, mut calls) = (Instant::now(), Vec::new());
    while calls.len() < 10 || begin.elapsed() < REPEAT {
        let start = Instant::now();
        call();
        calls.push(start.elapsed().as_secs_f64() * 1e3);
    }
    calls.sort_unstable_by(f64::total_cmp);
    format!("{:.2} ({:.2})", calls[calls.len() / 10], calls[calls.len() / 2])
}
