//! One drafting cycle of a synthetic model on a CUDA card, captured as one graph and timed beside
//! plain decoding, its kernels one by one, and what the card's memory allows.
//!
//! ```text
//! cuda_cycle [qwen3-8b|smollm2-135m] [CONTEXT]
//! ```
//!
//! The weights are random: the work is that of the real model, the text is not. A cycle is what a
//! step does for one request: absorb 16 rows, draft 16 rows, with 5 layers or 3, verify 16 rows, choose,
//! accept. Limits are the bytes of weights and KV over the read rate that the same run measured; of a
//! single kernel, of all that it reads and writes, which for short ones lies in the card's cache.

mod buffers;
mod model;
mod parts;
mod pass;
mod weights;

use buffers::Buffers;
use device::cuda::{Cuda, CudaOptions, Grid, JobTiming, Kernel, Module, Reads, Source, Writes};
use device::{Device, Forward, Lane, LaneId, Lanes, Reason, Shared};
use model::{Model, QWEN3_8B, SMOLLM2_135M};
use parts::{Part, Step};
use pass::{Kernels, Plan, Program};
use std::error::Error;
use std::sync::Arc;
use weights::Arena;

/// The kernels of this program alone.
const SOURCE: Source = Source { name: "cuda_cycle.cu", text: include_str!("kernel.cu") };

/// Groups of replays that a median is taken of.
const GROUPS: usize = 7;
/// Milliseconds of replays that a group is about.
const GROUP_MS: f64 = 60.0;

/// A card, its forward lane and what it does.
struct Bench {
    cuda: Cuda,
    lane: Lanes<Cuda>,
    read: Kernel<(Reads<u16>, Writes<u32>)>,
}

/// Milliseconds of one run: the median of groups, the least and the most.
#[derive(Clone, Copy)]
struct Time {
    median: f64,
    least: f64,
    most: f64,
}

impl Bench {
    fn forward(&self) -> &Lane<Forward, Cuda> {
        &self.lane.forward
    }

    fn land(&self) -> Result<f64, Box<dyn Error>> {
        self.cuda.land(&self.forward().record(), Reason::Results)?;
        Ok(self.cuda.usage().busy[LaneId::Forward.index()].as_secs_f64() * 1e3)
    }

    /// Times what `launch` launches, after a few runs that do not count.
    fn time(&self, mut launch: impl FnMut()) -> Result<Time, Box<dyn Error>> {
        (0..3).for_each(|_| launch());
        let begun = self.land()?;
        launch();
        let one = self.land()? - begun;
        let runs = (GROUP_MS / one).ceil().clamp(3.0, 400.0) as usize;
        let mut times = Vec::new();
        for _ in 0..GROUPS {
            let begun = self.land()?;
            (0..runs).for_each(|_| launch());
            times.push((self.land()? - begun) / runs as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(Time { median: times[GROUPS / 2], least: times[0], most: times[GROUPS - 1] })
    }

    /// Gigabytes a millisecond that a kernel reads which does nothing else.
    fn ceiling(&self, arena: &Arena) -> Result<f64, Box<dyn Error>> {
        let mut found: Shared<u32, Forward, Cuda> = Shared::new(&self.cuda, "found", 1);
        let mut best = 0.0f64;
        for each in [4, 8, 16] {
            let grid = Grid { blocks: self.cuda.multiprocessors() * each, threads: 256 };
            let time = self.time(|| {
                let lane = self.forward();
                let (read, memory) = (self.read.clone(), arena.memory.read(lane));
                lane.launch(
                    "read",
                    (lane.queue(), memory.view(), found.write(lane).view()),
                    move |(queue, from, found)| queue.launch(&read, grid, (from, found)),
                );
            })?;
            best = best.max(arena.memory.len() as f64 * 2.0 / 1e9 / time.median);
        }
        Ok(best)
    }

    /// Times a program, captured as one graph.
    fn program(
        &self,
        buffers: &mut Buffers,
        arena: &Arena,
        program: Program,
    ) -> Result<Time, Box<dyn Error>> {
        let lane = self.forward();
        let graph = buffers::with_views(lane, buffers, arena, |arguments| {
            lane.capture("program", arguments, move |seen| program.run(seen))
        });
        self.time(|| {
            buffers::with_views(lane, buffers, arena, |arguments| lane.replay(&graph, arguments))
        })
    }

    /// Prints what each kernel of a step takes, launched again and again, beside the step as one graph,
    /// which took `whole` milliseconds. `ceiling` is in gigabytes a millisecond.
    fn table(
        &self,
        (buffers, arena): (&mut Buffers, &Arena),
        (kernels, plan, context): (&Kernels, &Arc<Plan>, usize),
        (step, whole): (Step, f64),
        ceiling: f64,
    ) -> Result<(), Box<dyn Error>> {
        println!(
            "\n{:<28} {:>9} {:>9} {:>17} {:>8} {:>10} {:>9}",
            step.name(),
            "launches",
            "µs each",
            "(least – most)",
            "MB each",
            "of reading",
            "ms"
        );
        let mut all = 0.0;
        for part in Part::ALL {
            let rows = step.rows();
            let program = Program::part(kernels, plan, context, (part, rows));
            let launches = part.launches(&plan.model, step, (program.way(), program.storer()));
            if launches == 0 {
                continue;
            }
            let time = self.program(buffers, arena, program)?;
            let [each, least, most] =
                [time.median, time.least, time.most].map(|ms| ms * 1e3 / part.times(plan) as f64);
            let bytes = part.bytes(plan, rows, context);
            let share = bytes / 1e9 / ceiling / (each / 1e3) * 100.0;
            all += each * launches as f64 / 1e3;
            println!(
                "{:<28} {launches:>9} {each:>9.2} ({least:>7.2} – {most:>7.2}) {:>8.3} {share:>8.1} % {:>9.4}",
                part.name(),
                bytes / 1e6,
                each * launches as f64 / 1e3
            );
        }
        println!("{:<28} {:>77.4}", "together", all);
        println!("{:<28} {whole:>77.4}", "as one graph");
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let model: Model = match arguments.next().as_deref() {
        None | Some("qwen3-8b") => QWEN3_8B,
        Some("smollm2-135m") => SMOLLM2_135M,
        Some(other) => return Err(format!("`{other}` is neither qwen3-8b nor smollm2-135m").into()),
    };
    let context = arguments.next().map_or(Ok(1024), |text| text.parse())?;
    let options = CudaOptions { timing: JobTiming::On, ..CudaOptions::default() };
    let cuda = Cuda::new(options)?;
    let module = Module::load(&cuda, &SOURCE)?;
    // SAFETY: kernel.cu declares these parameters and stays within the slices on any grid.
    let (fill, read) = unsafe { (module.kernel("fill")?, module.kernel("read")?) };
    let bench = Bench { lane: Lanes::new(&cuda), read, cuda };
    let arena = Arena::new(&bench.lane, &fill, model, bench.cuda.multiprocessors());
    let mut buffers = Buffers::new(&bench.lane, model, &arena, context);
    println!(
        "{} ({}), {}: synthetic, context {context}",
        bench.cuda.name(),
        bench.cuda.target(),
        model.name
    );
    let ceiling = bench.ceiling(&arena)?;
    println!("reads at most {:.0} GB/s\n", ceiling * 1e3);
    println!("{:<28} {:>9} {:>17} {:>8} {:>8}", "what", "ms", "(least – most)", "GB", "of limit");
    let kernels = Kernels::load(&bench.cuda)?;
    let plan = Arc::new(Plan::of(&arena));
    let mut medians = Vec::new();
    for program in Program::passes(&kernels, &plan, context) {
        let (name, gigabytes) = (program.name(), program.gigabytes());
        let Time { median, least, most } = bench.program(&mut buffers, &arena, program)?;
        medians.push(median);
        let share = gigabytes / ceiling / median * 100.0;
        println!(
            "{name:<28} {median:>9.4} ({least:>7.4} – {most:>7.4}) {gigabytes:>8.4} {share:>6.1} %"
        );
    }
    let [cycle, plain, ..] = medians[..] else { panic!("a cycle and plain decoding are timed") };
    for step in [(Step::Plain, plain), (Step::Cycle, cycle)] {
        bench.table((&mut buffers, &arena), (&kernels, &plan, context), step, ceiling)?;
    }
    Ok(())
}
