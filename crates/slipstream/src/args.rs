//! The command line: commands, options, their ranges, and their help.

mod place;
mod shaping;

use crate::commands::bench::load::LoadArgs;
use crate::commands::bench::passes::PassesArgs;
use crate::commands::bench::perplexity::PerplexityArgs;
use crate::commands::serve::ServeArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::{Fence, Sampling};
use kernels::kv_store::KvFormat;
pub(crate) use place::Place;
use shaping::ShapingArgs;
use std::path::PathBuf;
use std::time::Duration;

/// Output tokens at most, when nobody says how many: small models may never stop.
const MAX_TOKENS: usize = 1024;

/// A language-model engine whose drafts never change a byte.
#[derive(Debug, Parser)]
#[command(name = "slipstream", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a question, or hold a conversation when none is given
    Chat(ChatArgs),
    /// Continue a prompt, for scripts
    Generate(GenerateArgs),
    /// Serve the model over HTTP, compatible with OpenAI's API
    Serve(Box<ServeArgs>),
    /// Fetch a model; the default pair without a name
    Pull(PullArgs),
    /// List the known models: where they lie, sizes, licences
    Models,
    /// Describe a checkpoint
    Inspect(InspectArgs),
    /// Answer a question and write a timeline of the lanes; exit code 1 when two accesses to one
    /// buffer are not ordered
    Trace(TraceArgs),
    /// Measure the drafter and check that it changes nothing
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// Which models, and how to run them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Target: a known name, a Hugging Face repository (org/name, org/name:file.gguf,
    /// org/name@revision), a GGUF file, or a folder
    #[arg(long, value_name = "NAME", default_value = fetch::DEFAULT_TARGET)]
    pub(crate) model: String,
    /// Drafter: named as the target is; the one that belongs to a known target otherwise
    #[arg(long, value_name = "NAME")]
    pub(crate) draft: Option<String>,
    /// Do not draft
    #[arg(long, conflicts_with_all = ["draft", "width"])]
    pub(crate) plain: bool,
    /// Tokens verified at once, the anchor included: 1 drafts nothing, at most the drafter's block
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) width: Option<usize>,
    /// Where the models run: cpu, cuda (a GPU, weights as bf16), or cuda:N for GPU N
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub(crate) device: Place,
    /// Random weights of the shape that a config.json describes, with a drafter as large as published
    /// ones: for measuring on a GPU what a model takes that is not at hand. The tokenizer is --model's;
    /// the text means nothing
    #[arg(long, value_name = "PATH", conflicts_with_all = ["draft", "plain"])]
    pub(crate) random_weights: Option<PathBuf>,
    /// Numbers of positions that the drafter of --random-weights drafts, as if it were trained for blocks of
    /// each, ascending: 4,8,16 is what the default drafter knows; published ones know one
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "16", requires = "random_weights", value_parser = at_least_two)]
    pub(crate) random_blocks: Vec<usize>,
    /// How keys and values are stored: f32, bf16 (half the memory, and half to read) or int8 (a quarter);
    /// f32 otherwise on a CPU, while a GPU has bf16 only
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvFormat>,
    /// Threads; one for each CPU otherwise
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) threads: Option<usize>,
    /// What a CPU's threads do about memory nodes, where the machine has several: replicate or off
    #[arg(long, value_name = "HOW", default_value = "replicate")]
    pub(crate) numa: Numa,
}

/// What a CPU's threads do about memory nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Numa {
    /// Each stays on a node and reads the node's own copy of the weights
    Replicate,
    /// They run anywhere and read the one copy there is
    Off,
}

/// How tokens are drawn and when the output ends.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value = "0", allow_negative_numbers = true)]
    top_k: u32,
    /// Keep the smallest likeliest set of tokens that reaches probability P; 1 keeps all
    #[arg(long, value_name = "P", default_value = "1", value_parser = top_p, allow_negative_numbers = true)]
    top_p: f32,
    /// Keep tokens at least P times as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "P", default_value = "0", value_parser = min_p, allow_negative_numbers = true)]
    min_p: f32,
    /// Seed of every draw; random, and reported, otherwise
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    #[command(flatten)]
    pub(crate) shaping: ShapingArgs,
    /// Output tokens at least: before, neither end-of-text nor a stop text ends the output
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) min_tokens: usize,
    /// Output tokens at most
    #[arg(long, value_name = "N", default_value_t = MAX_TOKENS, value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_tokens: usize,
    /// End the output after so many seconds, with what there is by then
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) timeout: Option<Duration>,
    /// End the output before TEXT; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = not_empty, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Go on past end-of-text
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    /// As the engine takes it, with a fresh seed where none was given.
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or_else(fresh_seed),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// The question; a conversation without one
    #[arg(value_parser = not_blank)]
    pub(crate) prompt: Option<String>,
    /// System message instead of the template's own
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Colour accepted drafts
    #[arg(long, conflicts_with = "plain")]
    pub(crate) show_drafts: bool,
    /// Answer again without drafting; report the speed-up and whether ids and bytes are equal
    #[arg(long, conflicts_with = "plain")]
    pub(crate) compare: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) input: InputArgs,
    /// Apply the model's chat template to the prompt
    #[arg(long, conflicts_with = "ids")]
    pub(crate) chat: bool,
    /// System message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// One JSON object a line instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// Report log-probabilities of each token and of the N likeliest, with --json
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<usize>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// What the output must be: one of these, or anything.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct FormatArgs {
    /// The output is JSON that is valid by the schema in a file
    #[arg(long, value_name = "PATH")]
    pub(crate) json_schema: Option<PathBuf>,
    /// The output matches a regular expression as a whole
    #[arg(long, value_name = "REGEX")]
    pub(crate) regex: Option<String>,
    /// The output is of the grammar in a file: EBNF where it has ::=, Lark otherwise
    #[arg(long, value_name = "PATH")]
    pub(crate) grammar: Option<PathBuf>,
    /// The output is this text; several times: one of them
    #[arg(long, value_name = "TEXT")]
    pub(crate) choice: Vec<String>,
}

/// Where the prompt comes from: one of these, or standard input.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct InputArgs {
    /// The prompt; `-`, or nothing with a pipe, reads standard input
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(long, value_name = "PATH")]
    pub(crate) file: Option<PathBuf>,
    /// The prompt as token ids: 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) ids: Vec<u32>,
    /// A prompt a line, as JSON: {"prompt": "…"} or {"ids": [1, 2]}; `-` reads standard input
    #[arg(long, value_name = "PATH", requires = "json")]
    pub(crate) batch: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A known name or a Hugging Face repository
    pub(crate) name: Option<String>,
    /// Read the files of a known model through, and fetch them again if they are damaged
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// A GGUF file, a model or drafter folder, a known name, or a Hugging Face repository
    pub(crate) path: String,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// One JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The question
    #[arg(value_parser = not_blank)]
    pub(crate) prompt: String,
    /// Where to write the timeline, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "PATH", default_value = "trace.json")]
    pub(crate) out: PathBuf,
    /// Entries to keep, the newest; a step takes some 30
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = at_least_one)]
    pub(crate) entries: usize,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Acceptance length τ of the drafter, by width and topic, and how much its confidences tell
    Acceptance(AcceptanceArgs),
    /// What this machine can read and multiply at most, and how near to that the pair's passes come
    Ceilings(CeilingsArgs),
    /// What each way to order one step after another costs on a large GPU: a simulation in virtual
    /// time, the same on every run
    Fences(FencesArgs),
    /// Compare outputs of every drafter, width and chunk size with plain ones; exit code 1 when
    /// one differs
    Lossless(LosslessArgs),
    /// Passes of the target, each timed by itself, as other engines' benchmarks time theirs
    Passes(PassesArgs),
    /// Perplexity of a text with the file's weights and with the same weights in f32: what quantized
    /// arithmetic costs in quality
    Perplexity(PerplexityArgs),
    /// Plain against drafted decoding, one request at a time
    Speed(SpeedArgs),
    /// Many requests: throughput, latencies, acceptance and host time under a load; as a table,
    /// JSON, or a page with plots
    Load(Box<LoadArgs>),
}

/// What a benchmark runs on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// A file of lines {"topic": "…", "prompt": "…"}; the drafter's held-out prompts otherwise
    #[arg(long, value_name = "PATH")]
    pub(crate) prompts: Option<PathBuf>,
    /// Use N prompts, evenly from the file; all otherwise
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) count: Option<usize>,
    /// Output tokens of a prompt at most
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub(crate) max_tokens: usize,
    /// Requests that run at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    pub(crate) running: usize,
}

#[derive(Debug, Args)]
pub(crate) struct AcceptanceArgs {
    /// Verify widths
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "4,8,16", value_parser = at_least_one)]
    pub(crate) widths: Vec<usize>,
    /// Temperatures
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "0", value_parser = temperature)]
    pub(crate) temperatures: Vec<f32>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct FencesArgs {
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature)]
    pub(crate) temperature: f32,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CeilingsArgs {
    /// Rows of the target's passes
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16,256", value_parser = at_least_one)]
    pub(crate) rows: Vec<usize>,
    /// Tokens before the rows of a pass
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) context: usize,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LosslessArgs {
    /// Verify widths of the drafter; none checks none
    #[arg(long, value_name = "N,…", value_delimiter = ',', num_args = 0.., default_value = "2,4,8,16", value_parser = at_least_one)]
    pub(crate) widths: Vec<usize>,
    /// Verify widths of a perfect, a wrong and a random drafter
    #[arg(long, value_name = "N,…", value_delimiter = ',', num_args = 0.., default_value = "4", value_parser = at_least_two)]
    pub(crate) scripted: Vec<usize>,
    /// Prompt tokens a step, besides the default
    #[arg(long, value_name = "N,…", value_delimiter = ',', num_args = 0.., default_value = "1,7,64", value_parser = at_least_one)]
    pub(crate) chunks: Vec<usize>,
    /// Temperatures
    #[arg(long, value_name = "T,…", value_delimiter = ',', default_value = "0,0.7,1", value_parser = temperature)]
    pub(crate) temperatures: Vec<f32>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SpeedArgs {
    /// 0 is greedy
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature)]
    pub(crate) temperature: f32,
    /// How a step waits for the one before it: fine is what Slipstream runs on; self (the host
    /// waits) and coarse (the device does) are there to be compared with it
    #[arg(long, value_name = "FENCE", default_value = "fine")]
    pub(crate) fence: Fence,
    /// Runs of each kind
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

/// A seed from the system's entropy, by way of the standard library's hash keys.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("give a whole number from 1".into()),
    }
}

pub(crate) fn at_least_two(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0 | 1) => Err("must be at least 2".into()),
        Ok(number) => Ok(number),
        Err(_) => Err("give a whole number from 2".into()),
    }
}

fn number(text: &str, allowed: impl Fn(f32) -> bool, remedy: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && allowed(number) => Ok(number),
        _ => Err(remedy.into()),
    }
}

pub(crate) fn temperature(text: &str) -> Result<f32, String> {
    number(text, |t| t >= 0.0, "give 0 (greedy) or a positive number, such as 0.7")
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    let time = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "give a number of seconds above 0, such as 1.5".into())
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, |p| p > 0.0 && p <= 1.0, "give a number above 0, up to 1 (keeps all)")
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, |p| (0.0..=1.0).contains(&p), "give a number from 0 (keeps all) to 1")
}

pub(crate) fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty text would stop at once".into()) } else { Ok(text.into()) }
}

fn not_blank(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("the question is empty".into()) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    use engine::Shaping;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("slipstream").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_values_name_the_option_and_the_remedy() {
        for (line, parts) in [
            ("generate x --temperature -1", ["--temperature", "0 (greedy)"]),
            ("generate x --temperature nan", ["--temperature", "0 (greedy)"]),
            ("generate x --temperature inf", ["--temperature", "0 (greedy)"]),
            ("generate x --top-p 0", ["--top-p", "above 0"]),
            ("generate x --top-p 1.5", ["--top-p", "above 0"]),
            ("generate x --min-p 1.1", ["--min-p", "from 0"]),
            ("generate x --min-p -0.1", ["--min-p", "from 0"]),
            ("generate x --presence-penalty 2.5", ["--presence-penalty", "from -2 to 2"]),
            ("generate x --frequency-penalty nan", ["--frequency-penalty", "from -2 to 2"]),
            ("generate x --repetition-penalty 0", ["--repetition-penalty", "above 0"]),
            ("generate x --logit-bias 5", ["--logit-bias", "42=-5"]),
            ("generate x --logit-bias 5=101", ["--logit-bias", "from -100"]),
            ("generate x --logit-bias -1=1", ["--logit-bias", "42=-5"]),
            ("generate x --min-tokens -1", ["--min-tokens", "invalid digit"]),
            ("generate x --top-k -3", ["--top-k", "is not in 0.."]),
            ("generate x --seed -1", ["--seed", "invalid digit"]),
            ("generate x --max-tokens 0", ["--max-tokens", "at least 1"]),
            ("generate x --timeout 0", ["--timeout", "above 0"]),
            ("generate x --timeout -1", ["--timeout", "seconds"]),
            ("generate x --timeout inf", ["--timeout", "such as 1.5"]),
            ("chat x --timeout soon", ["--timeout", "seconds"]),
            ("generate x --max-tokens many", ["--max-tokens", "whole number"]),
            ("generate x --width 0", ["--width", "at least 1"]),
            ("chat x --threads 0", ["--threads", "at least 1"]),
            ("chat x --numa on", ["--numa", "replicate, off"]),
            ("generate --ids 1,x", ["--ids", "invalid digit"]),
        ] {
            let error = parse(line).expect_err(line);
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{line}");
            for part in parts {
                assert!(text.contains(part), "{line}: no {part:?} in {text}");
            }
        }
        let empty = ["slipstream", "generate", "x", "--stop", ""];
        assert!(Cli::try_parse_from(empty).unwrap_err().to_string().contains("--stop"));
        assert!(Cli::try_parse_from(["slipstream", "chat", " "]).is_err());
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for line in [
            "chat x --plain --compare",
            "chat x --plain --show-drafts",
            "chat x --plain --width 4",
            "chat x --plain --draft d",
            "generate x --ids 1",
            "generate x --file f",
            "generate --ids 1 --chat",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line}");
        }
        for line in ["generate x --logprobs 2", "generate --batch f", "generate x --system s"] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{line}");
        }
    }

    #[test]
    fn the_defaults_are_greedy_and_keep_all() {
        let Command::Generate(args) = parse("generate x").unwrap().command else {
            panic!("generate parses as generate")
        };
        let sampling = args.sampling.sampling();
        assert_eq!(Sampling { seed: 0, ..sampling }, Sampling::default());
        assert_eq!(args.sampling.shaping.shaping(), Shaping::default());
        assert_eq!(args.sampling.min_tokens, 0);
        assert_ne!(sampling.seed, args.sampling.sampling().seed, "each seed is fresh");
        assert_eq!(args.model.model, fetch::DEFAULT_TARGET);
        let Command::Generate(args) = parse("generate x --seed 7").unwrap().command else {
            panic!("generate parses as generate")
        };
        assert_eq!(args.sampling.sampling().seed, 7);
    }

    #[test]
    fn penalties_and_biases_arrive() {
        let line = "generate x --presence-penalty -0.5 --frequency-penalty 1 --repetition-penalty 1.2 \
                    --logit-bias 5=-2.5 --logit-bias 7=100 --min-tokens 3";
        let Command::Generate(args) = parse(line).unwrap().command else {
            panic!("generate parses as generate")
        };
        let expected = Shaping {
            presence_penalty: -0.5,
            frequency_penalty: 1.0,
            repetition_penalty: 1.2,
            logit_bias: vec![(5, -2.5), (7, 100.0)],
        };
        assert_eq!((args.sampling.shaping.shaping(), args.sampling.min_tokens), (expected, 3));
    }
}
