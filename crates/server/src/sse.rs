//! Answers that are written as they come: server-sent events, as OpenAI frames them.

use crate::generation::{Broken, Generation};
use crate::http::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use engine::Update;
use futures_util::stream;
use serde::Serialize;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// A comment is sent this long after the last event, so that nobody in between closes a connection
/// that waits for its turn.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The comment.
const COMMENT: &[u8] = b": waiting\n\n";

/// The last event of most streams.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// Events on their way to the client.
#[derive(Default)]
pub(crate) struct Frames(Vec<u8>);

impl Frames {
    /// One more event.
    pub(crate) fn send(&mut self, event: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, event).expect("events have text keys only");
        self.0.extend_from_slice(b"\n\n");
    }

    /// One more event, with a name.
    pub(crate) fn send_as(&mut self, name: &str, event: &impl Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.send(event);
    }

    fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// Whether a request is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It is.
    GoOn,
    /// Its answer is complete.
    Enough,
}

/// How one endpoint writes its stream.
pub(crate) trait Chunks: Send + 'static {
    /// What stands behind the last event.
    const END: &'static [u8] = DONE;

    /// Before anything is known.
    fn open(&mut self, frames: &mut Frames);

    /// What a step added to request `number`.
    fn update(&mut self, number: usize, update: Update, frames: &mut Frames) -> Flow;

    /// After the last request has ended.
    fn close(&mut self, frames: &mut Frames);

    /// Instead of what would have followed.
    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        frames.send(&error.json());
    }
}

struct Writer<C> {
    generation: Generation,
    chunks: C,
    frames: Frames,
    stage: Stage,
}

#[derive(PartialEq, Eq)]
enum Stage {
    New,
    Running,
    Ended,
}

/// The answer whose events `chunks` makes of what `generation` brings.
pub(crate) fn respond(generation: Generation, chunks: impl Chunks) -> Response {
    let writer = Writer { generation, chunks, frames: Frames::default(), stage: Stage::New };
    let body = stream::unfold(writer, |mut writer| async {
        writer.next().await.map(|bytes| (bytes, writer))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that collect answers are asked not to.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

impl<C: Chunks> Writer<C> {
    /// What is to be written next; an error closes the connection.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        match self.stage {
            Stage::New => {
                self.stage = Stage::Running;
                self.chunks.open(&mut self.frames);
                self.run().await
            }
            Stage::Running => self.run().await,
            Stage::Ended => None,
        }
    }

    /// Waits until there is something to write; `None` when nothing more comes.
    async fn run(&mut self) -> Option<io::Result<Bytes>> {
        while self.frames.0.is_empty() && self.stage == Stage::Running {
            let heard = match timeout(KEEP_ALIVE, self.generation.next()).await {
                Ok(heard) => self.hear(heard),
                Err(_) => return Some(Ok(Bytes::from_static(COMMENT))),
            };
            // What has come meanwhile goes into the same write.
            if let Err(error) = heard.and_then(|()| self.hear_ready()) {
                return Some(Err(error));
            }
        }
        let bytes = self.frames.take();
        (!bytes.is_empty()).then_some(Ok(bytes))
    }

    fn hear_ready(&mut self) -> io::Result<()> {
        while self.stage == Stage::Running {
            let Some(heard) = self.generation.ready() else { break };
            self.hear(Some(heard))?;
        }
        Ok(())
    }

    fn hear(&mut self, heard: Option<Result<(usize, Update), Broken>>) -> io::Result<()> {
        match heard {
            Some(Ok((number, update))) => {
                if self.chunks.update(number, update, &mut self.frames) == Flow::Enough {
                    self.generation.enough(number);
                }
                return Ok(());
            }
            Some(Err(Broken::Cut)) => return Err(io::Error::other("the client does not read")),
            Some(Err(Broken::Failed(error))) => self.chunks.fail(&error, &mut self.frames),
            None => self.chunks.close(&mut self.frames),
        }
        self.frames.0.extend_from_slice(C::END);
        self.stage = Stage::Ended;
        Ok(())
    }
}
