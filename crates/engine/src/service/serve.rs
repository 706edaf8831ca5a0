//! The engine's thread: takes orders, takes turns, tells the sinks, and reports what goes wrong.

use super::mailbox::{Mailbox, Orders, Then};
use super::{Event, Sink};
use crate::{Engine, EngineLost, RequestId};
use device::{HostDevice, panic_message};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sinks of the requests that have not ended and are still listened to.
type Sinks = BTreeMap<RequestId, Sink>;

/// Serves until the mailbox is closed and nothing is open, or until the engine is lost.
pub(super) fn serve<D: HostDevice>(
    mut engine: Engine<D>,
    mailbox: &Mailbox,
) -> Result<Engine<D>, EngineLost> {
    let mut sinks = Sinks::new();
    let served = catch_unwind(AssertUnwindSafe(|| turns(&mut engine, mailbox, &mut sinks)));
    let lost = match served {
        Ok(Ok(())) => return Ok(engine),
        Ok(Err(lost)) => lost,
        Err(payload) => EngineLost::Panicked(panic_message(&*payload)),
    };
    let unseen = mailbox.fail(&lost);
    for sink in sinks.into_values().chain(unseen) {
        last(sink, Err(lost.clone()));
    }
    // What a panic left half-done may panic again, and is of no use to anybody.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
    Err(lost)
}

/// Turns, one after another, and the orders between them.
fn turns<D: HostDevice>(
    engine: &mut Engine<D>,
    mailbox: &Mailbox,
    sinks: &mut Sinks,
) -> Result<(), EngineLost> {
    loop {
        let orders = if engine.is_idle() {
            let Some(orders) = mailbox.wait() else { return Ok(()) };
            orders
        } else {
            mailbox.take()
        };
        obey(engine, orders, sinks);
        if engine.is_idle() {
            continue;
        }
        let updates = engine.turn()?;
        let ended = updates.iter().filter(|update| update.finished.is_some()).count();
        mailbox.settle(ended, engine.snapshot());
        for update in updates {
            let id = update.id;
            if update.finished.is_some() {
                // Out of the list first: a sink that panics over its last event gets no other.
                if let Some(mut sink) = sinks.remove(&id) {
                    let _ = sink(Ok(update));
                }
            } else if sinks.get_mut(&id).is_some_and(|sink| sink(Ok(update)).is_break()) {
                sinks.remove(&id);
                engine.cancel(id);
            }
        }
    }
}

fn obey<D: HostDevice>(engine: &mut Engine<D>, orders: Orders, sinks: &mut Sinks) {
    let Orders { submissions, speculation, cancelled, then } = orders;
    for submission in submissions {
        sinks.insert(submission.id, submission.sink);
        engine
            .submit_as(submission.id, submission.request, submission.submitted)
            .expect("the handle checked the request and counted the open ones");
    }
    for (id, to) in speculation {
        engine.set_speculation(id, to).expect("the ticket checked the width");
    }
    cancelled.into_iter().for_each(|id| engine.cancel(id));
    if then == Then::CancelAll {
        sinks.keys().for_each(|&id| engine.cancel(id));
    }
}

/// Hands a sink its last event. One that panics over it does not cost the others theirs.
fn last(mut sink: Sink, event: Event) {
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let _ = sink(event);
    }));
}
