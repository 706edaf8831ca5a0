//! A target whose tokens are a function of position and seed, gates that hold it, and short ways
//! to serve it.

use engine::draft::{Drafter, NoDrafter};
use engine::{
    Choosing, Engine, EngineOptions, Features, Limits, Parts, Request, Sampling, Target,
    Vocabulary, WidthPolicy,
};
use kernels::choose::LogProbs;
use model::pass::Pass;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub(crate) const VOCAB: u32 = 26;
const CONTEXT: usize = 256;

/// The token at `position` of every sequence with this seed.
pub(crate) fn token(position: usize, seed: u64) -> u32 {
    ((position as u64 * 7 + seed * 5) % u64::from(VOCAB)) as u32
}

/// The output of `request` when nothing ends it early.
pub(crate) fn expected(request: &Request) -> Vec<u32> {
    let (len, seed) = (request.prompt.len(), request.sampling.seed);
    let most = request.limits.max_tokens.expect("the tests' requests are capped");
    (len..len + most).map(|position| token(position, seed)).collect()
}

/// A request of `max_tokens` tokens that nothing else ends.
pub(crate) fn request(seed: u64, max_tokens: usize) -> Request {
    Request {
        sampling: Sampling { seed, ..Sampling::default() },
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        ..Request::new(vec![seed as u32 % VOCAB; 1 + seed as usize % 9])
    }
}

/// Lets so many pass, and holds the others.
#[derive(Default)]
pub(crate) struct Gate {
    permits: Mutex<u64>,
    changed: Condvar,
}

impl Gate {
    /// Waits for a permit. A test that gives none fails here instead of hanging.
    pub(crate) fn pass(&self) {
        let permits = self.permits.lock().unwrap();
        let (mut permits, wait) = self
            .changed
            .wait_timeout_while(permits, Duration::from_secs(60), |permits| *permits == 0)
            .unwrap();
        assert!(!wait.timed_out(), "nobody opened the gate");
        *permits -= 1;
    }

    pub(crate) fn give(&self, permits: u64) {
        *self.permits.lock().unwrap() += permits;
        self.changed.notify_all();
    }

    /// Holds nobody any more.
    pub(crate) fn open(&self) {
        *self.permits.lock().unwrap() = u64::MAX;
        self.changed.notify_all();
    }
}

/// The target. `before` runs at the beginning of each pass, with its number.
pub(crate) struct Script {
    before: Box<dyn FnMut(usize) + Send>,
    passes: usize,
}

impl Script {
    pub(crate) fn new(before: impl FnMut(usize) + Send + 'static) -> Script {
        Script { before: Box::new(before), passes: 0 }
    }

    /// Held by `gate`.
    pub(crate) fn behind(gate: &Arc<Gate>) -> Script {
        let gate = gate.clone();
        Script::new(move |_| gate.pass())
    }

    pub(crate) fn free() -> Script {
        Script::new(|_| {})
    }
}

impl Target for Script {
    fn forward(&mut self, _: &Pass, _: &[usize]) {
        (self.before)(self.passes);
        self.passes += 1;
    }

    fn features(&self) -> Features<'_> {
        Features::none()
    }

    fn choose(&mut self, rows: &Choosing<'_>, out: &mut [u32]) {
        for (draw, out) in rows.draws.iter().zip(out) {
            *out = token(draw.position as usize, draw.seed);
        }
    }

    fn log_probs(&self, _: usize, _: u32, _: usize) -> LogProbs {
        LogProbs::default()
    }

    fn score(&mut self, rows: &[usize], _: &[u32], _: usize) -> Vec<LogProbs> {
        vec![LogProbs::default(); rows.len()]
    }
}

/// A letter a token.
pub(crate) struct Letters;

impl Vocabulary for Letters {
    fn size(&self) -> usize {
        VOCAB as usize
    }

    fn piece(&self, id: u32) -> &[u8] {
        &b"abcdefghijklmnopqrstuvwxyz"[id as usize..][..1]
    }
}

/// The parts of an engine without a drafter.
pub(crate) fn parts(target: Script) -> Parts {
    Parts {
        target: Box::new(target),
        drafter: Box::new(NoDrafter),
        vocabulary: Arc::new(Letters),
        context: CONTEXT,
        pages: 4 * CONTEXT,
        mask_id: None,
    }
}

pub(crate) fn with_drafter(target: Script, drafter: impl Drafter + 'static) -> Parts {
    Parts { drafter: Box::new(drafter), ..parts(target) }
}

/// Room for `max_running` at once and `max_waiting` beside them.
pub(crate) fn options(max_running: usize, max_waiting: usize) -> EngineOptions {
    let widths = WidthPolicy::Fixed;
    EngineOptions { page_size: 4, max_running, max_waiting, widths, ..EngineOptions::default() }
}

pub(crate) fn engine(target: Script, options: EngineOptions) -> Engine {
    Engine::assemble(&device::Threads::new(), parts(target), options)
}
