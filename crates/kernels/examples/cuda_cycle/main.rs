//! One drafting cycle of a synthetic model on a CUDA card, captured as one graph and timed beside
//! plain decoding, its kernels one by one, and what the card's memory allows.
//!
//! ```text
//! cuda_cycle [qwen3-8b|smollm2-135m] [CONTEXT] [REQUESTSxROWS]
//! ```
//!
//! With a crowd, such as `32x8`, it is one pass instead that verifies so many rows of each of so many requests, chosen
//! greedily. Crowds and contexts may be lists then: `cuda_cycle qwen3-8b 128,640 32x4,32x8`. Rows are as named, where an
//! engine would fill a pass up to its next size.
//!
//! The weights are random: the work is that of the real model, the text is not. A cycle is what a
//! step does for one request: absorb 16 rows, draft 16 rows, with 5 layers or 3, verify 16 rows, choose,
//! accept. Limits are the bytes of weights and KV over the read rate that the same run measured; of a
//! single kernel, of all that it reads and writes, which for short ones lies in the card's cache.

mod buffers;
mod crowd;
mod model;
mod parts;
mod pass;
mod plan;
mod weights;

use buffers::{Buffers, WIDTH};
use crowd::Crowd;
use device::cuda::{Cuda, CudaOptions, Grid, JobTiming, Kernel, Module, Reads, Source, Writes};
use device::{Device, Forward, Lane, LaneId, Lanes, Reason, Shared};
use model::{Model, QWEN3_8B, SMOLLM2_135M};
use parts::{Part, Step};
use pass::Program;
use plan::{Kernels, Plan};
use std::error::Error;
use std::sync::Arc;
use weights::{Arena, Fill};

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
        (kernels, plan): (&Kernels, &Arc<Plan>),
        (step, crowd, whole): (Step, Crowd, f64),
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
            let program = Program::part(kernels, plan, (part, crowd));
            let ways = (program.way(), program.storer(), program.gater());
            let launches = part.launches(&plan.model, step, ways);
            if launches == 0 {
                continue;
            }
            let time = self.program(buffers, arena, program)?;
            let [each, least, most] =
                [time.median, time.least, time.most].map(|ms| ms * 1e3 / part.times(plan) as f64);
            let bytes = part.bytes(plan, &crowd);
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

    /// Times a program as one graph and prints it in a line; returns the median, in milliseconds.
    fn line(
        &self,
        (buffers, arena): (&mut Buffers, &Arena),
        (name, program): (&str, Program),
        ceiling: f64,
    ) -> Result<f64, Box<dyn Error>> {
        let gigabytes = program.gigabytes();
        let Time { median, least, most } = self.program(buffers, arena, program)?;
        let share = gigabytes / ceiling / median * 100.0;
        println!(
            "{name:<28} {median:>9.4} ({least:>7.4} – {most:>7.4}) {gigabytes:>8.4} {share:>6.1} %"
        );
        Ok(median)
    }

    /// A cycle of one request and plain decoding, and their kernels.
    fn cycle(
        &self,
        arena: &Arena,
        (kernels, plan): (&Kernels, &Arc<Plan>),
        (context, ceiling): (usize, f64),
    ) -> Result<(), Box<dyn Error>> {
        let wide = Crowd::one(WIDTH, context);
        let mut buffers = Buffers::new(&self.lane, plan, &wide);
        print_heads();
        let mut medians = Vec::new();
        for program in Program::passes(kernels, plan, context) {
            let name = program.name();
            medians.push(self.line((&mut buffers, arena), (&name, program), ceiling)?);
        }
        let [cycle, plain, ..] = medians[..] else {
            panic!("a cycle and plain decoding are timed")
        };
        let plain = (Step::Plain, Crowd::one(1, context), plain);
        for step in [plain, (Step::Cycle, wide, cycle)] {
            self.table((&mut buffers, arena), (kernels, plan), step, ceiling)?;
        }
        Ok(())
    }

    /// The pass that verifies the rows of a crowd, and its kernels.
    fn crowd(
        &self,
        (arena, fill): (&Arena, &Fill),
        (kernels, plan): (&Kernels, &Arc<Plan>),
        (crowd, ceiling): (Crowd, f64),
    ) -> Result<(), Box<dyn Error>> {
        let mut buffers = Buffers::new(&self.lane, plan, &crowd);
        buffers.fill_pages(self.forward(), fill);
        print_heads();
        let program = Program::verify_of(kernels, plan, crowd);
        let name = format!("{crowd}, {} rows", crowd.rows());
        let whole = self.line((&mut buffers, arena), (&name, program), ceiling)?;
        let step = (Step::Verify, crowd, whole);
        self.table((&mut buffers, arena), (kernels, plan), step, ceiling)?;
        println!();
        Ok(())
    }
}

/// What stands above [`Bench::line`].
fn print_heads() {
    println!("{:<28} {:>9} {:>17} {:>8} {:>8}", "what", "ms", "(least – most)", "GB", "of limit");
}

/// What is measured.
enum Task {
    /// A cycle of one request that has so many tokens in KV.
    Cycle(usize),
    /// Passes of crowds, one after the other.
    Crowds(Vec<Crowd>),
}

impl Task {
    fn of(context: Option<&str>, crowds: Option<&str>) -> Result<Task, Box<dyn Error>> {
        let context = context.unwrap_or("1024");
        Ok(match crowds {
            None => Task::Cycle(context.parse()?),
            Some(crowds) => Task::Crowds(Crowd::parse(crowds, context)?),
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize| arguments.get(i).map(String::as_str);
    let model: Model = match argument(0) {
        None | Some("qwen3-8b") => QWEN3_8B,
        Some("smollm2-135m") => SMOLLM2_135M,
        Some(other) => return Err(format!("`{other}` is neither qwen3-8b nor smollm2-135m").into()),
    };
    let task = Task::of(argument(1), argument(2))?;
    let options = CudaOptions { timing: JobTiming::On, ..CudaOptions::default() };
    let cuda = Cuda::new(options)?;
    let module = Module::load(&cuda, &SOURCE)?;
    // SAFETY: kernel.cu declares these parameters and stays within the slices on any grid.
    let (fill, read) = unsafe { (module.kernel("fill")?, module.kernel("read")?) };
    let bench = Bench { lane: Lanes::new(&cuda), read, cuda };
    let arena = Arena::new(&bench.lane, &fill, model, bench.cuda.multiprocessors());
    let of = match &task {
        Task::Cycle(context) => format!(", context {context}"),
        Task::Crowds(_) => ", crowds".to_owned(),
    };
    println!("{} ({}), {}: synthetic{of}", bench.cuda.name(), bench.cuda.target(), model.name);
    let ceiling = bench.ceiling(&arena)?;
    println!("reads at most {:.0} GB/s\n", ceiling * 1e3);
    let (kernels, plan) = (Kernels::load(&bench.cuda)?, arena.plan.clone());
    match task {
        Task::Cycle(context) => bench.cycle(&arena, (&kernels, &plan), (context, ceiling)),
        Task::Crowds(crowds) => crowds.into_iter().try_for_each(|crowd| {
            bench.crowd((&arena, &fill), (&kernels, &plan), (crowd, ceiling))
        }),
    }
}
