//! A request's events as a blocking iterator, for programs without an executor.

use super::{Event, Handle, SubmitError, Ticket};
use crate::{Collector, EngineLost, Output, Request};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};

/// The events of one request, in order; the last is terminal. Dropping it cancels the request.
///
/// Events that are not read yet are kept: at most one a step of the request.
pub struct Stream {
    ticket: Ticket,
    events: Receiver<Event>,
}

impl Stream {
    pub(super) fn open(handle: &Handle, request: Request) -> Result<Stream, SubmitError> {
        let (send, events) = channel();
        let ticket = handle.submit(request, move |event| match send.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })?;
        Ok(Stream { ticket, events })
    }

    /// The request in its owner's hand.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Waits for the end and puts the rest together.
    ///
    /// # Errors
    /// The engine was lost meanwhile.
    ///
    /// # Panics
    /// When the terminal event was read before.
    pub fn output(self) -> Result<Output, EngineLost> {
        let mut collector = Collector::default();
        for event in self {
            if let Some(output) = collector.add(event?) {
                return Ok(output);
            }
        }
        panic!("expected a stream whose terminal event had not been read")
    }
}

impl Iterator for Stream {
    type Item = Event;

    /// Blocks until there is an event; `None` after the terminal one.
    fn next(&mut self) -> Option<Event> {
        // The sink, and the sender with it, is gone after its last event.
        self.events.recv().ok()
    }
}
