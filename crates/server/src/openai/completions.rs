//! `POST /v1/completions`: raw prompts, as text or as token ids.

use crate::app::App;
use crate::error::BadRequest;
use crate::fields::{Fields, describe, ids};
use crate::generation::Generation;
use crate::http::body::JsonBody;
use crate::http::caller::Caller;
use crate::http::error::{ApiError, json_ok};
use crate::openai::asked::{
    Asked, Drafting, Length, MOST_ALTERNATIVES, Prompt, Report, Told, refusal,
};
use crate::openai::logprobs::{Lists, Offsets};
use crate::openai::usage::{Account, Speculated, Usage};
use crate::openai::{Counts, Delivery, Extra, Head, refused};
use crate::sse::{self, Chunks, Flow, Frames};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use engine::{FinishReason, PromptLogProbs, Request, Update};
use model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// Output tokens of a request that does not say how many, as at OpenAI.
const DEFAULT_TOKENS: usize = 16;

/// Most choices of all prompts together.
const MOST_REQUESTS: usize = 1024;

/// The endpoint.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    app.accepting()?;
    let Job { requests, delivery, answer } = app.aside(move |app| Job::read(app, &body)).await?;
    caller.answered_as(&answer.head.id, &answer.head.model);
    let generation = Generation::start(&app, requests, caller)
        .map_err(|error| refusal(error, "prompt", "max_tokens"))?;
    match delivery {
        Delivery::Stream(counts) => Ok(sse::respond(generation, Stream { answer, counts })),
        Delivery::Whole => Ok(json_ok(&answer.whole(generation).await?)),
    }
}

/// A request that passed its checks.
struct Job {
    requests: Vec<Request>,
    delivery: Delivery,
    answer: Answer,
}

/// The answer in the making.
struct Answer {
    head: Head,
    extra: Extra,
    tokenizer: Arc<Tokenizer>,
    /// What stands in front of the text of each choice: its prompt, or nothing.
    echoes: Vec<String>,
    /// For each choice, when log-probabilities are asked for.
    offsets: Vec<Option<Offsets>>,
    report: Report,
    account: Account,
}

impl Job {
    fn read(app: &App, body: &[u8]) -> Result<Job, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = app.served(fields.text("model")?)?;
        let inputs = prompts(&mut fields, &app.model.tokenizer)?;
        let delivery = Delivery::take(&mut fields)?;
        let drafting = Drafting::take(&mut fields)?;
        let asked = Asked::take(&mut fields, drafting, app)?;
        let mut length = Length::take(&mut fields, &["max_tokens"], 0)?;
        length.tokens.get_or_insert(DEFAULT_TOKENS);
        let logprobs = fields.integer("logprobs", 0..=MOST_ALTERNATIVES)?.map(|top| top as usize);
        let echo = fields.boolean("echo")?.unwrap_or(false);
        best_of(&mut fields, asked.choices)?;
        refused::end(fields)?;
        let count = inputs.len() * asked.choices;
        if count > MOST_REQUESTS {
            let problem =
                format!("with `n` asks for {count} choices; ask for at most {MOST_REQUESTS}");
            return Err(BadRequest::new("prompt", problem).into());
        }
        let tokenizer = app.model.tokenizer.clone();
        let (mut echoes, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut prompts = Vec::with_capacity(inputs.len());
        for input in inputs {
            let text = if echo { input.text(&tokenizer) } else { String::new() };
            let ids = input.ids(&tokenizer);
            let own = logprobs.map(|_| match echo {
                true => Offsets::behind(tokenizer.prompt_offsets(&ids, &text), &text),
                false => Offsets::default(),
            });
            echoes.extend(std::iter::repeat_n(text, asked.choices));
            offsets.extend(std::iter::repeat_n(own, asked.choices));
            prompts.push(Prompt { ids, param: "prompt" });
        }
        let prompt = logprobs.filter(|_| echo).map(|top| PromptLogProbs { from: 0, top });
        let told = Told { output: logprobs, prompt };
        let requests = asked.requests(app, &prompts, length, told, asked.format.clone())?;
        let answer = Answer {
            head: Head::new(app, "cmpl-", "text_completion", model),
            extra: Extra { seed: asked.seed(0) },
            tokenizer,
            echoes,
            offsets,
            report: asked.report,
            account: Account::new(asked.choices),
        };
        Ok(Job { requests, delivery, answer })
    }
}

/// A prompt as it came.
pub(crate) enum Input {
    Text(String),
    Ids(Vec<u32>),
}

impl Input {
    fn text(&self, tokenizer: &Tokenizer) -> String {
        match self {
            Input::Text(text) => text.clone(),
            Input::Ids(ids) => tokenizer.decode_prompt(ids),
        }
    }

    pub(crate) fn ids(self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self {
            Input::Text(text) => tokenizer.encode_prompt(&text),
            Input::Ids(ids) => ids,
        }
    }
}

/// `prompt`: a text, an array of texts, token ids, or an array of arrays of token ids.
fn prompts(fields: &mut Fields, tokenizer: &Tokenizer) -> Result<Vec<Input>, BadRequest> {
    let wrong = |at: String, value: &Value| {
        let wanted = "a string, an array of strings, an array of token ids, or an array of these";
        BadRequest::new(at, format!("is {}; give {wanted}", describe(value)))
    };
    let inputs = match fields.take("prompt") {
        None => return Err(BadRequest::new("prompt", "is missing; send a string or token ids")),
        Some(Value::String(text)) => vec![Input::Text(text)],
        Some(Value::Array(items)) if items.first().is_some_and(Value::is_number) => {
            vec![Input::Ids(ids(&items, "prompt", tokenizer.len())?)]
        }
        Some(Value::Array(items)) => {
            let input = |(index, item): (usize, Value)| match item {
                Value::String(text) => Ok(Input::Text(text)),
                Value::Array(items) => {
                    let at = format!("prompt[{index}]");
                    ids(&items, &at, tokenizer.len()).map(Input::Ids)
                }
                other => Err(wrong(format!("prompt[{index}]"), &other)),
            };
            items.into_iter().enumerate().map(input).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong("prompt".into(), &other)),
    };
    let empty = inputs.iter().any(|input| match input {
        // Not left to the tokenizer: it may put BOS in front of nothing.
        Input::Text(text) => text.is_empty(),
        Input::Ids(ids) => ids.is_empty(),
    });
    if inputs.is_empty() || empty {
        return Err(BadRequest::new("prompt", "is empty; give at least one token"));
    }
    Ok(inputs)
}

/// `best_of`: as many as are wanted, and no more.
fn best_of(fields: &mut Fields, choices: usize) -> Result<(), BadRequest> {
    match fields.count("best_of", 1)? {
        Some(best) if best < choices => {
            let problem = format!("is {best}, less than `n`, which is {choices}; leave it out");
            Err(BadRequest::new("best_of", problem))
        }
        Some(best) if best > choices => {
            let problem = format!("is {best}, but choices are not ranked here; leave it out");
            Err(BadRequest::new("best_of", problem))
        }
        _ => Ok(()),
    }
}

#[derive(Serialize)]
struct Completion {
    #[serde(flatten)]
    head: Head,
    choices: Vec<Choice>,
    usage: Usage,
    slipstream: Extra,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<Speculated>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Lists>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [Choice],
    /// Absent, or null before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slipstream: Option<Extra>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<Speculated>,
}

impl Answer {
    /// What an update adds to a choice.
    fn hear(&mut self, index: usize, update: &Update) -> Choice {
        let mut text = String::new();
        update.text.iter().for_each(|segment| text.push_str(&segment.text));
        let lists = |offsets: &mut Offsets| offsets.lists(&self.tokenizer, update);
        let logprobs = self.offsets[index].as_mut().map(lists);
        let finish_reason = update.finished.as_ref().map(|finished| {
            let stats = &finished.stats;
            self.account.add(index, stats, stats.output_tokens, 0);
            if finished.reason == FinishReason::Length { "length" } else { "stop" }
        });
        Choice { index, text, logprobs, finish_reason }
    }

    /// The answer at once.
    async fn whole(mut self, mut generation: Generation) -> Result<Completion, ApiError> {
        let first = |(index, text): (usize, &String)| Choice {
            index,
            text: text.clone(),
            logprobs: self.offsets[index].is_some().then(Lists::default),
            finish_reason: None,
        };
        let mut choices: Vec<Choice> = self.echoes.iter().enumerate().map(first).collect();
        while let Some(heard) = generation.next().await {
            let (number, update) = heard.map_err(|broken| broken.error())?;
            let more = self.hear(number, &update);
            let choice = &mut choices[number];
            choice.text.push_str(&more.text);
            choice.finish_reason = more.finish_reason;
            if let (Some(all), Some(more)) = (&mut choice.logprobs, more.logprobs) {
                all.extend(more);
            }
        }
        let (usage, speculation) = (self.account.usage(), self.account.speculated(self.report));
        Ok(Completion { head: self.head, choices, usage, slipstream: self.extra, speculation })
    }
}

/// The answer as it comes.
struct Stream {
    answer: Answer,
    counts: Counts,
}

impl Stream {
    fn chunk<'a>(&'a self, choices: &'a [Choice]) -> Chunk<'a> {
        let usage = (self.counts == Counts::Include).then_some(None);
        Chunk { head: &self.answer.head, choices, usage, slipstream: None, speculation: None }
    }
}

impl Chunks for Stream {
    fn open(&mut self, frames: &mut Frames) {
        for index in 0..self.answer.echoes.len() {
            let text = std::mem::take(&mut self.answer.echoes[index]);
            let choice = Choice { index, text, logprobs: None, finish_reason: None };
            let slipstream = Some(self.answer.extra);
            frames.send(&Chunk { slipstream, ..self.chunk(&[choice]) });
        }
    }

    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Flow {
        let choice = self.answer.hear(number, &update);
        let listed = choice.logprobs.as_ref().is_some_and(|lists| !lists.is_empty());
        if !choice.text.is_empty() || listed || choice.finish_reason.is_some() {
            frames.send(&self.chunk(&[choice]));
        }
        Flow::GoOn
    }

    fn close(&mut self, frames: &mut Frames) {
        let account = &self.answer.account;
        let speculation = account.speculated(self.answer.report);
        let usage = (self.counts == Counts::Include).then(|| Some(account.usage()));
        if usage.is_some() || speculation.is_some() {
            frames.send(&Chunk { usage, speculation, ..self.chunk(&[]) });
        }
    }
}
