//! The engine: takes requests, runs steps, hands out tokens.
//!
//! ```text
//! submit → turn: plan → launch (forward lane) → land the step before → commit → updates
//! ```

mod output;
mod pair;

pub use output::{Finished, Segment, Stats, TokenOut, Update};
pub use pair::{Pair, PairOptions};
pub use schedule::{FinishReason, Limits, Request, RequestError, Sampling, Speculation, Stops};

/// The engine. See [`Engine::turn`].
pub struct Engine {}

/// Identifies a request within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The engine cannot go on: a device job panicked. Open requests are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device stopped while computing a step; no further request can be served")]
pub struct EngineLost;

/// Fixed at start.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// KV memory, in tokens over all requests; `None` for one full context.
    pub kv_tokens: Option<usize>,
    /// Tokens of a KV page; a power of two.
    pub page_size: usize,
    /// Most prompt tokens one step computes for a request.
    pub chunk: usize,
    /// Most requests that run at once.
    pub max_running: usize,
    /// Verify width of drafting requests that name none (the anchor included).
    pub width: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions { kv_tokens: None, page_size: 16, chunk: 512, max_running: 1, width: 8 }
    }
}

/// What the engine works with, for people and info endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Most tokens of a sequence, prompt and output together.
    pub context: usize,
    /// KV memory, in tokens.
    pub kv_tokens: usize,
    /// The drafter's block width, mask id and default verify width; `None` without a drafter.
    pub draft: Option<DraftInfo>,
}

/// The drafter's effective settings.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftInfo {
    /// Positions drafted in one pass, the anchor included.
    pub block: usize,
    /// The id that stands for "to be drafted".
    pub mask_id: u32,
    /// Default verify width, the anchor included.
    pub width: usize,
}

impl Engine {
    /// An engine over a loaded pair.
    pub fn new(pair: Pair, options: EngineOptions) -> Engine {
        let _ = (pair, options);
        unimplemented!()
    }

    /// Effective settings.
    pub fn info(&self) -> &Info {
        unimplemented!()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A request that could never run, naming the field.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        let _ = request;
        unimplemented!()
    }

    /// Ends a request early; its last update carries [`FinishReason::Cancelled`]. Unknown and
    /// ended ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        let _ = id;
        unimplemented!()
    }

    /// One turn of the loop: plans and launches a step, then lands the one before it. Returns
    /// what became known; possibly nothing. Each request ends with exactly one update whose
    /// `finished` is set.
    ///
    /// # Errors
    /// [`EngineLost`] when the device stopped.
    pub fn turn(&mut self) -> Result<Vec<Update>, EngineLost> {
        unimplemented!()
    }

    /// No request is queued, running or in flight.
    pub fn is_idle(&self) -> bool {
        unimplemented!()
    }
}
