//! Options of `slipstream bench load`, their ranges and their help.

use super::lengths::Lengths;
use crate::args::{ModelArgs, at_least_one, at_least_two, temperature};
use crate::session::CardTiming;
use clap::{Args, ValueEnum};
use device::Fence;
use engine::draft::Chances;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(super) arrivals: ArrivalArgs,
    #[command(flatten)]
    pub(super) requests: RequestArgs,
    #[command(flatten)]
    pub(super) settings: SettingArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

/// When requests come.
#[derive(Debug, Args)]
#[command(next_help_heading = "Arrivals")]
pub(super) struct ArrivalArgs {
    /// Requests open at once: as one ends the next is submitted. Several are run one after
    /// another; 1,4,16 without any of these
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "offline", value_parser = at_least_one)]
    pub(super) concurrency: Vec<usize>,
    /// Submit all requests at once
    #[arg(long)]
    pub(super) offline: bool,
    /// Replay a trace: a request a line, at the times it says. With --concurrency or --offline its
    /// requests come as those say
    #[arg(long, value_name = "PATH")]
    pub(super) trace: Option<PathBuf>,
    /// Replay so many times as fast as the trace says
    #[arg(long, value_name = "X", default_value = "1", requires = "trace", conflicts_with_all = ["concurrency", "offline"], value_parser = positive)]
    pub(super) trace_speed: f64,
}

/// What is asked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Requests")]
pub(super) struct RequestArgs {
    /// Requests, of every load or one number for each --concurrency; those of the trace, or 64,
    /// otherwise
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = at_least_one)]
    pub(super) requests: Vec<usize>,
    /// A file of lines {"topic": "…", "prompt": "…"}; the drafter's held-out prompts otherwise
    #[arg(long, value_name = "PATH", conflicts_with = "trace")]
    pub(super) prompts: Option<PathBuf>,
    /// Prompts of drawn lengths, put together from the prompts' sentences, instead of the prompts in
    /// the chat format: fixed:128, uniform:32..512, lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "LENGTHS", conflicts_with = "trace")]
    pub(super) input_tokens: Option<Lengths>,
    /// Output tokens at most, drawn for each request; fixed:128 otherwise
    #[arg(long, value_name = "LENGTHS", conflicts_with = "trace")]
    pub(super) output_tokens: Option<Lengths>,
    /// Whether outputs go on past end-of-text to their drawn length; yes when --output-tokens is
    /// given, no otherwise
    #[arg(long, value_name = "ANSWER", num_args = 0..=1, default_missing_value = "yes", require_equals = true, conflicts_with = "trace")]
    pub(super) ignore_eos: Option<Answer>,
    /// Share of the requests that begin with a common prefix, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0", conflicts_with = "trace", value_parser = share)]
    pub(super) shared_prefix: f64,
    /// Tokens of a common prefix, in front of the prompt's own
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    pub(super) prefix_tokens: usize,
    /// How many common prefixes there are
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(super) prefixes: usize,
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value = "0", conflicts_with = "trace", value_parser = temperature, allow_negative_numbers = true)]
    pub(super) temperature: f32,
    /// Seed of all that is drawn; request number i samples with seed N + i
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
}

/// What is compared, and on which engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
pub(super) struct SettingArgs {
    /// Settings to compare in turns, A B B A: plain, drafted. Otherwise drafted, or plain without a
    /// drafter
    #[arg(long, value_name = "MODE,…", value_delimiter = ',', conflicts_with = "plain")]
    pub(super) compare: Vec<Mode>,
    /// How a step waits for the one before it: fine is what Slipstream runs on; self (the host
    /// waits) and coarse (the device does) are there to be compared with it
    #[arg(long, value_name = "FENCE,…", value_delimiter = ',', default_value = "fine")]
    pub(super) fence: Vec<Fence>,
    /// Measured runs of each setting and load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub(super) repeats: usize,
    /// Requests that are run before anything is measured
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) warmup: usize,
    /// Have drafts accepted at a given rate instead of by what the drafter proposes, which is run
    /// all the same; outputs stay. TAU tokens a verify pass, several to compare them, or
    /// position:0.9,0.8,… the chance of each draft after those before it
    #[arg(long, value_name = "TAU,…", conflicts_with = "plain")]
    pub(super) simulate_acceptance: Option<Simulations>,
    /// How much the confidences of such drafts tell: their correlation with acceptance, which bench
    /// acceptance finds of real ones, from 0 to below 1. 0 is equally sure of all drafts at a place
    #[arg(long, value_name = "R", default_value = "0", requires = "simulate_acceptance", value_parser = correlation)]
    pub(super) simulate_told: f64,
    /// Requests that run at once at most; twice the greatest concurrency, so that none waits for
    /// the place of one that has just ended, or 64 without one
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) running: Option<usize>,
    /// KV memory in tokens; what the running requests can need, at least one full context, within
    /// 4 GiB, otherwise
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(super) kv_tokens: Option<usize>,
    /// Most tokens of one step over all requests
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_two)]
    pub(super) chunk: usize,
    /// Time the GPU's own work, with two more events for each piece of it, to tell how long it stood
    /// idle
    #[arg(long)]
    pub(super) time_device: bool,
}

impl SettingArgs {
    pub(super) const fn timing(&self) -> CardTiming {
        if self.time_device { CardTiming::On } else { CardTiming::Off }
    }

    /// How acceptance is simulated, all ways of it, for people; the drafter's own when `None`.
    pub(super) fn simulated(&self) -> Option<String> {
        self.simulate_acceptance.as_ref().map(|all| format!("{all}{}", self.told()))
    }

    /// Each way of it.
    pub(super) fn simulations(&self) -> Vec<String> {
        let all = self.simulate_acceptance.iter().flat_map(|all| &all.0);
        all.map(|one| format!("{one}{}", self.told())).collect()
    }

    /// What confidences tell, unless that is nothing.
    fn told(&self) -> String {
        match self.simulate_told {
            0.0 => String::new(),
            r => format!(", confidences of r {r}"),
        }
    }
}

/// Where the figures go, besides the table on standard output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Write everything that was measured as JSON; `-` writes it to standard output instead of the
    /// table
    #[arg(long, value_name = "PATH")]
    pub(super) json: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "PATH")]
    pub(super) html: Option<PathBuf>,
    /// Write the load as a trace, with the arrivals of the first measured run
    #[arg(long, value_name = "PATH")]
    pub(super) save_trace: Option<PathBuf>,
}

/// Yes or no, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Answer {
    Yes,
    No,
}

/// Whether requests draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    Plain,
    Drafted,
}

impl Mode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Drafted => "drafted",
        }
    }
}

/// How often drafts are to be accepted, in each of the settings that are compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Simulations(pub(super) Vec<Simulation>);

/// How often drafts are to be accepted.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Simulation {
    /// Tokens a verify pass of the full width commits.
    Tau(f64),
    /// By place in the block.
    Places(Vec<f64>),
}

impl fmt::Display for Simulations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(Simulation::to_string).collect();
        let width = match self.0[..] {
            [Simulation::Places(_)] => "",
            _ => " at the full verify width",
        };
        write!(f, "{}{width}", all.join(", "))
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Simulation::Tau(tau) => write!(f, "τ {tau}"),
            Simulation::Places(chances) => write!(f, "by position: {chances:?}"),
        }
    }
}

impl Simulation {
    /// As the drafter takes it, when blocks are up to `width` wide.
    ///
    /// # Errors
    /// A τ that no block of that width reaches.
    pub(super) fn chances(&self, width: usize) -> Result<Chances, String> {
        match self {
            Simulation::Tau(tau) if *tau > width as f64 => Err(format!(
                "--simulate-acceptance {tau}: a pass of {width} tokens commits {width} at most; \
                 give less, or a greater --width"
            )),
            Simulation::Tau(tau) => Ok(Chances::of_tau(*tau, width)),
            Simulation::Places(chances) => Ok(Chances::by_place(chances.clone())),
        }
    }
}

impl FromStr for Simulations {
    type Err = String;

    fn from_str(text: &str) -> Result<Simulations, String> {
        const FORMS: &str = "give τ, a number from 1, or several, or position: and chances from 0 to 1, \
                             such as position:0.9,0.8,0.7";
        let found: Option<Vec<Simulation>> = match text.strip_prefix("position:") {
            Some(list) => {
                let chances: Result<Vec<f64>, _> = list.split(',').map(share).collect();
                chances.ok().map(|chances| vec![Simulation::Places(chances)])
            }
            None => {
                let tau = |text: &str| -> Option<f64> { text.parse().ok() };
                let valid = |tau: &f64| tau.is_finite() && *tau >= 1.0;
                text.split(',').map(|text| tau(text).filter(valid).map(Simulation::Tau)).collect()
            }
        };
        found.map(Simulations).ok_or_else(|| FORMS.to_owned())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

fn correlation(text: &str) -> Result<f64, String> {
    let r = text.parse().ok().filter(|r| (0.0..1.0).contains(r));
    r.ok_or_else(|| "give a number from 0 to below 1, such as 0.6".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| "give a number above 0: 2 is twice as fast".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn parse(line: &str) -> Result<LoadArgs, clap::Error> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        Only::try_parse_from(words).map(|only| only.load)
    }

    #[test]
    fn wrong_values_name_the_option_and_the_remedy() {
        for (line, parts) in [
            ("--concurrency 1,0", ["--concurrency", "at least 1"]),
            ("--requests none", ["--requests", "whole number"]),
            ("--input-tokens 128", ["--input-tokens", "fixed:128"]),
            ("--output-tokens uniform:9..3", ["--output-tokens", "uniform:32..512"]),
            ("--shared-prefix 1.5", ["--shared-prefix", "from 0 to 1"]),
            ("--trace t --trace-speed 0", ["--trace-speed", "above 0"]),
            ("--fence fne", ["--fence", "self, coarse or fine"]),
            ("--compare both", ["--compare", "plain, drafted"]),
            ("--simulate-acceptance 0.5", ["--simulate-acceptance", "from 1"]),
            ("--simulate-acceptance 3,x", ["--simulate-acceptance", "several"]),
            ("--simulate-acceptance position:2", ["--simulate-acceptance", "position:0.9"]),
            ("--simulate-acceptance 3 --simulate-told 1", ["--simulate-told", "below 1"]),
            ("--simulate-told 0.6", ["--simulate-told", "--simulate-acceptance"]),
            ("--ignore-eos=maybe", ["--ignore-eos", "yes, no"]),
            ("--chunk 1", ["--chunk", "at least 2"]),
        ] {
            let error = parse(line).expect_err(line);
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{line}");
            for part in parts {
                assert!(text.contains(part), "{line}: no {part:?} in {text}");
            }
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for line in [
            "--offline --concurrency 4",
            "--trace t --trace-speed 2 --offline",
            "--trace t --input-tokens fixed:3",
            "--trace t --temperature 1",
            "--plain --compare plain",
            "--plain --simulate-acceptance 3",
            "--trace-speed 2",
        ] {
            parse(line).expect_err(line);
        }
        for line in ["", "--offline --trace t", "--trace t --trace-speed 2", "--ignore-eos"] {
            parse(line).expect(line);
        }
        assert_eq!(parse("--ignore-eos").expect("a flag").requests.ignore_eos, Some(Answer::Yes));
    }

    #[test]
    fn what_confidences_tell_is_said_with_each_simulation() {
        let settings = |line: &str| parse(line).expect(line).settings;
        let both = settings("--simulate-acceptance 3,5 --simulate-told 0.6");
        let all = both.simulated().expect("it is simulated");
        assert_eq!(all, "τ 3, τ 5 at the full verify width, confidences of r 0.6");
        let each = ["τ 3, confidences of r 0.6", "τ 5, confidences of r 0.6"];
        assert_eq!(both.simulations(), each);
        assert_eq!(settings("--simulate-acceptance 3").simulations(), ["τ 3"]);
        assert_eq!(settings("").simulated(), None);
    }

    #[test]
    fn a_tau_that_no_block_reaches_is_refused() {
        let problem = Simulation::Tau(9.0).chances(8).expect_err("τ 9 of 8");
        assert!(problem.contains("--simulate-acceptance 9") && problem.contains("--width"));
        assert!(Simulation::Tau(8.0).chances(8).is_ok());
    }
}
