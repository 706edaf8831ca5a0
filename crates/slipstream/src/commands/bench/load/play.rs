//! Plays a load on an engine and writes down what happened, and when.

use super::items::Item;
use crate::failure::Failure;
use device::{Device, Waits};
use engine::{Counters, Engine, Finished, Meter, RequestId, Speculation, Tally, Update};
use std::collections::HashMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

/// When requests are submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pacing {
    /// So many are open: as one ends the next is submitted.
    Closed(usize),
    /// All at once.
    Offline,
    /// When they arrive, so many times as fast as they say.
    Arrivals(f64),
}

impl fmt::Display for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pacing::Closed(open) => write!(f, "concurrency {open}"),
            Pacing::Offline => f.write_str("offline"),
            Pacing::Arrivals(speed) if *speed == 1.0 => f.write_str("trace"),
            Pacing::Arrivals(speed) => write!(f, "trace at {speed} ×"),
        }
    }
}

/// What is played.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) items: &'a [Item],
    pub(super) pacing: Pacing,
    /// The model's end ids.
    pub(super) ends: &'a [u32],
    pub(super) speculation: Speculation,
}

/// What one play of a load did. Times are from its start.
#[derive(Debug)]
pub(super) struct Played {
    /// Until the last request ended.
    pub(super) wall: Duration,
    /// How long of it no request was open.
    pub(super) asleep: Duration,
    /// In the order of the items.
    pub(super) answers: Vec<Answer>,
    /// Time between two landed steps, for all that followed another without a pause.
    pub(super) cycles: Vec<Duration>,
    /// After each turn.
    pub(super) moments: Vec<Moment>,
    pub(super) spent: Spent,
}

/// One request's course.
#[derive(Debug)]
pub(super) struct Answer {
    /// When it came: it may have been submitted later, while a turn was under way.
    pub(super) arrived: Duration,
    /// Arrival to the launch of its first step.
    pub(super) queued: Duration,
    /// When its first token came; `None` when it has none.
    pub(super) first: Option<Duration>,
    pub(super) ended: Duration,
    /// Updates with tokens after the first one: time since the one before, and tokens.
    pub(super) gaps: Vec<(Duration, usize)>,
    pub(super) ids: Vec<u32>,
    /// Set when it has ended.
    finished: Option<Finished>,
}

impl Answer {
    /// How the request ended. A load is played until all have.
    pub(super) fn finished(&self) -> &Finished {
        self.finished.as_ref().expect("a load is played until every request has ended")
    }
}

/// The engine's state after a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) at: Duration,
    pub(super) waiting: usize,
    pub(super) running: usize,
    /// KV pages that requests hold, and all.
    pub(super) held: usize,
    pub(super) pages: usize,
}

/// What engine and device count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) counters: Counters,
    pub(super) tally: Tally,
    /// Host waits for results, and for the fence.
    pub(super) land: Waits,
    pub(super) fence: Waits,
    /// Time in which the card worked, where it is timed.
    pub(super) card: Option<Duration>,
}

impl Spent {
    fn read(engine: &Engine, meter: Option<&Meter>) -> Spent {
        let usage = engine.device().usage();
        Spent {
            counters: engine.counters(),
            tally: engine.tally(),
            land: usage.results,
            fence: usage.fence,
            card: meter.map(|read| read()),
        }
    }

    /// What was spent since `earlier`.
    fn since(self, earlier: Spent) -> Spent {
        let waits = |now: Waits, then: Waits| Waits {
            calls: now.calls - then.calls,
            blocked: now.blocked - then.blocked,
            time: now.time - then.time,
        };
        let (now, then) = (self.tally, earlier.tally);
        Spent {
            counters: self.counters - earlier.counters,
            tally: Tally {
                admitted_tokens: now.admitted_tokens - then.admitted_tokens,
                cached_tokens: now.cached_tokens - then.cached_tokens,
                retractions: now.retractions - then.retractions,
                recomputations: now.recomputations - then.recomputations,
            },
            land: waits(self.land, earlier.land),
            fence: waits(self.fence, earlier.fence),
            card: self.card.zip(earlier.card).map(|(now, then)| now - then),
        }
    }
}

/// Plays `load` from an idle engine without cached prefixes to an idle one. `submitted` hears of
/// each request's id before any step computes it; `meter` is of the card, if there is one that is timed.
///
/// # Errors
/// A request that the engine refuses, or a lost device.
pub(super) fn play(
    (engine, meter): (&mut Engine, Option<&Meter>),
    load: Load<'_>,
    submitted: &mut dyn FnMut(RequestId, usize),
) -> Result<Played, Failure> {
    engine.forget_prefixes();
    let before = Spent::read(engine, meter);
    let mut player = Player::new(load);
    loop {
        player.submit(engine, submitted)?;
        if player.open.is_empty() {
            let Some(pause) = player.pause() else { break };
            player.sleep(pause);
            continue;
        }
        let steps = engine.counters().steps;
        let updates = engine.turn()?;
        let now = player.start.elapsed();
        player.stepped(engine, now, engine.counters().steps > steps);
        updates.into_iter().for_each(|update| player.take(update, now));
    }
    let spent = Spent::read(engine, meter).since(before);
    let played = player.end(spent);
    // The step behind the last one is still in flight.
    while !engine.is_idle() {
        engine.turn()?;
    }
    Ok(played)
}

/// A play under way.
struct Player<'a> {
    load: Load<'a>,
    start: Instant,
    asleep: Duration,
    /// The first item that was not submitted.
    next: usize,
    open: HashMap<RequestId, usize>,
    answers: Vec<Answer>,
    /// When the last update with tokens of each item came.
    latest: Vec<Duration>,
    cycles: Vec<Duration>,
    /// When the last step landed, unless a pause followed.
    landed: Option<Duration>,
    moments: Vec<Moment>,
}

impl<'a> Player<'a> {
    fn new(load: Load<'a>) -> Player<'a> {
        Player {
            load,
            start: Instant::now(),
            asleep: Duration::ZERO,
            next: 0,
            open: HashMap::new(),
            answers: Vec::with_capacity(load.items.len()),
            latest: Vec::with_capacity(load.items.len()),
            cycles: Vec::new(),
            landed: None,
            moments: Vec::new(),
        }
    }

    /// When the next item arrives; `None` when all have.
    fn arrival(&self, now: Duration) -> Option<Duration> {
        let item = self.load.items.get(self.next)?;
        match self.load.pacing {
            Pacing::Closed(most) => (self.open.len() < most).then_some(now),
            Pacing::Offline => Some(now),
            Pacing::Arrivals(speed) => Some(item.at.div_f64(speed)),
        }
    }

    /// Submits what has arrived.
    fn submit(
        &mut self,
        engine: &mut Engine,
        submitted: &mut dyn FnMut(RequestId, usize),
    ) -> Result<(), Failure> {
        let mut now = self.start.elapsed();
        while let Some(arrived) = self.arrival(now).filter(|&arrived| arrived <= now) {
            let (i, Load { items, ends, speculation, .. }) = (self.next, self.load);
            let id = engine
                .submit(items[i].request(ends, speculation))
                .map_err(|refused| Failure::input(format!("request {i}: {refused}")))?;
            submitted(id, i);
            self.open.insert(id, i);
            self.next += 1;
            self.latest.push(arrived);
            self.answers.push(Answer {
                arrived,
                queued: now - arrived,
                first: None,
                ended: now,
                gaps: Vec::new(),
                ids: Vec::new(),
                finished: None,
            });
            now = self.start.elapsed();
        }
        Ok(())
    }

    /// How long until the next request arrives; `None` when all have.
    fn pause(&self) -> Option<Duration> {
        let now = self.start.elapsed();
        self.arrival(now).map(|arrival| arrival.saturating_sub(now))
    }

    fn sleep(&mut self, pause: Duration) {
        let began = Instant::now();
        thread::sleep(pause);
        self.asleep += began.elapsed();
        self.landed = None;
    }

    /// Notes the engine's state after a turn, in which a step `landed` or not.
    fn stepped(&mut self, engine: &Engine, now: Duration, landed: bool) {
        if landed {
            self.cycles.extend(self.landed.map(|before| now - before));
            self.landed = Some(now);
        }
        let ((waiting, running), kv) = (engine.load(), engine.kv_pages());
        let (held, pages) = (kv.held, kv.total);
        self.moments.push(Moment { at: now, waiting, running, held, pages });
    }

    fn take(&mut self, update: Update, now: Duration) {
        let Some(&i) = self.open.get(&update.id) else { return };
        let answer = &mut self.answers[i];
        if !update.tokens.is_empty() {
            let before = std::mem::replace(&mut self.latest[i], now);
            match answer.first {
                None => answer.first = Some(now),
                Some(_) => answer.gaps.push((now - before, update.tokens.len())),
            }
            answer.ids.extend(update.tokens.iter().map(|token| token.id));
        }
        if let Some(end) = update.finished {
            answer.ended = now;
            answer.queued += end.stats.queued;
            answer.finished = Some(end);
            self.open.remove(&update.id);
        }
    }

    fn end(self, spent: Spent) -> Played {
        let Player { answers, cycles, moments, asleep, .. } = self;
        let wall = answers.iter().map(|answer| answer.ended).max().unwrap_or_default();
        Played { wall, asleep, answers, cycles, moments, spent }
    }
}

impl Played {
    /// The outputs, in the order of the items.
    pub(super) fn outputs(&self) -> Vec<Vec<u32>> {
        self.answers.iter().map(|answer| answer.ids.clone()).collect()
    }
}
