//! The engine: takes requests, runs steps, hands out tokens.
//!
//! ```text
//! submit → turn: plan → launch (forward lane) → land the step before → commit → updates
//! ```
//!
//! A step moves by value: planned, in flight, landed. Step N is launched before step N − 1 has
//! landed, so the planner works with bounds and the device with its own exact lengths.

mod collect;
mod counters;
pub mod draft;
mod forward;
mod memory;
mod output;
mod pair;
mod turn;

pub use collect::{Output, RunError};
pub use counters::{Counters, StepTimes};
pub use memory::EngineOptions;
pub use output::{Finished, Segment, Stats, TokenOut, Update};
pub use pair::{Pair, PairOptions};
pub use schedule::{
    FinishReason, Limits, Reject, Request, RequestError, Sampling, Speculation, Stops,
};

use device::{Lane, LaneLost};
use draft::{DflashDrafter, Drafter, NoDrafter};
use forward::Forward;
use memory::Geometry;
use model::tokenizer::Tokenizer;
use schedule::{Bounds, Scheduler, SchedulerOptions, WidthPolicy};
use std::collections::HashMap;
use std::sync::Arc;
use turn::{InFlight, Open};

/// The engine. See [`Engine::turn`].
pub struct Engine {
    scheduler: Scheduler,
    lane: Lane<Forward>,
    /// The youngest step, until it lands.
    in_flight: Option<InFlight>,
    open: HashMap<RequestId, Open>,
    /// Updates of requests that ended outside a step.
    ready: Vec<Update>,
    tokenizer: Arc<Tokenizer>,
    info: Info,
    counters: Counters,
    next_id: u64,
}

/// Identifies a request within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The engine cannot go on: a device job panicked. Open requests are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device stopped while computing a step; no further request can be served")]
pub struct EngineLost;

impl From<LaneLost> for EngineLost {
    fn from(_: LaneLost) -> EngineLost {
        EngineLost
    }
}

/// What the engine works with, for people and info endpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Most tokens of a sequence, prompt and output together.
    pub context: usize,
    /// KV memory, in tokens.
    pub kv_tokens: usize,
    /// The drafter's effective settings; `None` without a drafter.
    pub draft: Option<DraftInfo>,
}

/// The drafter's effective settings.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftInfo {
    /// Positions drafted in one pass, the anchor included.
    pub block: usize,
    /// The id that stands for "to be drafted"; `None` for drafters that have none.
    pub mask_id: Option<u32>,
    /// Default verify width, the anchor included.
    pub width: usize,
}

impl Engine {
    /// An engine over a loaded pair, with the pair's drafter if it has one.
    pub fn new(pair: Pair, options: EngineOptions) -> Engine {
        let geometry = Geometry::plan(&pair, &options);
        let (pages, page_size) = (geometry.pages, options.page_size);
        let Pair { cpu, target, draft, tokenizer, .. } = pair;
        let mask_id = draft.as_ref().map(|model| model.config().mask_id);
        let drafter: Box<dyn Drafter> = match draft {
            Some(model) => {
                let allowed = tokenizer.len();
                Box::new(DflashDrafter::new(cpu.clone(), model, pages, page_size, allowed))
            }
            None => Box::new(NoDrafter),
        };
        Engine::start(cpu, target, tokenizer, drafter, mask_id, geometry, options)
    }

    /// An engine over a pair's target with another drafter than the pair's own.
    pub fn with_drafter(pair: Pair, drafter: Box<dyn Drafter>, options: EngineOptions) -> Engine {
        let geometry = Geometry::plan(&pair, &options);
        let Pair { cpu, target, tokenizer, .. } = pair;
        Engine::start(cpu, target, tokenizer, drafter, None, geometry, options)
    }

    fn start(
        cpu: device::Cpu,
        target: model::decoder::Decoder,
        tokenizer: Arc<Tokenizer>,
        drafter: Box<dyn Drafter>,
        mask_id: Option<u32>,
        geometry: Geometry,
        options: EngineOptions,
    ) -> Engine {
        let block = drafter.block();
        let width = options.width.clamp(1, block);
        let draft = (block > 1).then_some(DraftInfo { block, mask_id, width });
        let info = Info { context: geometry.context, kv_tokens: geometry.kv_tokens(), draft };
        let scheduler = Scheduler::new(SchedulerOptions {
            bounds: Bounds {
                vocab: tokenizer.len(),
                context: info.context,
                kv_tokens: info.kv_tokens,
                max_width: block,
            },
            page_size: options.page_size,
            // A step has room for a block and a chunk.
            step_tokens: options.chunk.max(2),
            max_running: options.max_running,
            max_waiting: usize::MAX,
            width,
            widths: WidthPolicy::Fixed,
        });
        let kv = target.kv_pool(geometry.pages, options.page_size);
        let rows = options.max_running;
        let forward = Forward::new(cpu, target, drafter, kv, tokenizer.len(), rows);
        Engine {
            scheduler,
            lane: Lane::new("forward", forward),
            in_flight: None,
            open: HashMap::new(),
            ready: Vec::new(),
            tokenizer,
            info,
            counters: Counters::default(),
            next_id: 0,
        }
    }

    /// Effective settings.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A request that could never run, naming the field, or one too many.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Reject> {
        let id = RequestId(self.next_id);
        let prompt_tokens = request.prompt.len();
        self.scheduler.submit(id.0, request)?;
        self.next_id += 1;
        self.open.insert(id, Open::new(prompt_tokens));
        Ok(id)
    }

    /// Ends a request early; its last update, from the next turn, carries
    /// [`FinishReason::Cancelled`]. Unknown and ended ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        let youngest = self.in_flight.as_mut().map(InFlight::plan);
        if let Some(outcome) = self.scheduler.cancel(id.0, youngest) {
            let update = self.update(outcome, None);
            self.ready.push(update);
        }
    }

    /// No request is queued, running or in flight, and no update is left to hand out.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.in_flight.is_none() && self.ready.is_empty()
    }

    /// Pages that no request uses and all pages, free and total rows. Equal pairs whenever the
    /// engine is idle.
    pub fn free_and_total(&self) -> [(usize, usize); 2] {
        let pages = self.scheduler.pages();
        [(pages.free + pages.cached, pages.total), self.scheduler.rows()]
    }
}
