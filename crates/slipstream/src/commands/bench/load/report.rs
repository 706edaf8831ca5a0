//! The report of a comparison, which is also the JSON that is written: `docs/reference/bench-load.md`
//! describes its fields. A change that a reader could trip over raises [`VERSION`].

use super::args::LoadArgs;
use super::compare::{Run, Setting};
use super::figures::Figures;
use super::items::{End, Item};
use super::play::{Answer, Pacing};
use crate::session::threads;
use engine::Info;
use serde::Serialize;
use std::env;
use std::fs;

const SCHEMA: &str = "slipstream-bench-load";
const VERSION: u32 = 1;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    pub(super) schema_version: u32,
    /// Of the program.
    pub(super) version: &'static str,
    /// As a shell would take it.
    pub(super) command: String,
    pub(super) machine: Machine,
    pub(super) model: Model,
    pub(super) load: LoadFacts,
    /// How acceptance was simulated, all ways of it; the drafter's own when `null`.
    pub(super) simulated_acceptance: Option<String>,
    /// Whether each request had the same output in every run.
    pub(super) outputs_equal: bool,
    pub(super) runs: Vec<RunReport>,
}

#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) threads: usize,
}

#[derive(Serialize)]
pub(super) struct Model {
    /// Where it runs.
    pub(super) device: String,
    pub(super) target: String,
    pub(super) drafter: Option<String>,
    /// Positions drafted in one pass, the anchor included.
    pub(super) block: Option<usize>,
    /// The verify width of every block, or the widest when widths adapt.
    pub(super) width: Option<usize>,
    pub(super) widths: &'static str,
    pub(super) context: usize,
    pub(super) kv_tokens: usize,
}

/// The load that every run was run with.
#[derive(Serialize)]
pub(super) struct LoadFacts {
    pub(super) requests: usize,
    pub(super) prompt_tokens: usize,
    pub(super) max_tokens: usize,
    pub(super) seed: u64,
    /// Least and greatest.
    pub(super) temperatures: [f32; 2],
    /// Requests that go on past end-of-text.
    pub(super) ignore_eos: usize,
}

/// One measured run.
#[derive(Serialize)]
pub(super) struct RunReport {
    #[serde(skip)]
    pub(super) pacing: Pacing,
    #[serde(skip)]
    pub(super) setting: Setting,
    pub(super) load: String,
    /// Of closed loops.
    pub(super) concurrency: Option<usize>,
    pub(super) mode: &'static str,
    /// How acceptance was simulated in this run; the drafter's own when `null`.
    pub(super) simulated_acceptance: Option<String>,
    pub(super) fence: &'static str,
    /// From 0.
    pub(super) repeat: usize,
    pub(super) figures: Figures,
    pub(super) requests: Vec<RequestReport>,
}

/// One request of a run.
#[derive(Serialize)]
pub(super) struct RequestReport {
    pub(super) seed: u64,
    pub(super) arrived_seconds: f64,
    pub(super) prompt_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) finish_reason: &'static str,
    pub(super) ttft_ms: Option<f64>,
    pub(super) end_to_end_ms: f64,
    pub(super) tau: f64,
    /// FNV-1a of the output ids, 64 bits, in hexadecimal: equal outputs have equal digests.
    pub(super) output_digest: String,
}

impl Report {
    pub(super) fn new(args: &LoadArgs, items: &[Item], info: &Info, runs: &[Run]) -> Report {
        let simulations = args.settings.simulations();
        Report {
            schema: SCHEMA,
            schema_version: VERSION,
            version: env!("CARGO_PKG_VERSION"),
            command: command(env::args().skip(1)),
            machine: Machine { cpu: cpu(), threads: threads(&args.model) },
            model: Model::of(args, info),
            load: LoadFacts::of(args, items),
            simulated_acceptance: args.settings.simulated(),
            outputs_equal: outputs_equal(runs),
            runs: runs.iter().map(|run| RunReport::of(run, items, &simulations)).collect(),
        }
    }

    /// The runs of each load and setting, in the order of their first ones.
    pub(super) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for run in &self.runs {
            let same = |group: &&mut Group<'_>| {
                group.runs[0].pacing == run.pacing && group.runs[0].setting == run.setting
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.runs.push(run),
                None => groups.push(Group { runs: vec![run] }),
            }
        }
        let rate = |run: &&RunReport| run.figures.output_tokens_per_second;
        for group in &mut groups {
            group.runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        }
        groups
    }

    /// How a group is called in text and plots: what does not differ is left out.
    pub(super) fn setting_name(&self, of: &RunReport) -> String {
        let Setting { way, fence } = of.setting;
        let fences = self.runs.iter().any(|run| run.setting.fence != fence);
        let others = self.runs.iter().filter_map(|run| run.setting.way.simulation);
        let simulations = others.clone().any(|other| Some(other) != way.simulation);
        let simulated = match &of.simulated_acceptance {
            Some(how) if simulations => format!(" (simulated acceptance, {how})"),
            Some(_) => " (simulated acceptance)".to_owned(),
            None => String::new(),
        };
        let fence = if fences { format!(", {fence}") } else { String::new() };
        format!("{}{simulated}{fence}", way.mode.name())
    }
}

/// Whether each request has the same output in every run. Loads may be of fewer requests than others.
fn outputs_equal(runs: &[Run]) -> bool {
    let outputs: Vec<_> = runs.iter().map(|run| run.played.outputs()).collect();
    let Some(longest) = outputs.iter().max_by_key(|outputs| outputs.len()) else { return true };
    outputs.iter().all(|outputs| longest.starts_with(outputs))
}

/// Runs of one load and setting, by output tokens a second.
pub(super) struct Group<'a> {
    runs: Vec<&'a RunReport>,
}

impl<'a> Group<'a> {
    /// The run whose throughput is the median (the lower of two): its figures stand for the group.
    pub(super) fn median(&self) -> &'a RunReport {
        self.runs[(self.runs.len() - 1) / 2]
    }

    /// Least and most output tokens a second.
    pub(super) fn spread(&self) -> [f64; 2] {
        [self.runs[0], self.runs[self.runs.len() - 1]].map(|r| r.figures.output_tokens_per_second)
    }

    pub(super) fn repeats(&self) -> usize {
        self.runs.len()
    }
}

impl RunReport {
    fn of(run: &Run, items: &[Item], simulations: &[String]) -> RunReport {
        let &Run { pacing, setting, repeat, ref played } = run;
        let answers = played.answers.iter().zip(items);
        RunReport {
            pacing,
            setting,
            load: pacing.to_string(),
            concurrency: match pacing {
                Pacing::Closed(open) => Some(open),
                Pacing::Offline | Pacing::Arrivals(_) => None,
            },
            mode: setting.way.mode.name(),
            simulated_acceptance: setting.way.simulation.map(|which| simulations[which].clone()),
            fence: setting.fence.name(),
            repeat,
            figures: Figures::of(played),
            requests: answers.map(|(answer, item)| RequestReport::of(answer, item)).collect(),
        }
    }
}

impl RequestReport {
    fn of(answer: &Answer, item: &Item) -> RequestReport {
        let end = answer.finished();
        let since = |at: std::time::Duration| (at - answer.arrived).as_secs_f64() * 1e3;
        RequestReport {
            seed: item.seed,
            arrived_seconds: answer.arrived.as_secs_f64(),
            prompt_tokens: end.stats.prompt_tokens,
            output_tokens: answer.ids.len(),
            finish_reason: end.reason.name(),
            ttft_ms: answer.first.map(since),
            end_to_end_ms: since(answer.ended),
            tau: end.stats.tau(),
            output_digest: format!("{:016x}", digest(&answer.ids)),
        }
    }
}

impl Model {
    fn of(args: &LoadArgs, info: &Info) -> Model {
        let draft = info.draft.as_ref();
        let own = fetch::Sources::from_env().ok().and_then(|sources| {
            let known = sources.drafter_for(&args.model.model)?;
            Some(known.name.to_owned())
        });
        let random = args.model.random_weights.as_ref();
        let random = random.map(|config| format!("random weights of {}", config.display()));
        let named = match &random {
            Some(random) => Some(format!(
                "a drafter of {random}, as if trained for blocks of {:?}",
                args.model.random_blocks
            )),
            None => args.model.draft.clone().or(own),
        };
        Model {
            target: random.unwrap_or_else(|| args.model.model.clone()),
            drafter: draft.and(named),
            device: args.model.device.to_string(),
            block: draft.map(|draft| draft.block),
            width: draft.map(|draft| args.model.width.unwrap_or(draft.width)),
            widths: if args.model.width.is_some() { "fixed" } else { "adaptive" },
            context: info.context,
            kv_tokens: info.kv_tokens,
        }
    }
}

impl LoadFacts {
    fn of(args: &LoadArgs, items: &[Item]) -> LoadFacts {
        let temperatures = items.iter().map(|item| item.temperature);
        LoadFacts {
            requests: items.len(),
            prompt_tokens: items.iter().map(|item| item.prompt.len()).sum(),
            max_tokens: items.iter().map(|item| item.max_tokens).sum(),
            seed: args.requests.seed,
            temperatures: [
                temperatures.clone().fold(f32::INFINITY, f32::min),
                temperatures.fold(0.0, f32::max),
            ],
            ignore_eos: items.iter().filter(|item| item.end == End::Length).count(),
        }
    }
}

/// The program called with `words`, quoted where a shell needs it.
fn command(words: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    let quote = |word: String| match !word.is_empty() && word.chars().all(plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    std::iter::once("slipstream".to_owned()).chain(words.map(quote)).collect::<Vec<_>>().join(" ")
}

/// What the system calls the processor, or its architecture.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = info.lines().filter_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    names.into_iter().next().unwrap_or_else(|| env::consts::ARCH.to_owned())
}

fn digest(ids: &[u32]) -> u64 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_given_to_a_shell_again() {
        let words = ["--prompts", "it's mine.jsonl", "", "a,b=1:2", "<x>"];
        let line = command(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(line, r"slipstream --prompts 'it'\''s mine.jsonl' '' a,b=1:2 '<x>'");
    }

    #[test]
    fn a_digest_tells_outputs_apart() {
        // FNV-1a of no bytes is its offset basis; of one byte by hand.
        assert_eq!(digest(&[]), 0xcbf2_9ce4_8422_2325);
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[0]), digest(&[]));
    }
}
