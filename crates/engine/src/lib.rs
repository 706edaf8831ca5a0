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
mod step;
mod target;
mod turn;

pub use collect::{Output, RunError};
pub use counters::{Counters, StepTimes};
pub use memory::{EngineOptions, KvPages};
pub use output::{Finished, Segment, Stats, TokenOut, Update};
pub use pair::{Pair, PairOptions};
pub use schedule::{
    FinishReason, Limits, Reject, Request, RequestError, Sampling, Speculation, StepCost, Stops,
    Tally, WidthPolicy,
};
pub use target::{Target, Vocabulary};

pub use device::Fence;
use device::{DeviceLost, HostDevice, Threads};
use draft::{DflashDrafter, Drafter, NoDrafter};
use forward::Forward;
use memory::Geometry;
use schedule::{Bounds, Scheduler, SchedulerOptions};
use std::collections::HashMap;
use std::sync::Arc;
use step::{InFlight, Pipeline, Sizes};
use target::LanguageModel;
use turn::Open;

/// The engine. See [`Engine::turn`].
pub struct Engine<D: HostDevice = Threads> {
    scheduler: Scheduler,
    pipeline: Pipeline<D>,
    /// The youngest step, until it lands.
    in_flight: Option<InFlight<D>>,
    open: HashMap<RequestId, Open>,
    /// Updates of requests that ended outside a step.
    ready: Vec<Update>,
    vocabulary: Arc<dyn Vocabulary>,
    info: Info,
    counters: Counters,
    next_id: u64,
}

/// What an engine is put together from, when not from a [`Pair`].
pub struct Parts {
    /// The model.
    pub target: Box<dyn Target>,
    /// Its drafter; [`draft::NoDrafter`] for none.
    pub drafter: Box<dyn Drafter>,
    /// The text of its tokens.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Most tokens of a sequence.
    pub context: usize,
    /// KV pages that target and drafter have room for.
    pub pages: usize,
    /// The id that stands for a position to be drafted, if the drafter has one.
    pub mask_id: Option<u32>,
}

/// Identifies a request within its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// The engine cannot go on: a device job failed. Open requests are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; no further request can be served")]
pub struct EngineLost(#[from] DeviceLost);

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
        Engine::on(&Threads::new(), pair, options)
    }

    /// An engine over a pair's target with another drafter than the pair's own.
    pub fn with_drafter(pair: Pair, drafter: Box<dyn Drafter>, options: EngineOptions) -> Engine {
        let parts = Parts { drafter, mask_id: None, ..Parts::of(pair, &options) };
        Engine::assemble(&Threads::new(), parts, options)
    }
}

impl<D: HostDevice> Engine<D> {
    /// An engine over a loaded pair, on `device`.
    pub fn on(device: &D, pair: Pair, options: EngineOptions) -> Engine<D> {
        let parts = Parts::of(pair, &options);
        Engine::assemble(device, parts, options)
    }

    /// An engine over `parts`, on `device`. `options.kv_tokens` is not looked at: the parts have
    /// their memory already.
    pub fn assemble(device: &D, parts: Parts, options: EngineOptions) -> Engine<D> {
        let Parts { target, drafter, vocabulary, context, pages, mask_id } = parts;
        let (block, page_size) = (drafter.block(), options.page_size);
        let width = options.width.clamp(1, block);
        let draft = (block > 1).then_some(DraftInfo { block, mask_id, width });
        let info = Info { context, kv_tokens: pages * page_size, draft };
        let scheduler = Scheduler::new(SchedulerOptions {
            bounds: Bounds {
                vocab: vocabulary.size(),
                context,
                kv_tokens: info.kv_tokens,
                max_width: block,
            },
            page_size,
            // A step has room for a block and a chunk.
            step_tokens: options.chunk.max(2),
            max_running: options.max_running,
            max_waiting: usize::MAX,
            width,
            widths: options.widths,
        });
        let sizes = Sizes {
            rows: scheduler.rows().1,
            pages_each: pages.min(context.div_ceil(page_size)),
            width: block,
        };
        let forward = Forward::new(target, drafter, page_size);
        Engine {
            scheduler,
            pipeline: Pipeline::new(device, forward, &sizes, options.fence),
            in_flight: None,
            open: HashMap::new(),
            ready: Vec::new(),
            vocabulary,
            info,
            counters: Counters::default(),
            next_id: 0,
        }
    }

    /// The device, for what it counts and records.
    pub fn device(&self) -> &D {
        self.pipeline.device()
    }

    /// Effective settings.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the scheduler did so far.
    pub fn tally(&self) -> Tally {
        self.scheduler.tally()
    }

    /// Waiting and running requests.
    pub fn load(&self) -> (usize, usize) {
        self.scheduler.load()
    }

    /// Where the KV pages are.
    pub fn kv_pages(&self) -> KvPages {
        let (account, available) = (self.scheduler.pages(), self.scheduler.available());
        KvPages {
            free: account.free,
            cached: available - account.free,
            held: account.total - available,
            total: account.total,
        }
    }

    /// Forgets all cached prefixes that no running request uses: for measurements that must not
    /// find what an earlier one left.
    pub fn forget_prefixes(&mut self) {
        self.scheduler.flush();
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
        self.open.insert(id, Open::new(prompt_tokens, self.now()));
        Ok(id)
    }

    /// Ends a request early; its last update, from the next turn, carries
    /// [`FinishReason::Cancelled`]. Unknown and ended ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        let youngest = self.in_flight.as_mut().map(|step| &mut step.plan);
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

impl Parts {
    /// A pair's target and drafter with memory for `options`.
    pub fn of(pair: Pair, options: &EngineOptions) -> Parts {
        let Geometry { pages, context } = Geometry::plan(&pair, options);
        let page_size = options.page_size;
        let Pair { cpu, target, draft, tokenizer, .. } = pair;
        let (target, allowed) = (Arc::new(target), tokenizer.len());
        let mask_id = draft.as_ref().map(|model| model.config().mask_id);
        let drafter: Box<dyn Drafter> = match draft {
            Some(model) => {
                let (cpu, target) = (cpu.clone(), target.clone());
                Box::new(DflashDrafter::new(cpu, model, target, pages, page_size, allowed))
            }
            None => Box::new(NoDrafter),
        };
        let target = Box::new(LanguageModel::new(cpu, target, pages, page_size, allowed));
        Parts { target, drafter, vocabulary: tokenizer, context, pages, mask_id }
    }
}
