//! `POST /v1/chat/completions`.

use crate::app::{App, Chat};
use crate::chat::{CallIds, ChatFields, Constraint, Delta, Prepared, Reply};
use crate::error::BadRequest;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::http::body::JsonBody;
use crate::http::caller::Caller;
use crate::http::error::{ApiError, json_ok};
use crate::openai::asked::{
    Asked, Drafting, Length, MOST_ALTERNATIVES, Prompt, Report, Told, refusal,
};
use crate::openai::format::Format;
use crate::openai::logprobs::{Entry, entries};
use crate::openai::speaker::Speaker;
use crate::openai::usage::{Account, Speculated, Usage};
use crate::openai::{Counts, Delivery, Extra, Head, refused};
use crate::sse::{self, Chunks, Flow, Frames};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use engine::{Request, Update};
use model::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The fields that [`ChatFields`] reads.
const CONVERSATION: [&str; 7] = [
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "continue_final_message",
    "separate_reasoning",
    "chat_template_kwargs",
];

/// How many tokens of a prompt's end say whether it opens the reasoning.
const TAIL: usize = 16;

/// The endpoint.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    app.accepting()?;
    let job = app.aside(move |app| Job::read(app, Fields::parse(&body)?, "chatcmpl-")).await?;
    let Job { requests, length, delivery, answer } = job;
    caller.answered_as(&answer.head.id, &answer.head.model);
    let generation = Generation::start(&app, requests, caller)
        .map_err(|error| refusal(error, "messages", length.param))?;
    match delivery {
        Delivery::Stream(counts) => Ok(sse::respond(generation, Stream { answer, counts })),
        Delivery::Whole => Ok(json_ok(&answer.whole(generation).await?)),
    }
}

/// A request that passed its checks.
pub(crate) struct Job {
    pub(crate) requests: Vec<Request>,
    length: Length,
    pub(crate) delivery: Delivery,
    pub(crate) answer: Answer,
}

/// The answer in the making.
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) extra: Extra,
    tokenizer: Arc<Tokenizer>,
    pub(crate) speakers: Vec<Speaker>,
    logprobs: Option<usize>,
    pub(crate) report: Report,
    pub(crate) account: Account,
}

impl Job {
    /// Of the fields of a chat. The answer's id begins with `prefix`.
    ///
    /// # Errors
    /// The field at fault.
    pub(crate) fn read(
        app: &App,
        mut fields: Fields,
        prefix: &'static str,
    ) -> Result<Job, ApiError> {
        let model = app.served(fields.text("model")?)?;
        let Some(Chat { template, dialect }) = &app.model.chat else {
            let problem = "the model has no chat template; use /v1/completions";
            return Err(BadRequest::new("messages", problem).into());
        };
        let prepared = conversation(&mut fields)?.prepare(dialect)?;
        let delivery = Delivery::take(&mut fields)?;
        let drafting = Drafting::take(&mut fields)?;
        let asked = Asked::take(&mut fields, drafting, app)?;
        let length = Length::take(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
        let logprobs = alternatives(&mut fields)?;
        refused::end(fields)?;
        let tokenizer = app.model.tokenizer.clone();
        let ids = template
            .encode(&tokenizer, &prepared.messages, &prepared.options)
            .map_err(|error| BadRequest::new("messages", error.to_string()))?;
        let tail = tokenizer.decode(&ids[ids.len().saturating_sub(TAIL)..]);
        let prompts = [Prompt { ids, param: "messages" }];
        let format = constrained(&prepared, asked.format.clone(), &tail);
        let told = Told { output: logprobs, prompt: None };
        let requests = asked.requests(app, &prompts, length, told, format)?;
        let object = match delivery {
            Delivery::Whole => "chat.completion",
            Delivery::Stream(_) => "chat.completion.chunk",
        };
        let head = Head::new(app, prefix, object, model);
        let speakers = speakers(&prepared, &tail, &head.id, asked.choices);
        let answer = Answer {
            extra: Extra { seed: asked.seed(0) },
            report: asked.report,
            account: Account::new(asked.choices),
            head,
            tokenizer,
            speakers,
            logprobs,
        };
        Ok(Job { requests, length, delivery, answer })
    }
}

/// The conversation of a chat request.
pub(crate) fn conversation(fields: &mut Fields) -> Result<ChatFields, BadRequest> {
    if !fields.has("messages") {
        return Err(BadRequest::new("messages", "is missing; send at least one message"));
    }
    fields.typed(&CONVERSATION)
}

/// What the whole answer must be, when its content must be of `format`.
fn constrained(prepared: &Prepared, format: Option<Format>, tail: &str) -> Option<Format> {
    let param = match (&prepared.constraint, &format) {
        (Constraint::None | Constraint::CallsOr(_) | Constraint::Strict(..), Some(format)) => {
            format.param.clone()
        }
        (_, _) => "tools".to_owned(),
    };
    let grammar = prepared.grammar(format.map(|format| format.grammar), tail)?;
    Some(Format { grammar, param, parts: prepared.schemas.clone() })
}

fn speakers(prepared: &Prepared, tail: &str, id: &str, choices: usize) -> Vec<Speaker> {
    let speaker = |choice| {
        let splitter = || prepared.splitter(tail, CallIds::new(id, choice));
        Speaker::new(splitter(), splitter())
    };
    (0..choices).map(speaker).collect()
}

/// `logprobs` and `top_logprobs`: how many alternatives to report, if any.
fn alternatives(fields: &mut Fields) -> Result<Option<usize>, BadRequest> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0..=MOST_ALTERNATIVES)? {
        Some(_) if !wanted => {
            let problem = "needs `logprobs`; set that to true, or leave this out";
            Err(BadRequest::new("top_logprobs", problem))
        }
        top => Ok(wanted.then(|| top.unwrap_or(0) as usize)),
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
    message: Value,
    logprobs: Option<LogProbs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
pub(crate) struct LogProbs {
    pub(crate) content: Vec<Entry>,
    refusal: (),
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: &'a [ChunkChoice],
    /// Absent, or null before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slipstream: Option<Extra>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<Speculated>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Value,
    logprobs: Option<LogProbs>,
    finish_reason: Option<&'static str>,
}

impl Answer {
    /// What an update of a choice says.
    pub(crate) fn hear(
        &mut self,
        number: usize,
        update: &Update,
    ) -> (Vec<Delta>, Option<LogProbs>, Option<&'static str>) {
        let counts = self.speakers[number].flow() == Flow::GoOn;
        let said = self.speakers[number].hear(&self.tokenizer, update);
        let logprobs = self
            .logprobs
            .filter(|_| counts && !update.tokens.is_empty())
            .map(|_| LogProbs { content: entries(&self.tokenizer, &update.tokens), refusal: () });
        let reason = said.end.map(|end| {
            self.account.add(number, &end.stats, end.tokens, end.reasoning);
            end.reason
        });
        (said.deltas, logprobs, reason)
    }

    /// The answer at once.
    async fn whole(mut self, mut generation: Generation) -> Result<Completion, ApiError> {
        let mut replies = vec![Reply::default(); self.speakers.len()];
        let mut choices: Vec<Choice> = (0..replies.len())
            .map(|index| {
                let content = |_| LogProbs { content: Vec::new(), refusal: () };
                let logprobs = self.logprobs.map(content);
                Choice { index, message: Value::Null, logprobs, finish_reason: None }
            })
            .collect();
        while let Some(heard) = generation.next().await {
            let (number, update) = heard.map_err(|broken| broken.error())?;
            let (deltas, logprobs, reason) = self.hear(number, &update);
            replies[number].extend(deltas);
            let choice = &mut choices[number];
            if let (Some(all), Some(more)) = (&mut choice.logprobs, logprobs) {
                all.content.extend(more.content);
            }
            choice.finish_reason = reason;
            if self.speakers[number].flow() == Flow::Enough && reason.is_none() {
                generation.enough(number);
            }
        }
        for (choice, reply) in choices.iter_mut().zip(replies) {
            choice.message = message(reply);
        }
        let (usage, speculation) = (self.account.usage(), self.account.speculated(self.report));
        Ok(Completion { head: self.head, choices, usage, slipstream: self.extra, speculation })
    }
}

/// An assistant's message.
fn message(reply: Reply) -> Value {
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    // Beside calls there need not be content.
    let content = reply.content.or_else(|| reply.calls.is_empty().then(String::new));
    message.insert("content".into(), content.into());
    message.insert("refusal".into(), Value::Null);
    if let Some(reasoning) = reply.reasoning {
        message.insert("reasoning_content".into(), reasoning.into());
    }
    if !reply.calls.is_empty() {
        let call = |call: crate::chat::split::ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        message.insert("tool_calls".into(), reply.calls.into_iter().map(call).collect());
    }
    Value::Object(message)
}

/// A delta as the client reads it.
fn delta_json(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning_content": text }),
        Delta::ToolCall { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            json!({"tool_calls": [{
                "index": index, "id": id, "type": "function", "function": function,
            }]})
        }
        Delta::Arguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

/// The answer as it comes.
struct Stream {
    answer: Answer,
    counts: Counts,
}

impl Stream {
    fn chunk<'a>(&'a self, choices: &'a [ChunkChoice]) -> Chunk<'a> {
        let usage = (self.counts == Counts::Include).then_some(None);
        Chunk { head: &self.answer.head, choices, usage, slipstream: None, speculation: None }
    }

    fn send(
        &self,
        frames: &mut Frames,
        index: usize,
        delta: Value,
        logprobs: Option<LogProbs>,
        finish_reason: Option<&'static str>,
    ) {
        frames.send(&self.chunk(&[ChunkChoice { index, delta, logprobs, finish_reason }]));
    }
}

impl Chunks for Stream {
    fn open(&mut self, frames: &mut Frames) {
        for index in 0..self.answer.speakers.len() {
            let delta = json!({"role": "assistant", "content": ""});
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            let slipstream = Some(self.answer.extra);
            frames.send(&Chunk { slipstream, ..self.chunk(&[choice]) });
        }
    }

    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Flow {
        let (deltas, mut logprobs, reason) = self.answer.hear(number, &update);
        for delta in deltas {
            self.send(frames, number, delta_json(delta), logprobs.take(), None);
        }
        if logprobs.is_some() {
            // Tokens whose text is held back, or have none.
            self.send(frames, number, json!({"content": ""}), logprobs, None);
        }
        match reason {
            Some(reason) => {
                self.send(frames, number, json!({}), None, Some(reason));
                Flow::GoOn
            }
            None => self.answer.speakers[number].flow(),
        }
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
