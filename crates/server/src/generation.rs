//! The bridge to the engine's thread: requests go over, and what becomes of them comes back through
//! a bounded buffer. The engine never waits for a client.

use crate::app::App;
use crate::http::caller::{Caller, Connection};
use crate::http::error::ApiError;
use crate::metrics::Meter;
use engine::{Event, FinishReason, Request, SubmitError, Ticket, Update};
use std::ops::ControlFlow;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// One or more requests that run side by side for one client. Dropping it cancels those that have
/// not ended.
pub(crate) struct Generation {
    events: Receiver<(usize, Event)>,
    /// By number; `None` for a request that has ended.
    tickets: Vec<Option<Ticket>>,
    /// Those that were ended because their answer was complete.
    enough: Vec<bool>,
    caller: Caller,
}

/// A generation that gives nothing further.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Broken {
    /// It failed, and the client can be told.
    Failed(ApiError),
    /// The client reads too slowly, and has been cut off.
    Cut,
}

impl Broken {
    /// What the client is told, if it listens.
    pub(crate) fn error(&self) -> ApiError {
        match self {
            Broken::Failed(error) => error.clone(),
            Broken::Cut => ApiError::slow_reader(),
        }
    }
}

impl Generation {
    /// Submits `requests`. Either all are taken or none.
    ///
    /// # Errors
    /// The engine's refusal of one of them.
    pub(crate) fn start(
        app: &App,
        requests: Vec<Request>,
        caller: Caller,
    ) -> Result<Generation, SubmitError> {
        caller.asked(&requests);
        let count = requests.len();
        let (send, events) = channel(app.config.limits.buffered_updates.saturating_mul(count));
        let submit = |(number, request)| {
            let sink = Sink {
                number,
                send: send.clone(),
                meter: app.metrics.meter(),
                connection: caller.connection().clone(),
            };
            app.engine.submit(request, sink.into_fn()).map(Some)
        };
        let tickets =
            requests.into_iter().enumerate().map(submit).collect::<Result<Vec<_>, _>>()?;
        Ok(Generation { events, tickets, enough: vec![false; count], caller })
    }

    /// The next update, and the number of the request that it belongs to; `None` when all have
    /// ended. Cancelling the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Update), Broken>> {
        if self.tickets.iter().all(Option::is_none) {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.heard(event))
    }

    /// As [`Generation::next`], if it is there already.
    pub(crate) fn ready(&mut self) -> Option<Result<(usize, Update), Broken>> {
        let event = self.events.try_recv().ok()?;
        Some(self.heard(Some(event)))
    }

    fn heard(&mut self, event: Option<(usize, Event)>) -> Result<(usize, Update), Broken> {
        // A sink that is gone before its last event has found the buffer full.
        let Some((number, event)) = event else { return Err(self.fail(Broken::Cut)) };
        let update = match event {
            Ok(update) => update,
            Err(lost) => return Err(self.fail(Broken::Failed(ApiError::lost(&lost)))),
        };
        let Some(finished) = &update.finished else { return Ok((number, update)) };
        self.tickets[number] = None;
        self.caller.finished(number, finished);
        match finished.reason {
            FinishReason::Stop | FinishReason::Length => Ok((number, update)),
            FinishReason::Cancelled if self.enough[number] => Ok((number, update)),
            FinishReason::Cancelled => Err(self.fail(Broken::Failed(ApiError::shutting_down()))),
            FinishReason::TimedOut => Err(self.fail(Broken::Failed(ApiError::timed_out()))),
            FinishReason::Stuck => Err(self.fail(Broken::Failed(ApiError::stuck()))),
        }
    }

    /// Ends one request early, because its answer is complete. Its last update follows.
    pub(crate) fn enough(&mut self, number: usize) {
        self.enough[number] = true;
        if let Some(ticket) = &self.tickets[number] {
            ticket.cancel();
        }
    }

    fn fail(&mut self, broken: Broken) -> Broken {
        self.tickets.iter_mut().for_each(|ticket| *ticket = None);
        self.caller.failed(&broken.error());
        broken
    }
}

/// Where the engine's thread puts the events of one request.
struct Sink {
    number: usize,
    send: Sender<(usize, Event)>,
    meter: Meter,
    connection: Connection,
}

impl Sink {
    fn into_fn(mut self) -> impl FnMut(Event) -> ControlFlow<()> + Send + 'static {
        move |event| self.take(event)
    }

    /// Hands an event over. Never waits: a buffer that is full belongs to a client that does not
    /// read, and that client is cut off.
    fn take(&mut self, event: Event) -> ControlFlow<()> {
        if let Ok(update) = &event {
            self.meter.update(update);
        }
        match self.send.try_send((self.number, event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(TrySendError::Closed(_)) => ControlFlow::Break(()),
            Err(TrySendError::Full(_)) => {
                self.connection.cut();
                ControlFlow::Break(())
            }
        }
    }
}
