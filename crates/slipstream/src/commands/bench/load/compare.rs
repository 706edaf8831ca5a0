//! Runs a load on every setting that is compared, in turns that mirror one another: A B B A.

use super::args::{LoadArgs, Mode};
use super::items::Item;
use super::play::{Load, Pacing, Played, play};
use super::truth::{Outputs, Truth};
use crate::commands::bench::mirrored;
use crate::failure::Failure;
use crate::session::{self, engine_around, load_timed};
use device::Fence;
use engine::draft::{Chances, Simulated, Spread};
use engine::{Engine, EngineOptions, Info, Meter, Pair, Speculation};
use std::sync::Arc;

/// Concurrencies when nobody says which.
const CONCURRENCIES: [usize; 3] = [1, 4, 16];
/// Requests that run at once when no concurrency says how many.
const RUNNING: usize = 64;

/// What one run is run with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) way: Way,
    pub(super) fence: Fence,
}

/// Whether requests draft, and which of the simulations their acceptance follows: the drafter's own
/// without one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Way {
    pub(super) mode: Mode,
    pub(super) simulation: Option<usize>,
}

/// One measured run.
pub(super) struct Run {
    pub(super) pacing: Pacing,
    pub(super) setting: Setting,
    /// Which of the repeats, from 0.
    pub(super) repeat: usize,
    pub(super) played: Played,
}

/// An engine with a fence of its own.
struct Bench {
    fence: Fence,
    engine: Engine,
    /// Of the card that it runs on, when that times its work.
    meter: Option<Meter>,
}

/// The engines and what is to be run on them.
pub(super) struct Comparison<'a> {
    args: &'a LoadArgs,
    items: &'a [Item],
    /// Each with how many of the items it has.
    loads: Vec<(Pacing, usize)>,
    ways: Vec<Way>,
    ends: Vec<u32>,
    engines: Vec<Bench>,
    truth: Truth,
    /// Of each simulation.
    chances: Vec<Arc<Chances>>,
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
        let loads = loads(args, items.len())?;
        let (ends, truth) = (pair.tokenizer.end_ids().to_vec(), Truth::default());
        let options = options(args, items, &loads, &pair)?;
        let chances = chances(args, &pair, &options)?;
        let mut pair = Some(pair);
        let mut engines = Vec::new();
        for &fence in &args.settings.fence {
            let again = || load_timed(&args.model, args.settings.timing());
            let pair = pair.take().map_or_else(again, Ok)?;
            let (meter, options) = (pair.meter(), EngineOptions { fence, ..options.clone() });
            engines.push(Bench { fence, engine: engine(args, pair, options, &truth)?, meter });
        }
        let ways = ways(args, engines[0].engine.info(), chances.len())?;
        let outputs = None;
        Ok(Comparison { args, items, loads, ways, ends, engines, truth, chances, outputs })
    }

    /// What the engines work with.
    pub(super) fn info(&self) -> &Info {
        self.engines[0].engine.info()
    }

    /// Warms up, then runs every load on every setting, `--repeats` times. `heard` is told of each
    /// run as it ends.
    ///
    /// # Errors
    /// A request that an engine refuses, or a lost device.
    pub(super) fn run(&mut self, heard: &mut dyn FnMut(&Run)) -> Result<Vec<Run>, Failure> {
        if !self.chances.is_empty() {
            let plain = Way { mode: Mode::Plain, simulation: None };
            let plain = self.play(0, self.items, Pacing::Offline, plain)?;
            self.outputs = Some(plain.outputs().into_iter().map(Into::into).collect());
        }
        let warmup = &self.items[..self.args.settings.warmup.min(self.items.len())];
        for engine in 0..self.engines.len() {
            for way in self.ways.clone() {
                self.play(engine, warmup, Pacing::Offline, way)?;
            }
        }
        let mut runs = Vec::new();
        for (pacing, requests) in self.loads.clone() {
            for repeat in 0..self.args.settings.repeats {
                for (engine, way) in mirrored(self.settings(), repeat) {
                    let played = self.play(engine, &self.items[..requests], pacing, way)?;
                    let setting = Setting { way, fence: self.engines[engine].fence };
                    runs.push(Run { pacing, setting, repeat, played });
                    heard(&runs[runs.len() - 1]);
                }
            }
        }
        Ok(runs)
    }

    /// Every engine in every way.
    fn settings(&self) -> Vec<(usize, Way)> {
        let engines = 0..self.engines.len();
        engines.flat_map(|engine| self.ways.iter().map(move |&way| (engine, way))).collect()
    }

    fn play(
        &mut self,
        engine: usize,
        items: &[Item],
        pacing: Pacing,
        way: Way,
    ) -> Result<Played, Failure> {
        let speculation = match (way.mode, self.args.model.width) {
            (Mode::Plain, _) => Speculation::Off,
            (Mode::Drafted, Some(width)) => Speculation::Width(width),
            (Mode::Drafted, None) => Speculation::Auto,
        };
        self.truth.forget();
        let chances = way.simulation.map(|which| &self.chances[which]);
        let (truth, known) = (&self.truth, self.outputs.as_ref().zip(chances));
        let load = Load { items, pacing, ends: &self.ends, speculation };
        let Bench { engine, meter, .. } = &mut self.engines[engine];
        play((engine, meter.as_ref()), load, &mut |id, i| {
            if let Some((outputs, chances)) = known {
                truth.submitted(id, &items[i], (&outputs[i], chances));
            }
        })
    }
}

/// The loads that are run one after another, each with how many of the requests it has.
fn loads(args: &LoadArgs, requests: usize) -> Result<Vec<(Pacing, usize)>, Failure> {
    let arrivals = &args.arrivals;
    let each = &args.requests.requests[..];
    if each.len() > 1 && each.len() != arrivals.concurrency.len() {
        return Err(Failure::input(format!(
            "--requests: {} numbers for {} values of --concurrency; give one, or one for each",
            each.len(),
            arrivals.concurrency.len()
        )));
    }
    let given = &arrivals.concurrency[..];
    let concurrencies: Vec<usize> = match (given, &arrivals.trace, arrivals.offline) {
        (_, _, true) => return Ok(vec![(Pacing::Offline, requests)]),
        ([], Some(_), false) => {
            return Ok(vec![(Pacing::Arrivals(arrivals.trace_speed), requests)]);
        }
        ([], None, false) => CONCURRENCIES.into_iter().filter(|&c| c <= requests).collect(),
        (given, _, false) => given.to_vec(),
    };
    let of = |load: usize| if each.len() > 1 { each[load] } else { requests };
    let loads = concurrencies.iter().enumerate().map(|(i, &open)| (Pacing::Closed(open), of(i)));
    let short = concurrencies.iter().enumerate().find(|&(i, &open)| open > of(i));
    if let Some((i, most)) = short {
        return Err(Failure::input(format!(
            "--concurrency {most}: there are {} requests; give --requests at least as many",
            of(i)
        )));
    }
    if args.output.save_trace.is_some() && concurrencies.len() > 1 {
        return Err(Failure::input(
            "--save-trace: several loads were asked for, a trace holds one; give one --concurrency",
        ));
    }
    Ok(loads.collect())
}

/// The chances of each simulation, in blocks as wide as the engine has them.
///
/// # Errors
/// A τ that no block of that width reaches.
fn chances(
    args: &LoadArgs,
    pair: &Pair,
    options: &EngineOptions,
) -> Result<Vec<Arc<Chances>>, Failure> {
    let own = options.width.min(pair.block().unwrap_or(options.width));
    let width = args.model.width.unwrap_or(own);
    let simulations = args.settings.simulate_acceptance.iter().flat_map(|all| &all.0);
    let chances = simulations.map(|one| one.chances(width).map(Arc::new).map_err(Failure::input));
    chances.collect()
}

/// What is compared, by default what a user would get: drafted once for each of the simulations.
fn ways(args: &LoadArgs, info: &Info, simulations: usize) -> Result<Vec<Way>, Failure> {
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
    let ways = modes.into_iter().flat_map(|mode| -> Vec<Way> {
        match mode {
            Mode::Drafted if simulations > 0 => {
                (0..simulations).map(|which| Way { mode, simulation: Some(which) }).collect()
            }
            mode => vec![Way { mode, simulation: None }],
        }
    });
    Ok(ways.collect())
}

/// Options of engines that hold the requests of every load at once.
///
/// # Errors
/// KV memory that does not hold the longest of them.
fn options(
    args: &LoadArgs,
    items: &[Item],
    loads: &[(Pacing, usize)],
    pair: &Pair,
) -> Result<EngineOptions, Failure> {
    // A request that has ended keeps its row and pages until the step that mentions it has landed:
    // the one that follows it in a closed loop is not to wait for them.
    let open = |(pacing, _): &(Pacing, usize)| match *pacing {
        Pacing::Closed(open) => 2 * open,
        Pacing::Offline | Pacing::Arrivals(_) => RUNNING.min(items.len()),
    };
    let most = loads.iter().map(open).max().expect("there is a load");
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
    options: EngineOptions,
    truth: &Truth,
) -> Result<Engine, Failure> {
    if args.settings.simulate_acceptance.is_none() {
        return session::engine(pair, options);
    }
    let block = pair.block().or(args.model.width).unwrap_or(options.width);
    let truth = truth.clone();
    let fate = move |id, position, place| truth.fate(id, position, place);
    let spread = Spread::of_correlation(args.settings.simulate_told);
    engine_around(pair, options, |own| Box::new(Simulated::new(own, block, spread, fate)))
}
