//! `POST /v1/responses`: OpenAI's responses. A request is put into the words of a chat and goes its
//! way from there; what is this endpoint's own is the shape of what goes in and of what comes out.

mod input;
mod items;
mod names;
pub(crate) mod request;

use crate::app::{App, now};
use crate::fields::Fields;
use crate::generation::Generation;
use crate::http::body::JsonBody;
use crate::http::caller::Caller;
use crate::http::error::{ApiError, json_ok};
use crate::openai::asked::refusal;
use crate::openai::usage::{Speculated, Spent};
use crate::openai::{Delivery, Extra, chat};
use crate::sse::{self, Chunks, Flow, Frames};
use axum::Extension;
use axum::extract::State;
use axum::response::Response as HttpResponse;
use engine::{Request, Update};
use items::{Entries, Event, Items, Status};
use request::{Echo, Translated};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The endpoint.
pub(crate) async fn respond(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody,
) -> Result<HttpResponse, ApiError> {
    app.accepting()?;
    let Job { requests, delivery, answer } = app.aside(move |app| Job::read(app, &body)).await?;
    caller.answered_as(&answer.chat.head.id, &answer.chat.head.model);
    let generation = Generation::start(&app, requests, caller)
        .map_err(|error| refusal(error, "input", "max_output_tokens"))?;
    match delivery {
        Delivery::Stream(_) => Ok(sse::respond(generation, Stream { answer, sent: 0 })),
        Delivery::Whole => Ok(json_ok(&answer.whole(generation).await?)),
    }
}

/// A request that passed its checks.
struct Job {
    requests: Vec<Request>,
    delivery: Delivery,
    answer: Answer,
}

impl Job {
    fn read(app: &App, body: &[u8]) -> Result<Job, ApiError> {
        let Translated { chat, names, echo } = request::translate(Fields::parse(body)?)?;
        let job = chat::Job::read(app, chat, "resp_")
            .map_err(|error| error.renamed(|param| names.own(param)))?;
        let chat::Job { requests, delivery, answer: chat, .. } = job;
        let [request] = &requests[..] else { panic!("expected one request for one answer") };
        let entries = request.logprobs.map_or(Entries::Omit, |_| Entries::Include);
        let items = Items::new(&chat.head.id, entries);
        Ok(Job { requests, delivery, answer: Answer { chat, items, echo } })
    }
}

/// The answer in the making.
struct Answer {
    /// The one choice of a chat, which is what a response is.
    chat: chat::Answer,
    items: Items,
    echo: Echo,
}

/// Where a response stands.
enum Stage<'e> {
    Running,
    Ended(Status),
    Failed(&'e ApiError),
}

#[derive(Serialize)]
struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    completed_at: Option<u64>,
    status: &'static str,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    model: &'a str,
    output: &'a [Value],
    #[serde(flatten)]
    echo: &'a Echo,
    background: bool,
    store: bool,
    previous_response_id: (),
    truncation: &'static str,
    service_tier: &'static str,
    usage: Option<Spent>,
    slipstream: Extra,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculation: Option<Speculated>,
}

impl Answer {
    /// The response as it is.
    fn response(&self, stage: Stage<'_>) -> Response<'_> {
        let chat = &self.chat;
        let ended = matches!(stage, Stage::Ended(_));
        let (status, error, details) = match stage {
            Stage::Running => (Status::InProgress.name(), None, None),
            Stage::Ended(status @ Status::Incomplete) => {
                (status.name(), None, Some(json!({"reason": "max_output_tokens"})))
            }
            Stage::Ended(status) => (status.name(), None, None),
            Stage::Failed(error) => {
                let error = json!({"code": error.name(), "message": error.message()});
                ("failed", Some(error), None)
            }
        };
        Response {
            id: &chat.head.id,
            object: "response",
            created_at: chat.head.created,
            completed_at: ended.then(now),
            status,
            error,
            incomplete_details: details,
            model: &chat.head.model,
            output: self.items.done(),
            echo: &self.echo,
            background: false,
            store: false,
            previous_response_id: (),
            truncation: "disabled",
            service_tier: "default",
            usage: ended.then(|| chat.account.spent()),
            slipstream: chat.extra,
            speculation: chat.account.speculated(chat.report).filter(|_| ended),
        }
    }

    /// What an update adds, and how the answer ended if it did.
    fn hear(&mut self, number: usize, update: &Update) -> (Vec<Event>, Option<Status>) {
        let (deltas, logprobs, reason) = self.chat.hear(number, update);
        let before = self.chat.speakers[number].reasoning();
        let entries = logprobs.map(|logprobs| logprobs.content).unwrap_or_default();
        let mut events = self.items.hear(deltas, entries, before);
        let status = reason.map(|reason| match reason {
            "length" => Status::Incomplete,
            _ => Status::Completed,
        });
        if let Some(status) = status {
            events.extend(self.items.close(status, before));
        }
        (events, status)
    }

    /// The answer at once.
    async fn whole(mut self, mut generation: Generation) -> Result<Value, ApiError> {
        let mut end = Status::InProgress;
        while let Some(heard) = generation.next().await {
            let (number, update) = heard.map_err(|broken| broken.error())?;
            let (_, status) = self.hear(number, &update);
            end = status.unwrap_or(end);
            if status.is_none() && self.chat.speakers[number].flow() == Flow::Enough {
                generation.enough(number);
            }
        }
        let response = self.response(Stage::Ended(end));
        Ok(serde_json::to_value(response).expect("responses have text keys only"))
    }
}

/// The answer as it comes.
struct Stream {
    answer: Answer,
    /// Events so far.
    sent: usize,
}

#[derive(Serialize)]
struct Numbered<'e> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: usize,
    #[serde(flatten)]
    fields: &'e Map<String, Value>,
}

impl Stream {
    fn send(&mut self, event: &Event, frames: &mut Frames) {
        let Event { kind, fields } = event;
        frames.send_as(kind, &Numbered { kind, sequence_number: self.sent, fields });
        self.sent += 1;
    }

    /// Tells where the whole response stands.
    fn tell(&mut self, kind: &'static str, stage: Stage<'_>, frames: &mut Frames) {
        let event = Event::new(kind, json!({"response": self.answer.response(stage)}));
        self.send(&event, frames);
    }
}

impl Chunks for Stream {
    /// The last event says by its name that it is the last.
    const END: &'static [u8] = b"";

    fn open(&mut self, frames: &mut Frames) {
        self.tell("response.created", Stage::Running, frames);
        self.tell("response.in_progress", Stage::Running, frames);
    }

    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Flow {
        let (events, end) = self.answer.hear(number, &update);
        for event in &events {
            self.send(event, frames);
        }
        match end {
            None => return self.answer.chat.speakers[number].flow(),
            Some(status @ Status::Incomplete) => {
                self.tell("response.incomplete", Stage::Ended(status), frames);
            }
            Some(status) => self.tell("response.completed", Stage::Ended(status), frames),
        }
        Flow::GoOn
    }

    fn close(&mut self, _: &mut Frames) {}

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        self.tell("response.failed", Stage::Failed(error), frames);
    }
}
