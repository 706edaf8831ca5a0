//! One voyage: a random engine, random requests, and what became of them.

use crate::script::{Quality, ScriptDrafter, ScriptTarget, Silent, VOCAB, next};
use device::{Sim, SimOptions};
use engine::{
    Engine, EngineOptions, FinishReason, Limits, Parts, Request, RequestId, Sampling, Speculation,
    Stops,
};
use std::collections::HashMap;
use std::sync::Arc;

const CONTEXT: usize = 64;

/// How a voyage ended.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// What went wrong first.
    pub(crate) problem: Option<String>,
    /// Accesses that nothing orders.
    pub(crate) races: Vec<String>,
    pub(crate) accepted: u64,
    pub(crate) cancelled: u64,
    pub(crate) cached: u64,
    pub(crate) retracted: u64,
}

/// A small generator (SplitMix64, Steele et al. 2014).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }
}

struct Passenger {
    request: Request,
    arrives: usize,
    cancelled: Option<usize>,
    id: Option<RequestId>,
    tokens: Vec<u32>,
    ends: Vec<FinishReason>,
}

impl Passenger {
    fn draw(dice: &mut Dice, block: usize) -> Passenger {
        // Few beginnings, so that prefixes are shared.
        let family = dice.roll(3) as u32;
        let len = 1 + dice.roll(40);
        let prompt = (0..len as u32).map(|i| (family * 7 + i * (1 + family)) % VOCAB).collect();
        let speculation = match dice.roll(4) {
            0 => Speculation::Off,
            1 => Speculation::Width(1 + dice.roll(block)),
            _ => Speculation::Auto,
        };
        let stop = (dice.roll(3) == 0).then(|| dice.roll(VOCAB as usize) as u32);
        let request = Request {
            prompt,
            sampling: Sampling { seed: dice.roll(3) as u64, ..Sampling::default() },
            stops: Stops { ids: stop.into_iter().collect(), strings: vec![] },
            limits: Limits { max_tokens: Some(1 + dice.roll(24)), ..Limits::default() },
            speculation,
            priority: dice.roll(2) as i32,
            logprobs: None,
        };
        let cancelled = (dice.roll(5) == 0).then(|| dice.roll(40));
        let arrives = dice.roll(12);
        Passenger { request, arrives, cancelled, id: None, tokens: vec![], ends: vec![] }
    }

    /// The serial, uncached, undrafted run.
    fn expected(&self) -> (Vec<u32>, FinishReason) {
        let request = &self.request;
        let cap = request.limits.max_tokens.expect("drawn").min(CONTEXT - request.prompt.len());
        let mut all = request.prompt.clone();
        let mut made = Vec::new();
        loop {
            let token = next(all.iter().copied(), request.sampling.seed);
            if request.stops.ids.contains(&token) {
                return (made, FinishReason::Stop);
            }
            all.push(token);
            made.push(token);
            if made.len() == cap {
                return (made, FinishReason::Length);
            }
        }
    }

    fn judge(&self) -> Option<String> {
        let (tokens, reason) = self.expected();
        match self.ends[..] {
            [FinishReason::Cancelled] if tokens.starts_with(&self.tokens) => None,
            [end] if end == reason && tokens == self.tokens => None,
            _ => Some(format!("got {:?} {:?}, not {tokens:?} {reason:?}", self.tokens, self.ends)),
        }
    }
}

fn engine(sim: &Sim, dice: &mut Dice) -> Engine<Sim> {
    let page_size = dice.pick(&[1, 16, 64]);
    let block = dice.pick(&[1, 2, 4, 8]);
    // Room for one whole sequence at least, seldom for all: pages run out.
    let pages = CONTEXT.div_ceil(page_size) * (1 + dice.roll(3)) + dice.roll(3);
    let quality = dice.pick(&[Quality::Perfect, Quality::Random, Quality::Wrong]);
    let options = EngineOptions {
        kv_tokens: None,
        page_size,
        chunk: dice.pick(&[3, 7, 20, 100]).max(block),
        max_running: 1 + dice.roll(4),
        width: block,
        ..EngineOptions::default()
    };
    let slots = pages * page_size;
    let parts = Parts {
        target: Box::new(ScriptTarget::new(slots, page_size)),
        drafter: Box::new(ScriptDrafter::new(slots, page_size, block, quality)),
        vocabulary: Arc::new(Silent),
        context: CONTEXT,
        pages,
        mask_id: None,
    };
    Engine::assemble(sim, parts, options)
}

/// Runs one voyage to its end.
pub(crate) fn sail(options: SimOptions) -> Ending {
    let mut dice = Dice(options.seed);
    let sim = Sim::with(options);
    let mut engine = engine(&sim, &mut dice);
    let block = engine.info().draft.as_ref().map_or(1, |draft| draft.block);
    let mut passengers: Vec<Passenger> =
        (0..2 + dice.roll(5)).map(|_| Passenger::draw(&mut dice, block)).collect();
    let mut ending = Ending::default();
    if let Err(problem) = travel(&mut engine, &mut passengers, &mut ending) {
        ending.problem = Some(problem);
    } else {
        ending.problem = passengers.iter().find_map(Passenger::judge);
    }
    let cancelled = |p: &&Passenger| p.ends == [FinishReason::Cancelled];
    ending.cancelled = passengers.iter().filter(cancelled).count() as u64;
    let tally = engine.tally();
    (ending.cached, ending.retracted) = (tally.cached_tokens, tally.retractions);
    drop(engine);
    sim.drain();
    ending.races = sim.races().iter().map(ToString::to_string).collect();
    ending
}

fn travel(
    engine: &mut Engine<Sim>,
    passengers: &mut [Passenger],
    ending: &mut Ending,
) -> Result<(), String> {
    let mut seats: HashMap<RequestId, usize> = HashMap::new();
    for turn in 0..5000 {
        for (seat, passenger) in passengers.iter_mut().enumerate() {
            if passenger.arrives == turn {
                let id = engine.submit(passenger.request.clone()).map_err(|e| e.to_string())?;
                (passenger.id, _) = (Some(id), seats.insert(id, seat));
            }
            if let (Some(id), Some(at)) = (passenger.id, passenger.cancelled)
                && at == turn
            {
                engine.cancel(id);
            }
        }
        for update in engine.turn().map_err(|e| e.to_string())? {
            let passenger = &mut passengers[seats[&update.id]];
            passenger.tokens.extend(update.tokens.iter().map(|token| token.id));
            ending.accepted += update.tokens.iter().filter(|token| token.drafted).count() as u64;
            passenger.ends.extend(update.finished.map(|end| end.reason));
        }
        if turn > 12 && engine.is_idle() {
            return match engine.free_and_total().iter().all(|(free, total)| free == total) {
                true => Ok(()),
                false => Err(format!("an idle engine holds {:?}", engine.free_and_total())),
            };
        }
    }
    Err("the voyage does not end".into())
}
