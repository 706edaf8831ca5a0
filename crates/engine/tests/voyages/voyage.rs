//! One voyage: an engine on the simulated device, requests that come and go, and what became of
//! them.

use crate::dice::{Dice, Log};
use crate::serial::{Serial, text};
use crate::toy;
use device::{ReadDone, Sim};
use engine::{
    Discipline, Engine, FinishReason, Request, RequestId, Speculation, Update, Vocabulary,
};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// What orders lanes and holds memory: sound, or a mutant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rig {
    pub(crate) read_done: ReadDone,
    pub(crate) discipline: Discipline,
}

/// A request, what happens to it, and what it got.
pub(crate) struct Passenger {
    request: Request,
    expected: Serial,
    arrives: usize,
    cancels: Vec<usize>,
    toggles: Vec<(usize, Speculation)>,
    id: Option<RequestId>,
    got: Serial,
    /// The turn of its first token.
    first: Option<usize>,
    /// Tokens of its last update, and how many of them were drafts.
    last: (usize, usize),
    ends: usize,
}

impl Passenger {
    pub(crate) fn new(
        dice: &mut Dice,
        mut request: Request,
        expected: Serial,
        block: usize,
    ) -> Self {
        let hurried = dice.one_in(6);
        request.limits.timeout = hurried.then(|| Duration::from_micros(dice.roll(30_000) as u64));
        // Some come when the others have gone.
        let arrives = dice.pick(&[0, 0, 0, 0, 60]) + dice.roll(12);
        let mut moments = |one_in: usize, most: usize| -> Vec<usize> {
            let count = if dice.one_in(one_in) { 1 + dice.roll(most) } else { 0 };
            (0..count).map(|_| arrives + dice.roll(30)).collect()
        };
        let (cancels, toggles) = (moments(5, 2), moments(3, 3));
        let toggles = toggles.into_iter().map(|turn| (turn, speculation(dice, block))).collect();
        Passenger {
            request,
            expected,
            arrives,
            cancels,
            toggles,
            id: None,
            got: Serial::default(),
            first: None,
            last: (0, 0),
            ends: 0,
        }
    }

    /// What its owner does before a turn.
    fn act(&self, engine: &mut Engine<Sim>, turn: usize, log: &mut Log) -> Result<(), String> {
        let Some(id) = self.id else { return Ok(()) };
        for (_, to) in self.toggles.iter().filter(|(at, _)| *at == turn) {
            engine.set_speculation(id, *to).map_err(|e| e.to_string())?;
            log.note("changes of speculation", u64::from(self.ends == 0));
        }
        self.cancels.iter().filter(|at| **at == turn).for_each(|_| engine.cancel(id));
        Ok(())
    }

    /// Notes what an update brought.
    fn take(&mut self, update: Update, turn: usize, log: &mut Log) -> Result<(), String> {
        if self.ends > 0 {
            return Err(format!("{:?} goes on after its end", update.id));
        }
        if !update.tokens.is_empty() {
            self.first.get_or_insert(turn);
        }
        let drafted = update.tokens.iter().filter(|token| token.drafted).count();
        log.note("drafts accepted", drafted as u64);
        let kept = update.tokens.len();
        self.got.prompt.extend(update.prompt);
        for token in update.tokens {
            self.got.tokens.push(token.id);
            self.got.logprobs.extend(token.logprobs);
        }
        update.text.iter().for_each(|segment| self.got.text.push_str(&segment.text));
        let Some(end) = update.finished else { return Ok(()) };
        self.ends += 1;
        self.got.reason = Some(end.reason);
        let accepted: usize = end.stats.accepted.iter().enumerate().map(|(k, n)| k * n).sum();
        log.note("drafts refused", (end.stats.drafted - accepted) as u64);
        self.last = (kept, drafted);
        match end.stats.output_tokens == self.got.tokens.len() {
            true => Ok(()),
            false => Err(format!("{} tokens counted of {:?}", end.stats.output_tokens, self.got)),
        }
    }

    /// Whether it got what it must, and notes how it ended.
    fn judge(&self, vocabulary: &dyn Vocabulary, log: &mut Log) -> Result<(), String> {
        let (got, expected) = (&self.got, &self.expected);
        let pieces = |tokens: &[u32]| {
            let pieces = tokens.iter().flat_map(|&token| vocabulary.piece(token));
            text(&pieces.copied().collect::<Vec<u8>>())
        };
        let cut_short = match got.reason {
            Some(FinishReason::Cancelled) => !self.cancels.is_empty(),
            Some(FinishReason::TimedOut) => self.request.limits.timeout.is_some(),
            _ => false,
        };
        let right = if cut_short {
            let tokens = got.tokens.len();
            let whole = got.tokens.is_empty() || got.prompt == expected.prompt;
            expected.tokens.starts_with(&got.tokens)
                && whole
                && expected.prompt.starts_with(&got.prompt)
                && got.text == pieces(&got.tokens)
                && got.logprobs == expected.logprobs[..tokens.min(expected.logprobs.len())]
        } else {
            got == expected
        };
        if !right || self.ends != 1 {
            return Err(format!("{} ends, got {got:?}, not {expected:?}", self.ends));
        }
        log.note("log-probabilities", got.logprobs.len() as u64);
        log.note("prompt tokens reported", got.prompt.len() as u64);
        log.note("prompts alone", u64::from(self.request.limits.max_tokens == Some(0)));
        // Tokens before the stop in the block that brought it are drafts. A stop id is not kept.
        let (kept, drafted) = self.last;
        let by_string = got.text != pieces(&got.tokens);
        let how = match got.reason {
            Some(FinishReason::Stuck) => "texts without a way on",
            Some(FinishReason::Stop)
                if !by_string && toy::end(&self.request, &got.tokens).is_some() =>
            {
                "texts that were whole"
            }
            Some(FinishReason::Stop) if by_string && kept > 1 => "stop strings inside a block",
            Some(FinishReason::Stop) if !by_string && kept > 0 && drafted == kept => {
                "stop ids inside a block"
            }
            Some(FinishReason::Stop) => "stops at the first token of a block",
            Some(FinishReason::Cancelled) if self.first.is_none() => "cancels before a token",
            Some(FinishReason::Cancelled) => "cancels while decoding",
            Some(FinishReason::TimedOut) if self.first.is_none() => "time-outs before a token",
            Some(FinishReason::TimedOut) => "time-outs while decoding",
            _ => "ends by length",
        };
        log.note(how, 1);
        log.note("constrained texts", u64::from(self.request.constraint.is_some()));
        Ok(())
    }
}

/// Any way to draft with blocks of up to `block` tokens.
pub(crate) fn speculation(dice: &mut Dice, block: usize) -> Speculation {
    match dice.roll(4) {
        0 => Speculation::Off,
        1 => Speculation::Width(1 + dice.roll(block)),
        _ => Speculation::Auto,
    }
}

/// Sails `engine` until all `passengers` have ended. Errs with what went wrong first.
pub(crate) fn sail(
    sim: &Sim,
    mut engine: Engine<Sim>,
    mut passengers: Vec<Passenger>,
    vocabulary: &dyn Vocabulary,
) -> Result<Log, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut log = Log::default();
        travel(&mut engine, &mut passengers, &mut log)?;
        for passenger in &passengers {
            passenger.judge(vocabulary, &mut log)?;
        }
        overtakings(&passengers, &mut log);
        let tally = engine.tally();
        log.note("tokens from the prefix cache", tally.cached_tokens);
        log.note("retractions", tally.retractions);
        log.note("requests started anew to draft", tally.recomputations);
        drop(engine);
        sim.drain();
        match sim.races().first() {
            None => Ok(log),
            Some(race) => Err(race.to_string()),
        }
    }));
    outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(said.unwrap_or_else(|| "a panic".into()))
    })
}

fn travel(
    engine: &mut Engine<Sim>,
    passengers: &mut [Passenger],
    log: &mut Log,
) -> Result<(), String> {
    let mut seats: HashMap<RequestId, usize> = HashMap::new();
    let mut busy = false;
    for turn in 0..5000 {
        for (seat, passenger) in passengers.iter_mut().enumerate() {
            if passenger.arrives == turn {
                let id = engine.submit(passenger.request.clone()).map_err(|e| e.to_string())?;
                busy = true;
                (passenger.id, _) = (Some(id), seats.insert(id, seat));
            }
            passenger.act(engine, turn, log)?;
        }
        for update in engine.turn().map_err(|e| e.to_string())? {
            passengers[seats[&update.id]].take(update, turn, log)?;
        }
        if engine.is_idle() {
            log.note("idle moments", u64::from(std::mem::take(&mut busy)));
            if engine.free_and_total().iter().any(|(free, total)| free != total) {
                return Err(format!("an idle engine holds {:?}", engine.free_and_total()));
            }
            if seats.len() == passengers.len() {
                return Ok(());
            }
        }
    }
    Err("the voyage does not end".into())
}

/// Notes who was served before another that had come earlier and counts for less.
fn overtakings(passengers: &[Passenger], log: &mut Log) {
    for late in passengers {
        let overtaken = passengers.iter().filter(|early| {
            early.arrives < late.arrives
                && early.request.priority < late.request.priority
                && late.first.is_some_and(|turn| early.first.is_some_and(|first| turn < first))
        });
        log.note("overtakings by priority", overtaken.count() as u64);
    }
}
