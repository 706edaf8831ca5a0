//! What every endpoint lets a client ask of a generation, and the engine's requests that follow.

use crate::app::App;
use crate::error::BadRequest;
use crate::fields::Fields;
use crate::http::error::ApiError;
use crate::openai::format::Format;
use crate::openai::shaping;
use engine::{Limits, PromptLogProbs, Request, Sampling, Shaping, Speculation, Stops, SubmitError};

/// Most choices of one prompt.
pub(crate) const MOST_CHOICES: i128 = 128;

/// Most stop strings, and the longest of them in bytes: every token is compared with all.
pub(crate) const MOST_STOPS: usize = 64;
pub(crate) const LONGEST_STOP: usize = 1024;

/// Most alternatives whose log-probabilities are reported.
pub(crate) const MOST_ALTERNATIVES: i128 = 20;

/// How to generate.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Of choice 0.
    pub(crate) sampling: Sampling,
    shaping: Shaping,
    stops: Stops,
    least: Least,
    speculation: Speculation,
    /// Whether the answer tells how drafting went.
    pub(crate) report: Report,
    /// Choices of each prompt.
    pub(crate) choices: usize,
    /// What each answer must be.
    pub(crate) format: Option<Format>,
}

/// Whether statistics are part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Omit,
    Include,
}

/// The prompt of a request, and the field it came in.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) param: &'static str,
}

/// The length that a client asked for, and the field that said so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) tokens: Option<usize>,
    pub(crate) param: &'static str,
}

/// Which log-probabilities an answer tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// How many alternatives of each output token, if any.
    pub(crate) output: Option<usize>,
    pub(crate) prompt: Option<PromptLogProbs>,
}

/// Tokens that an output has at least, and the path of the field that said so.
#[derive(Clone, Debug)]
struct Least {
    tokens: usize,
    path: String,
}

impl Least {
    /// Under vLLM's name or SGLang's.
    fn take(fields: &mut Fields) -> Result<Least, BadRequest> {
        let mut found = Least { tokens: 0, path: fields.path("min_tokens") };
        for name in ["min_tokens", "min_new_tokens"] {
            if let Some(tokens) = fields.count(name, 0)? {
                found = Least { tokens, path: fields.path(name) };
            }
        }
        Ok(found)
    }

    /// Whether `most` tokens are as many.
    fn check(&self, most: usize) -> Result<(), BadRequest> {
        let least = self.tokens;
        if least <= most {
            return Ok(());
        }
        let problem = format!(
            "is {least}, but {most} tokens can follow at most; ask for fewer, or allow a longer \
             answer"
        );
        Err(BadRequest::new(&*self.path, problem))
    }
}

impl Length {
    /// Of the first of `names` that is there: `least` tokens or more.
    pub(crate) fn take(
        fields: &mut Fields,
        names: &[&'static str],
        least: usize,
    ) -> Result<Length, BadRequest> {
        let mut found = Length { tokens: None, param: names[0] };
        for &name in names {
            let tokens = fields.count(name, least)?;
            if found.tokens.is_none() && tokens.is_some() {
                found = Length { tokens, param: name };
            }
        }
        Ok(found)
    }
}

impl Asked {
    /// Takes the fields that all endpoints share. A request without a seed gets a fresh one.
    pub(crate) fn take(
        fields: &mut Fields,
        drafting: Drafting,
        app: &App,
    ) -> Result<Asked, BadRequest> {
        let tokenizer = &app.model.tokenizer;
        let choices = fields.integer("n", 1..=MOST_CHOICES)?.unwrap_or(1) as usize;
        let sampling = sampling(fields, app)?;
        let shaping = shaping::take(fields, tokenizer.len())?;
        let least = Least::take(fields)?;
        let mut ids = fields.ids("stop_token_ids", tokenizer.len())?.unwrap_or_default();
        if !fields.boolean("ignore_eos")?.unwrap_or(false) {
            ids.extend_from_slice(tokenizer.end_ids());
        }
        let stops = Stops { ids, strings: stop_strings(fields)? };
        let Drafting { speculation, report } = drafting;
        let format = Format::take(fields)?;
        Ok(Asked { sampling, shaping, stops, least, speculation, report, choices, format })
    }

    /// The seed of a choice.
    pub(crate) fn seed(&self, choice: usize) -> u64 {
        self.sampling.seed.wrapping_add(choice as u64)
    }

    /// One request a choice, prompt after prompt: number `p · choices + c` is choice `c` of prompt
    /// `p`. It is the request that would have been made for it alone, with its seed. What they write
    /// is of `format`.
    ///
    /// # Errors
    /// A prompt that leaves no room for an answer, or none for its least length; a format that cannot
    /// be kept to.
    pub(crate) fn requests(
        &self,
        app: &App,
        prompts: &[Prompt],
        length: Length,
        told: Told,
        format: Option<Format>,
    ) -> Result<Vec<Request>, ApiError> {
        let context = app.engine.info().context;
        for prompt in prompts {
            if prompt.ids.len() >= context {
                return Err(ApiError::too_long(prompt.param, prompt.ids.len(), context));
            }
            let room = context - prompt.ids.len();
            self.least.check(length.tokens.map_or(room, |tokens| tokens.min(room)))?;
        }
        let constraint = format.map(|format| format.compile(&app.grammars)).transpose()?;
        let mut requests = Vec::with_capacity(prompts.len() * self.choices);
        for prompt in prompts {
            requests.extend((0..self.choices).map(|choice| Request {
                prompt: prompt.ids.clone(),
                sampling: Sampling { seed: self.seed(choice), ..self.sampling },
                shaping: self.shaping.clone(),
                stops: self.stops.clone(),
                limits: Limits {
                    max_tokens: length.tokens,
                    min_tokens: self.least.tokens,
                    timeout: app.config.limits.request_time,
                },
                speculation: self.speculation,
                priority: 0,
                logprobs: told.output,
                prompt_logprobs: told.prompt,
                constraint: constraint.clone(),
            }));
        }
        Ok(requests)
    }
}

/// The engine's refusal in the client's words.
pub(crate) fn refusal(error: SubmitError, prompt: &str, length: &str) -> ApiError {
    ApiError::submit(error, |field| match field {
        "prompt" => prompt.to_owned(),
        "max_tokens" => length.to_owned(),
        "width" => "speculation.max_width".to_owned(),
        // Elsewhere they begin with the first token.
        "prompt_logprobs" => "logprob_start_len".to_owned(),
        other => other.to_owned(),
    })
}

fn sampling(fields: &mut Fields, app: &App) -> Result<Sampling, BadRequest> {
    let temperature =
        fields.number("temperature", "a number from 0 (greedy) to 2", |t| (0.0..=2.0).contains(&t));
    let top_p =
        fields.number("top_p", "a number above 0, up to 1 (keeps all)", |p| p > 0.0 && p <= 1.0);
    let min_p =
        fields.number("min_p", "a number from 0 (keeps all) to 1", |p| (0.0..=1.0).contains(&p));
    let (temperature, top_p, min_p) = (temperature?, top_p?, min_p?);
    // -1 keeps all too, as elsewhere.
    let top_k = fields.integer("top_k", -1..=i128::from(u32::MAX))?.unwrap_or(0).max(0);
    let seeds = i128::from(i64::MIN)..=i128::from(u64::MAX);
    let seed = fields.integer("seed", seeds)?;
    Ok(Sampling {
        temperature: temperature.unwrap_or(1.0),
        // What is too small for a float of 32 bits is still above 0.
        top_p: top_p.unwrap_or(1.0).max(f32::MIN_POSITIVE),
        min_p: min_p.unwrap_or(0.0),
        top_k: top_k as u32,
        // A negative seed is its two's complement: every number is a seed of its own.
        seed: seed.map_or_else(|| app.ids.seed(), |seed| seed as u64),
    })
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, BadRequest> {
    let stops = fields.texts("stop")?;
    let path = fields.path("stop");
    if stops.len() > MOST_STOPS {
        let problem = format!("has {} strings; send at most {MOST_STOPS}", stops.len());
        return Err(BadRequest::new(path, problem));
    }
    for (index, stop) in stops.iter().enumerate() {
        let problem = match stop.len() {
            0 => "is empty and would stop at once; leave it out".to_owned(),
            1..=LONGEST_STOP => continue,
            long => format!("has {long} bytes; send at most {LONGEST_STOP}"),
        };
        return Err(BadRequest::new(format!("{path}[{index}]"), problem));
    }
    Ok(stops)
}

/// The object `speculation`.
pub(crate) struct Drafting {
    speculation: Speculation,
    report: Report,
}

impl Drafting {
    /// Takes it.
    pub(crate) fn take(fields: &mut Fields) -> Result<Drafting, BadRequest> {
        let Some(mut own) = fields.object("speculation")? else {
            return Ok(Drafting { speculation: Speculation::Auto, report: Report::Omit });
        };
        let enabled = own.boolean("enabled")?.unwrap_or(true);
        let width = own.count("max_width", 1)?;
        let report = match own.boolean("report")? {
            Some(true) => Report::Include,
            Some(false) | None => Report::Omit,
        };
        own.end()?;
        let speculation = match (enabled, width) {
            (true, None) => Speculation::Auto,
            (true, Some(width)) => Speculation::Width(width),
            (false, None) => Speculation::Off,
            (false, Some(_)) => {
                let problem = "is for requests that draft; leave it out, or set `enabled` to true";
                return Err(BadRequest::new("speculation.max_width", problem));
            }
        };
        Ok(Drafting { speculation, report })
    }
}
