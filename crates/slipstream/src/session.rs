//! A loaded pair and its engine, as every command that generates uses them.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "session/no_cuda.rs"]
mod cuda;

use crate::args::{ModelArgs, Numa, Place, SamplingArgs};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use device::{Cpu, Device, Nodes, Threads};
use engine::draft::Drafter;
use engine::{
    Collector, Engine, EngineOptions, FinishReason, Limits, OnHost, Output, Pair, PairOptions,
    Parts, Request, Sampling, Speculation, Stops, Update,
};
use fetch::{Effort, Progress, Sources};
use kernels::kv_store::KvFormat;
use model::chat::{ChatOptions, ChatTemplate, Message};
use model::tokenizer::Tokenizer;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    interrupt: Interrupt,
    model: String,
    speculation: Speculation,
}

/// What to do with the text while it arrives.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Update) -> io::Result<()>;

/// Whether a card tells how long its jobs take, which costs two more events a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CardTiming {
    Off,
    On,
}

/// A card to be opened: which, where compiled kernels are kept, and whether it times its jobs.
type Opening = (Place, PathBuf, CardTiming);

/// Fetches and loads the pair that `args` names.
pub(crate) fn load(args: &ModelArgs) -> Result<Pair, Failure> {
    load_timed(args, CardTiming::Off)
}

/// The same, on a card that may time its jobs.
pub(crate) fn load_timed(args: &ModelArgs, timing: CardTiming) -> Result<Pair, Failure> {
    load_with(args, &pair_options(args), timing)
}

/// How `args` say that a pair is held.
pub(crate) fn pair_options(args: &ModelArgs) -> PairOptions {
    PairOptions { kv: args.kv_type.unwrap_or_default(), ..PairOptions::default() }
}

/// As [`load`], with weights, keys and values held as `options` say.
pub(crate) fn load_as(args: &ModelArgs, options: &PairOptions) -> Result<Pair, Failure> {
    load_with(args, options, CardTiming::Off)
}

fn load_with(args: &ModelArgs, options: &PairOptions, timing: CardTiming) -> Result<Pair, Failure> {
    let sources = Sources::from_env()?;
    let progress = Progress::for_stderr();
    let target = sources.resolve(&args.model, Effort::UseLocal, progress)?;
    if let (Place::Cuda(_), Some(KvFormat::F32 | KvFormat::Int8)) = (args.device, args.kv_type) {
        return Err(Failure::input(
            "--kv-type: a GPU stores keys and values as bf16; leave it out, or run with --device cpu",
        ));
    }
    let cpu = cpu(args);
    if cpu.nodes() > 1 {
        eprintln!(
            "note: {} memory nodes, each holds a copy of the weights; --numa off holds one for all",
            cpu.nodes()
        );
    }
    let opening = (args.device, sources.cache.join("kernels"), timing);
    if let Some(config) = &args.random_weights {
        let blocks = &args.random_blocks[..];
        if !blocks.is_sorted_by(|a, b| a < b) {
            return Err(Failure::input(
                "--random-blocks: give numbers that ascend, such as 4,8,16",
            ));
        }
        let pair = cuda::random(opening, &cpu, (config, blocks), &target)?;
        eprintln!("note: {}: random weights: the text means nothing", config.display());
        return Ok(pair);
    }
    let draft = drafter(args, &sources, progress)?;
    let pair = match args.device {
        Place::Cpu => Pair::load(&cpu, &target, draft.as_deref(), options)?,
        Place::Cuda(_) => cuda::load(opening, &cpu, &target, draft.as_deref())?,
    };
    for name in pair.unused() {
        eprintln!("warning: {}: tensor {name} is not used", target.display());
    }
    Ok(pair)
}

/// The models of a pair that has to run on the CPU.
///
/// # Errors
/// They run elsewhere.
pub(crate) fn on_host(pair: &Pair) -> Result<&OnHost, Failure> {
    let elsewhere = "--device: what this command measures is a CPU's: run it with --device cpu";
    pair.on_host().ok_or_else(|| Failure::input(elsewhere))
}

/// An engine over `pair`.
///
/// # Errors
/// Memory that the device does not have.
pub(crate) fn engine(pair: Pair, options: EngineOptions) -> Result<Engine, Failure> {
    engine_on(&Threads::new(), pair, options)
}

/// As [`engine()`], on a device of the caller's.
fn engine_on(device: &Threads, pair: Pair, options: EngineOptions) -> Result<Engine, Failure> {
    pair.fits(&options)?;
    Ok(Engine::on(device, pair, options))
}

/// As [`engine()`], whose drafter is what `around` makes of the pair's own. What steps cost is measured with that one.
///
/// # Errors
/// Memory that the device does not have.
pub(crate) fn engine_around(
    pair: Pair,
    mut options: EngineOptions,
    around: impl FnOnce(Box<dyn Drafter>) -> Box<dyn Drafter>,
) -> Result<Engine, Failure> {
    pair.fits(&options)?;
    let (device, mut parts) = (Threads::new(), Parts::of(pair, &options));
    parts.measure(device.clock(), &mut options);
    parts.drafter = around(parts.drafter);
    Ok(Engine::assemble(&device, parts, options))
}

/// The threads that compute, on the machine's memory nodes if `args` ask for that and weights are read there.
pub(crate) fn cpu(args: &ModelArgs) -> Cpu {
    let nodes = match (args.device, args.numa) {
        (Place::Cpu, Numa::Replicate) => Nodes::host(),
        (Place::Cpu, Numa::Off) | (Place::Cuda(_), _) => Nodes::one(),
    };
    Cpu::on(&nodes, threads(args))
}

/// How many compute.
pub(crate) fn threads(args: &ModelArgs) -> usize {
    let cpus = || thread::available_parallelism().map_or(1, |cpus| cpus.get());
    args.threads.unwrap_or_else(cpus)
}

impl Session {
    /// Fetches and loads what `args` names, and starts an engine over it.
    pub(crate) fn open(args: &ModelArgs) -> Result<Session, Failure> {
        Session::open_on(&Threads::new(), args)
    }

    /// As [`Session::open`], on a device of the caller's.
    pub(crate) fn open_on(device: &Threads, args: &ModelArgs) -> Result<Session, Failure> {
        let pair = load(args)?;
        let (tokenizer, template) = (Arc::clone(&pair.tokenizer), pair.template.clone());
        Ok(Session {
            engine: engine_on(device, pair, EngineOptions::default())?,
            tokenizer,
            template,
            interrupt: Interrupt::install(),
            model: args.model.clone(),
            speculation: match (args.plain, args.width) {
                (true, _) => Speculation::Off,
                (false, Some(width)) => Speculation::Width(width),
                (false, None) => Speculation::Auto,
            },
        })
    }

    /// Whether there is a drafter to draft with.
    pub(crate) fn drafts(&self) -> bool {
        self.engine.info().draft.is_some()
    }

    /// A conversation as ids, by the model's template.
    pub(crate) fn encode_chat(&self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let Some(template) = &self.template else {
            return Err(Failure::input(format!(
                "{}: has no chat template; use `slipstream generate` without --chat",
                self.model
            )));
        };
        Ok(template.encode(&self.tokenizer, messages, &ChatOptions::default())?)
    }

    /// A request of `prompt` as the options say.
    pub(crate) fn request(
        &self,
        prompt: Vec<u32>,
        args: &SamplingArgs,
        sampling: Sampling,
    ) -> Request {
        let ids = if args.ignore_eos { Vec::new() } else { self.tokenizer.end_ids().to_vec() };
        Request {
            sampling,
            shaping: args.shaping.shaping(),
            stops: Stops { ids, strings: args.stop.clone() },
            limits: Limits {
                max_tokens: Some(args.max_tokens),
                min_tokens: args.min_tokens,
                timeout: args.timeout,
            },
            speculation: self.speculation,
            ..Request::new(prompt)
        }
    }

    /// Runs one request to its end. Ctrl-C ends it early, as [`FinishReason::Cancelled`].
    pub(crate) fn run(&mut self, request: Request, sink: Sink<'_>) -> Result<Output, Failure> {
        self.interrupt.reset();
        let id = self.engine.submit(request)?;
        let mut collector = Collector::default();
        let mut cancelled = false;
        loop {
            if self.interrupt.pressed() && !cancelled {
                cancelled = true;
                self.engine.cancel(id);
            }
            for update in self.engine.turn()? {
                sink(&update)?;
                if let Some(output) = collector.add(update) {
                    return Ok(output);
                }
            }
        }
    }
}

/// A run that Ctrl-C ended ends a command that is not a conversation.
pub(crate) fn uninterrupted(reason: FinishReason) -> Result<(), Failure> {
    match reason {
        FinishReason::Cancelled => Err(Failure::Interrupted),
        FinishReason::Stop
        | FinishReason::Length
        | FinishReason::TimedOut
        | FinishReason::Stuck => Ok(()),
    }
}

/// The drafter to load: the one named, or the one that belongs to a known target.
fn drafter(
    args: &ModelArgs,
    sources: &Sources,
    progress: Progress,
) -> Result<Option<PathBuf>, Failure> {
    if args.plain {
        return Ok(None);
    }
    let own = sources.drafter_for(&args.model).map(|known| known.name);
    let Some(name) = args.draft.as_deref().or(own) else {
        eprintln!("note: no drafter is known for {}; name one with --draft", args.model);
        return Ok(None);
    };
    match sources.resolve(name, Effort::UseLocal, progress) {
        Ok(path) => Ok(Some(path)),
        Err(error) if args.draft.is_none() => {
            Err(Failure::input(format!("{error}\nor run without a drafter: --plain")))
        }
        Err(error) => Err(error.into()),
    }
}
