//! An engine as a service: on a thread of its own, fed from any thread, its failures reported to
//! everybody who waits. This is the face for servers; it knows nothing of them.
//!
//! ```text
//! callers     Handle::submit ─┐ mailbox (bounded)             ┌─> sink of request A
//!             Ticket::cancel ─┴────────> thread: turn, turn … ┴─> sink of request B
//! ```
//!
//! - [`Service::start`] moves an engine to its thread. The service owns the thread: dropping it
//!   ends what is open and waits for the thread.
//! - [`Handle`], clonable, submits: [`Handle::submit`] with a sink, [`Handle::stream`] with a
//!   blocking iterator. What can be refused is refused there, on the caller's thread, by the name
//!   of its field. [`Handle::snapshot`] reads what the engine holds and has done.
//! - [`Ticket`] is a submitted request in its owner's hand: [`Ticket::set_speculation`],
//!   [`Ticket::cancel`]. Dropping it cancels.
//! - [`Handle::drain`] takes no further requests and lets the open ones finish;
//!   [`Handle::shutdown`] ends them. [`Service::join`] waits for either and gives the engine back.
//!
//! # Sinks
//!
//! A sink is called on the engine's thread with each [`Event`] of its request, in order. It must
//! not block, since every request waits meanwhile: it hands the event over (to a channel, say) and
//! returns. [`ControlFlow::Break`] says that nobody listens any more: the request is cancelled and
//! the sink is not called again. Otherwise a sink sees exactly one terminal event, its last: an
//! update that is marked finished, or an error.
//!
//! # Failure
//!
//! A lost device and a panic, wherever it happens (target, drafter, scheduler, sink), end the
//! service: every open request gets the error as its terminal event, later submissions are refused
//! with it, and [`Service::join`] returns it. A program that returns that error from `main` exits
//! non-zero.
//!
//! # Waiting
//!
//! With nothing to do the thread sleeps, and whatever is asked of it wakes it at once. While steps
//! run it looks into the mailbox between turns: a cancellation or a deadline takes effect within
//! one step.

mod mailbox;
mod serve;
mod stream;

pub use stream::Stream;

use crate::recent::Recent;
use crate::{
    Clock, Engine, EngineLost, Info, Reject, Request, RequestError, RequestId, RequestIds,
    Snapshot, Speculation, StepRecord, Update,
};
use device::{HostDevice, Threads};
use mailbox::{Mailbox, Submission};
use schedule::Bounds;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What a sink is told: an update, or the error that ended the service and the request with it.
pub type Event = Result<Update, EngineLost>;

/// Where a request's events go.
type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// An engine on its own thread, and that thread's owner.
pub struct Service<D: HostDevice = Threads> {
    handle: Handle,
    /// `None` once joined.
    thread: Option<JoinHandle<Result<Engine<D>, EngineLost>>>,
}

/// Submits requests to a [`Service`]. Clones are alike, and outlive it: they are refused then.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// What handles and tickets share with the engine's thread, and what they need to know of it.
struct Shared {
    mailbox: Mailbox,
    bounds: Bounds,
    info: Info,
    clock: Clock,
    recent: Recent,
    ids: RequestIds,
}

/// A submitted request. Dropping it cancels the request, if it has not ended.
#[must_use = "dropping a ticket cancels its request"]
pub struct Ticket {
    id: RequestId,
    shared: Arc<Shared>,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It could never run, or too many are open.
    #[error(transparent)]
    Rejected(#[from] Reject),
    /// The service drains, shuts down or has ended.
    #[error("the engine is shutting down and takes no further requests")]
    Closed,
    /// The engine failed.
    #[error(transparent)]
    Lost(#[from] EngineLost),
}

impl<D: HostDevice> Service<D> {
    /// Moves `engine` to a thread of its own.
    ///
    /// # Panics
    /// When the engine is not idle: nobody would hear of its requests. When the operating system
    /// cannot start a thread.
    pub fn start(engine: Engine<D>) -> Service<D> {
        assert!(engine.is_idle(), "expected an idle engine to serve with");
        let shared = Arc::new(Shared {
            mailbox: Mailbox::new(engine.scheduler.limit(), engine.snapshot()),
            bounds: engine.scheduler.bounds().clone(),
            info: engine.info.clone(),
            clock: engine.clock.clone(),
            recent: engine.recent.clone(),
            ids: engine.ids.clone(),
        });
        let handle = Handle { shared: shared.clone() };
        let thread = thread::Builder::new()
            .name("engine".into())
            .spawn(move || serve::serve(engine, &shared.mailbox))
            .expect("the operating system can start a thread");
        Service { handle, thread: Some(thread) }
    }

    /// Submits to this service, and steers it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the service has ended, which [`Handle::drain`], [`Handle::shutdown`] or a failure
    /// brings about, and gives the idle engine back.
    ///
    /// # Errors
    /// Why the engine was lost.
    pub fn join(mut self) -> Result<Engine<D>, EngineLost> {
        let thread = self.thread.take().expect("only `join` takes the thread");
        thread.join().expect("the engine's thread catches every panic")
    }
}

impl<D: HostDevice> Drop for Service<D> {
    fn drop(&mut self) {
        self.handle.shutdown();
        // A sink that owns its own service cannot wait for the thread that it runs on.
        let other = |thread: &JoinHandle<_>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(other) {
            // Every open request has been told of a failure.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Submits a request; its events go to `sink`, on the engine's thread, until its last. See
    /// [the module](crate::service) for what a sink may do. Deadlines count from here.
    ///
    /// # Errors
    /// A request that could never run, by the name of its field; one too many; or a service that
    /// ends, or has failed. The sink is then never called.
    pub fn submit(
        &self,
        request: Request,
        sink: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Ticket, SubmitError> {
        let Shared { mailbox, bounds, clock, ids, .. } = &*self.shared;
        request.check(bounds).map_err(Reject::from)?;
        let (id, submitted, sink) = (ids.next(), clock.now(), Box::new(sink));
        mailbox.post(Submission { id, request, submitted, sink })?;
        Ok(Ticket { id, shared: self.shared.clone() })
    }

    /// Submits a request whose events are read by blocking.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn stream(&self, request: Request) -> Result<Stream, SubmitError> {
        Stream::open(self, request)
    }

    /// Takes no further requests; the service ends when the open ones have.
    pub fn drain(&self) {
        self.shared.mailbox.drain();
    }

    /// Takes no further requests and cancels the open ones; the service ends within a step.
    pub fn shutdown(&self) {
        self.shared.mailbox.shutdown();
    }

    /// What the engine held and had done after its last turn; those who have come since wait. Costs
    /// a lock and a copy.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.mailbox.snapshot()
    }

    /// The newest steps that landed, oldest first. Costs a lock and a copy, and the engine nothing
    /// that it does not do anyway.
    pub fn recent(&self) -> Vec<StepRecord> {
        self.shared.recent.steps()
    }

    /// What time it is by the clock that [`Handle::recent`] goes by.
    pub fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// The engine's effective settings.
    pub fn info(&self) -> &Info {
        &self.shared.info
    }
}

impl Ticket {
    /// The request, as its updates name it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the request early; its terminal event carries [`crate::FinishReason::Cancelled`] unless
    /// it ends by itself first.
    pub fn cancel(&self) {
        self.shared.mailbox.cancel(self.id);
    }

    /// Changes whether and how wide the request drafts, from the next step on. Its tokens stay the
    /// same. Without effect once it has ended.
    ///
    /// # Errors
    /// A width that the drafter cannot do.
    pub fn set_speculation(&self, to: Speculation) -> Result<(), RequestError> {
        to.check(&self.shared.bounds)?;
        self.shared.mailbox.set_speculation(self.id, to);
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
