//! Runs a load on every setting that is compared, in turns that mirror one another: A B B A.

use super::args::{LoadArgs, Mode};
use super::items::Item;
use super::play::{Load, Pacing, Played, play};
use super::truth::{Outputs, Truth};
use crate::args::ModelArgs;
use crate::commands::bench::mirrored;
use crate::failure::Failure;
use crate::session::load;
use device::{Device, Fence, Threads};
use engine::draft::Simulated;
use engine::{Engine, EngineOptions, Info, Pair, Parts, Speculation};

/// Concurrencies when nobody says which.
const CONCURRENCIES: [usize; 3] = [1, 4, 16];
/// Requests that run at once when no concurrency says how many.
const RUNNING: usize = 64;

/// What one run is run with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) mode: Mode,
    pub(super) fence: Fence,
}

/// One measured run.
pub(super) struct Run {
    pub(super) pacing: Pacing,
    pub(super) setting: Setting,
    /// Which of the repeats, from 0.
    pub(super) repeat: usize,
    pub(super) played: Played,
}

/// The engines and what is to be run on them.
pub(super) struct Comparison<'a> {
    args: &'a LoadArgs,
    items: &'a [Item],
    pacings: Vec<Pacing>,
    modes: Vec<Mode>,
    ends: Vec<u32>,
    engines: Vec<(Fence, Engine)>,
    truth: Truth,
    /// Plain outputs, when acceptance is simulated.
    outputs: Option<Outputs>,
}

impl<'a> Comparison<'a> {
    /// Starts an engine a fence over `pair` and what else is loaded of it.
    ///
    /// # Errors
    /// Options that do not go together, and models that cannot be loaded.
    pub(super) fn start(
        args: &'a LoadArgs,
        items: &'a [Item],
        pair: Pair,
    ) -> Result<Comparison<'a>, Failure> {
        let pacings = pacings(args, items.len())?;
        let (ends, truth) = (pair.tokenizer.end_ids().to_vec(), Truth::default());
        let options = options(args, items, &pacings, &pair)?;
        let mut pair = Some(pair);
        let mut engines = Vec::new();
        for &fence in &args.settings.fence {
            let pair = pair.take().map_or_else(|| load(&args.model), Ok)?;
            let options = EngineOptions { fence, ..options.clone() };
            engines.push((fence, engine(args, pair, options, &truth)?));
        }
        let modes = modes(args, engines[0].1.info())?;
        Ok(Comparison { args, items, pacings, modes, ends, engines, truth, outputs: None })
    }

    /// What the engines work with.
    pub(super) fn info(&self) -> &Info {
        self.engines[0].1.info()
    }

    /// Warms up, then runs every load on every setting, `--repeats` times. `heard` is told of each
    /// run as it ends.
    ///
    /// # Errors
    /// A request that an engine refuses, or a lost device.
    pub(super) fn run(&mut self, heard: &mut dyn FnMut(&Run)) -> Result<Vec<Run>, Failure> {
        if self.args.settings.simulate_acceptance.is_some() {
            let plain = self.play(0, self.items, Pacing::Offline, Mode::Plain)?;
            self.outputs = Some(plain.outputs().into_iter().map(Into::into).collect());
        }
        let warmup = &self.items[..self.args.settings.warmup.min(self.items.len())];
        for engine in 0..self.engines.len() {
            for mode in self.modes.clone() {
                self.play(engine, warmup, Pacing::Offline, mode)?;
            }
        }
        let mut runs = Vec::new();
        for pacing in self.pacings.clone() {
            for repeat in 0..self.args.settings.repeats {
                for (engine, mode) in mirrored(self.settings(), repeat) {
                    let played = self.play(engine, self.items, pacing, mode)?;
                    let setting = Setting { mode, fence: self.engines[engine].0 };
                    runs.push(Run { pacing, setting, repeat, played });
                    heard(&runs[runs.len() - 1]);
                }
            }
        }
        Ok(runs)
    }

    /// Every engine with every mode.
    fn settings(&self) -> Vec<(usize, Mode)> {
        let engines = 0..self.engines.len();
        engines.flat_map(|engine| self.modes.iter().map(move |&mode| (engine, mode))).collect()
    }

    fn play(
        &mut self,
        engine: usize,
        items: &[Item],
        pacing: Pacing,
        mode: Mode,
    ) -> Result<Played, Failure> {
        let speculation = match (mode, self.args.model.width) {
            (Mode::Plain, _) => Speculation::Off,
            (Mode::Drafted, Some(width)) => Speculation::Width(width),
            (Mode::Drafted, None) => Speculation::Auto,
        };
        self.truth.forget();
        let (truth, outputs) = (&self.truth, &self.outputs);
        let load = Load { items, pacing, ends: &self.ends, speculation };
        play(&mut self.engines[engine].1, load, &mut |id, i| {
            if let Some(outputs) = outputs {
                truth.submitted(id, &items[i], &outputs[i]);
            }
        })
    }
}

/// The loads that are run one after another.
fn pacings(args: &LoadArgs, requests: usize) -> Result<Vec<Pacing>, Failure> {
    let arrivals = &args.arrivals;
    let given = &arrivals.concurrency[..];
    let concurrencies: Vec<usize> = match (given, &arrivals.trace, arrivals.offline) {
        (_, _, true) => return Ok(vec![Pacing::Offline]),
        ([], Some(_), false) => return Ok(vec![Pacing::Arrivals(arrivals.trace_speed)]),
        ([], None, false) => CONCURRENCIES.into_iter().filter(|&c| c <= requests).collect(),
        (given, _, false) => given.to_vec(),
    };
    if let Some(most) = concurrencies.iter().find(|&&most| most > requests) {
        return Err(Failure::input(format!(
            "--concurrency {most}: there are {requests} requests; give --requests at least as many"
        )));
    }
    if args.output.save_trace.is_some() && concurrencies.len() > 1 {
        return Err(Failure::input(
            "--save-trace: several loads were asked for, a trace holds one; give one --concurrency",
        ));
    }
    Ok(concurrencies.into_iter().map(Pacing::Closed).collect())
}

/// What is compared, by default what a user would get.
fn modes(args: &LoadArgs, info: &Info) -> Result<Vec<Mode>, Failure> {
    let modes = match (&args.settings.compare[..], &info.draft) {
        ([], Some(_)) => vec![Mode::Drafted],
        ([], None) => vec![Mode::Plain],
        (given, _) => given.to_vec(),
    };
    if modes.contains(&Mode::Drafted) && info.draft.is_none() {
        return Err(Failure::input(
            "--compare drafted: there is no drafter; name one with --draft",
        ));
    }
    Ok(modes)
}

/// Options of engines that hold the requests of every load at once.
///
/// # Errors
/// KV memory that does not hold the longest of them.
fn options(
    args: &LoadArgs,
    items: &[Item],
    pacings: &[Pacing],
    pair: &Pair,
) -> Result<EngineOptions, Failure> {
    // A request that has ended keeps its row and pages until the step that mentions it has landed:
    // the one that follows it in a closed loop is not to wait for them.
    let open = |pacing: &Pacing| match *pacing {
        Pacing::Closed(open) => 2 * open,
        Pacing::Offline | Pacing::Arrivals(_) => RUNNING.min(items.len()),
    };
    let most = pacings.iter().map(open).max().expect("there is a load");
    let running = args.settings.running.unwrap_or(most);
    let defaults = EngineOptions::default();
    let slots = |item: &Item| {
        let tokens = (item.prompt.len() + item.max_tokens).min(pair.context());
        tokens.next_multiple_of(defaults.page_size)
    };
    let mut slots: Vec<usize> = items.iter().map(slots).collect();
    slots.sort_unstable_by(|a, b| b.cmp(a));
    let needed: usize = slots.iter().take(running).sum();
    let kv_tokens = needed.max(pair.context()).min(pair.affordable_kv_tokens()).max(slots[0]);
    let kv_tokens = args.settings.kv_tokens.unwrap_or(kv_tokens);
    if kv_tokens < slots[0] {
        return Err(Failure::input(format!(
            "--kv-tokens {kv_tokens}: the longest request needs {}; give at least that",
            slots[0]
        )));
    }
    Ok(EngineOptions {
        kv_tokens: Some(kv_tokens),
        max_running: running,
        // None of the load is refused because others wait.
        max_waiting: items.len(),
        chunk: args.settings.chunk,
        ..defaults
    })
}

/// An engine over `pair`, whose drafter is wrapped when acceptance is simulated.
fn engine(
    args: &LoadArgs,
    pair: Pair,
    mut options: EngineOptions,
    truth: &Truth,
) -> Result<Engine, Failure> {
    let ModelArgs { width, .. } = args.model;
    let own = pair.block();
    pair.fits(&options)?;
    let mut parts = Parts::of(pair, &options);
    let device = Threads::new();
    parts.measure(device.clock(), &mut options);
    if let Some(simulation) = &args.settings.simulate_acceptance {
        let width = width.unwrap_or(options.width.min(own.unwrap_or(options.width)));
        let chances = simulation.chances(width).map_err(Failure::input)?;
        let (block, truth) = (own.unwrap_or(width), truth.clone());
        let token = move |id, position| truth.token(id, position);
        parts.drafter = Box::new(Simulated::new(parts.drafter, block, chances, token));
    }
    Ok(Engine::assemble(&device, parts, options))
}
