//! `POST /generate`: text or token ids in; text, ids and statistics out. The names are those of
//! SGLang's endpoint, so that its load generators run against this one; in streams, `text` and
//! `output_ids` are what is new.

use crate::app::App;
use crate::error::BadRequest;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::http::body::JsonBody;
use crate::http::caller::Caller;
use crate::http::error::{ApiError, json_ok};
use crate::metrics::by_position;
use crate::native::origins::Origins;
use crate::openai::asked::{
    Asked, Drafting, Length, MOST_ALTERNATIVES, Prompt, Report, Told, refusal,
};
use crate::openai::logprobs::finite;
use crate::openai::refused;
use crate::sse::{self, Chunks, Flow, Frames};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use engine::{Finished, LogProbs, PromptLogProbs, PromptToken, Request, TokenOut, Update};
use model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Where sampling is asked for.
const SAMPLING: &str = "sampling_params";

/// Output tokens of a request that does not say how many, as at SGLang.
const DEFAULT_TOKENS: usize = 128;

/// The endpoint.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    app.accepting()?;
    let Job { requests, param, stream, answer } =
        app.aside(move |app| Job::read(app, &body)).await?;
    caller.answered_as(&answer.id, &answer.model);
    let generation = Generation::start(&app, requests, caller)
        .map_err(|error| refusal(error, param, &format!("{SAMPLING}.max_new_tokens")))?;
    if stream {
        return Ok(sse::respond(generation, answer));
    }
    let outputs = answer.whole(generation).await?;
    Ok(match &outputs[..] {
        [output] => json_ok(output),
        outputs => json_ok(&outputs),
    })
}

/// A request that passed its checks.
struct Job {
    requests: Vec<Request>,
    /// The field that the prompt came in.
    param: &'static str,
    stream: bool,
    answer: Answer,
}

/// The answer in the making.
struct Answer {
    id: String,
    model: String,
    asked: Asked,
    prompt_tokens: usize,
    /// Of each choice, so far.
    completion_tokens: Vec<usize>,
    tokenizer: Arc<Tokenizer>,
    report: Report,
}

/// A choice, or what is new of it.
#[derive(Serialize)]
struct Output {
    index: usize,
    text: String,
    output_ids: Vec<u32>,
    meta_info: Meta,
}

#[derive(Serialize)]
struct Meta {
    id: String,
    seed: u64,
    finish_reason: Option<Value>,
    prompt_tokens: usize,
    completion_tokens: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    input_token_logprobs: Vec<(Option<f32>, u32, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    input_top_logprobs: Vec<Option<Vec<LogProb>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    output_token_logprobs: Vec<LogProb>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    output_top_logprobs: Vec<Vec<LogProb>>,
    /// When asked for.
    #[serde(flatten)]
    origins: Option<Origins>,
    #[serde(flatten)]
    end: Option<End>,
}

/// Log-probability, id, and the token as people write it.
type LogProb = (f32, u32, String);

/// What is known in the end.
#[derive(Serialize)]
struct End {
    cached_tokens: usize,
    /// Seconds from submission on.
    queue_time: f64,
    time_to_first_token: f64,
    e2e_latency: f64,
    /// Verify passes.
    spec_verify_ct: usize,
    /// Tokens that one of them committed on average.
    spec_accept_length: f64,
    /// Drafts that they looked at, and those they accepted.
    spec_draft_token_num: usize,
    spec_accept_token_num: usize,
    /// Passes that accepted the draft at each place of the block.
    accepted_by_position: Vec<usize>,
}

impl Job {
    fn read(app: &App, body: &[u8]) -> Result<Job, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = app.served(fields.text("model")?)?;
        let (ids, param) = prompt(&mut fields, app)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let drafting = Drafting::take(&mut fields)?;
        let told = told(&mut fields)?;
        let mut sampling = fields.object(SAMPLING)?.unwrap_or_default();
        let asked = Asked::take(&mut sampling, drafting, app)?;
        let mut length = Length::take(&mut sampling, &["max_new_tokens"], 0)?;
        length.tokens.get_or_insert(DEFAULT_TOKENS);
        refused::end(sampling)?;
        refused::end(fields)?;
        let prompt_tokens = ids.len();
        let (prompts, format) = ([Prompt { ids, param }], asked.format.clone());
        let requests = asked.requests(app, &prompts, length, told, format)?;
        let report = asked.report;
        let answer = Answer {
            id: app.ids.id(),
            model,
            prompt_tokens,
            completion_tokens: vec![0; asked.choices],
            asked,
            tokenizer: app.model.tokenizer.clone(),
            report,
        };
        Ok(Job { requests, param, stream, answer })
    }
}

/// `text` or `input_ids`, and which.
fn prompt(fields: &mut Fields, app: &App) -> Result<(Vec<u32>, &'static str), BadRequest> {
    let tokenizer = &app.model.tokenizer;
    match (fields.text("text")?, fields.ids("input_ids", tokenizer.len())?) {
        (Some(_), Some(_)) => {
            Err(BadRequest::new("input_ids", "cannot be had with `text`; leave one of them out"))
        }
        // Not left to the tokenizer: it may put BOS in front of nothing.
        (Some(text), None) if text.is_empty() => {
            Err(BadRequest::new("text", "is empty; give at least one token"))
        }
        (Some(text), None) => Ok((tokenizer.encode_prompt(&text), "text")),
        (None, Some(ids)) => Ok((ids, "input_ids")),
        (None, None) => Err(BadRequest::new("text", "is missing; send a string, or `input_ids`")),
    }
}

/// `return_logprob`, `top_logprobs_num` and `logprob_start_len`: which log-probabilities to tell.
fn told(fields: &mut Fields) -> Result<Told, BadRequest> {
    let wanted = fields.boolean("return_logprob")?.unwrap_or(false);
    let top = fields.integer("top_logprobs_num", 0..=MOST_ALTERNATIVES)?.unwrap_or(0);
    // Text comes with them in any case.
    fields.boolean("return_text_in_logprobs")?;
    // -1: of output tokens only.
    let from = fields.integer("logprob_start_len", -1..=i128::from(u32::MAX))?.unwrap_or(-1);
    let from = usize::try_from(from).ok();
    if from.is_some() && !wanted {
        let problem = "needs `return_logprob`; set that to true, or leave this out";
        return Err(BadRequest::new("logprob_start_len", problem));
    }
    let top = top as usize;
    let prompt = from.map(|from| PromptLogProbs { from, top });
    Ok(Told { output: wanted.then_some(top), prompt })
}

impl Answer {
    /// What an update adds to a choice.
    fn hear(&mut self, index: usize, update: Update) -> Output {
        let before = self.completion_tokens[index];
        let origins = match self.report {
            Report::Include => Some(Origins::of(&update, before, &self.tokenizer)),
            Report::Omit => None,
        };
        let completion_tokens = before + update.tokens.len();
        self.completion_tokens[index] = completion_tokens;
        let named = |(id, logprob): (u32, f32)| (finite(logprob), id, self.tokenizer.name(id));
        let top =
            |found: &LogProbs| -> Vec<LogProb> { found.top.iter().copied().map(named).collect() };
        let (mut token_logprobs, mut top_logprobs) = (Vec::new(), Vec::new());
        for TokenOut { id, logprobs, .. } in &update.tokens {
            let Some(found) = logprobs else { continue };
            token_logprobs.push(named((*id, found.chosen)));
            top_logprobs.push(top(found));
        }
        let of = |PromptToken { id, logprobs }: &PromptToken| {
            let own = logprobs.as_ref().map(|found| finite(found.chosen));
            ((own, *id, self.tokenizer.name(*id)), logprobs.as_ref().map(top))
        };
        let (input_token_logprobs, input_top_logprobs) = update.prompt.iter().map(of).unzip();
        Output {
            index,
            text: update.text.into_iter().map(|segment| segment.text).collect(),
            output_ids: update.tokens.iter().map(|token| token.id).collect(),
            meta_info: Meta {
                id: self.id.clone(),
                seed: self.asked.seed(index),
                finish_reason: update.finished.as_ref().map(|end| reason(end, completion_tokens)),
                prompt_tokens: self.prompt_tokens,
                completion_tokens,
                input_token_logprobs,
                input_top_logprobs,
                output_token_logprobs: token_logprobs,
                output_top_logprobs: top_logprobs,
                origins,
                end: update.finished.map(|finished| End::new(&finished)),
            },
        }
    }

    /// The choices at once.
    async fn whole(mut self, mut generation: Generation) -> Result<Vec<Output>, ApiError> {
        let mut whole: Vec<Option<Output>> = self.completion_tokens.iter().map(|_| None).collect();
        while let Some(heard) = generation.next().await {
            let (index, update) = heard.map_err(|broken| broken.error())?;
            let more = self.hear(index, update);
            match &mut whole[index] {
                None => whole[index] = Some(more),
                Some(output) => output.extend(more),
            }
        }
        let output = |output: Option<Output>| output.expect("a request ends with an update");
        Ok(whole.into_iter().map(output).collect())
    }
}

fn reason(finished: &Finished, completion_tokens: usize) -> Value {
    match finished.reason.name() {
        "length" => json!({"type": "length", "length": completion_tokens}),
        other => json!({"type": other}),
    }
}

impl Output {
    fn extend(&mut self, more: Output) {
        self.text.push_str(&more.text);
        self.output_ids.extend(more.output_ids);
        let before = std::mem::replace(&mut self.meta_info, more.meta_info);
        let meta = &mut self.meta_info;
        prepend(&mut meta.input_token_logprobs, before.input_token_logprobs);
        prepend(&mut meta.input_top_logprobs, before.input_top_logprobs);
        prepend(&mut meta.output_token_logprobs, before.output_token_logprobs);
        prepend(&mut meta.output_top_logprobs, before.output_top_logprobs);
        if let (Some(mut all), Some(more)) = (before.origins, meta.origins.take()) {
            all.extend(more);
            meta.origins = Some(all);
        }
    }
}

fn prepend<T>(all: &mut Vec<T>, mut before: Vec<T>) {
    before.append(all);
    *all = before;
}

impl End {
    fn new(finished: &Finished) -> End {
        let stats = &finished.stats;
        End {
            cached_tokens: stats.cached_tokens,
            queue_time: stats.queued.as_secs_f64(),
            time_to_first_token: stats.first_token.as_secs_f64(),
            e2e_latency: stats.total.as_secs_f64(),
            spec_verify_ct: stats.steps,
            spec_accept_length: stats.tau(),
            spec_draft_token_num: stats.drafted,
            spec_accept_token_num: stats.accepted_drafts(),
            accepted_by_position: by_position(&stats.accepted),
        }
    }
}

impl Chunks for Answer {
    fn open(&mut self, _: &mut Frames) {}

    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Flow {
        let output = self.hear(number, update);
        if !output.output_ids.is_empty() || output.meta_info.finish_reason.is_some() {
            frames.send(&output);
        }
        Flow::GoOn
    }

    fn close(&mut self, _: &mut Frames) {}
}
