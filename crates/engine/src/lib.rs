//! The engine: takes requests, runs steps, hands out tokens.
//!
//! ```text
//! submit → turn: plan → launch (forward lane) → land the step before → commit → updates
//! ```
//!
//! A step moves by value: planned, in flight, landed. Step N is launched before step N − 1 has
//! landed, so the planner works with bounds and the device with its own exact lengths.
//!
//! Two faces: [`Engine`] for programs that take its turns themselves, and [`Service`], an engine on
//! a thread of its own, for programs that submit from many threads and must outlive its failure.

mod ahead;
mod collect;
mod counters;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod draft;
mod fit;
mod forward;
mod guide;
mod holders;
mod left;
mod measure;
mod memory;
mod open;
mod output;
mod pair;
mod recent;
mod report;
pub mod service;
mod shaper;
mod step;
mod target;
mod turn;

pub use collect::{Collector, Output, RunError};
pub use counters::{Counters, StepTimes};
pub use memory::{EngineOptions, KV_SHARE, KvNeed, KvPages};
pub use output::{Finished, PromptToken, Segment, Stats, TokenOut, Update};
pub use pair::{Meter, OnHost, Pair, PairOptions};
pub use recent::{RECENT_STEPS, Span, StepRecord};
pub use schedule::{
    Constrained, Constraint, CostCurve, Discipline, End, FinishReason, Limits, MOST_BIASES,
    Matcher, PromptLogProbs, Reject, Request, RequestError, Sampling, Shaping, Speculation,
    StepCost, Stops, Tally, WidthPolicy,
};
pub use service::{Event, Handle, Service, Stream, SubmitError, Ticket};
pub use target::{Choosing, Features, Leaves, Left, Target, Vocabulary};

pub use device::Fence;
use device::{Clock, DeviceLost, HostDevice, Threads, Usage};
use draft::Drafter;
use forward::Forward;
pub use kernels::choose::LogProbs;
use memory::Geometry;
use open::Requests;
use pair::Models;
use recent::Recent;
use schedule::{Bounds, Early, Scheduler, SchedulerOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use step::{InFlight, Pipeline, Sizes};

/// The engine. See [`Engine::turn`].
pub struct Engine<D: HostDevice = Threads> {
    scheduler: Scheduler,
    pipeline: Pipeline<D>,
    /// The youngest step, until it lands.
    in_flight: Option<InFlight<D>>,
    requests: Requests,
    /// Updates of requests that ended outside a step.
    ready: Vec<Update>,
    vocabulary: Arc<dyn Vocabulary>,
    info: Info,
    counters: Counters,
    recent: Recent,
    clock: Clock,
    ids: RequestIds,
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

/// Hands out an engine's request ids, on any thread.
#[derive(Clone, Default)]
struct RequestIds(Arc<AtomicU64>);

impl RequestIds {
    fn next(&self) -> RequestId {
        RequestId(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// The engine cannot go on. Open requests are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineLost {
    /// A device job failed: the target's or the drafter's pass among them.
    #[error("{0}; no further request can be served")]
    Device(#[from] DeviceLost),
    /// The thread of a [`Service`] panicked: in the scheduler, or in a sink.
    #[error("the engine's thread panicked: {0}; no further request can be served")]
    Panicked(String),
}

/// What an engine holds and has done, at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// Requests that wait to start, or to start again.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Where the KV pages are.
    pub pages: KvPages,
    /// What the scheduler did so far.
    pub tally: Tally,
    /// What the engine did so far.
    pub counters: Counters,
    /// What device and host spent so far.
    pub usage: Usage,
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
        Engine::on(&Threads::new(), pair, options)
    }

    /// An engine over a pair's target with another drafter than the pair's own. It is asked about
    /// requests only: no cost is measured, what `options.widths` lacks is learned.
    pub fn with_drafter(pair: Pair, drafter: Box<dyn Drafter>, options: EngineOptions) -> Engine {
        let parts = Parts { drafter, mask_id: None, ..Parts::of(pair, &options) };
        Engine::assemble(&Threads::new(), parts, options)
    }
}

impl<D: HostDevice> Engine<D> {
    /// An engine over a loaded pair, on `device`.
    pub fn on(device: &D, pair: Pair, mut options: EngineOptions) -> Engine<D> {
        let mut parts = Parts::of(pair, &options);
        parts.measure(device.clock(), &mut options);
        Engine::assemble(device, parts, options)
    }

    /// An engine over `parts`, on `device`. `options.kv_tokens` is not looked at: the parts have
    /// their memory already. No cost is measured: what `options.widths` lacks is learned.
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
            max_waiting: options.max_waiting,
            width,
            widths: options.widths,
            discipline: options.discipline,
        });
        let sizes = Sizes {
            rows: scheduler.rows().1,
            pages_each: pages.min(context.div_ceil(page_size)),
            width: block,
        };
        let how = (device.clock(), options.fence);
        let forward = Forward::new(target, drafter, page_size, vocabulary.size(), how);
        Engine {
            scheduler,
            pipeline: Pipeline::new(device, forward, &sizes, options.fence),
            in_flight: None,
            requests: Requests::default(),
            ready: Vec::new(),
            vocabulary,
            info,
            counters: Counters::default(),
            recent: Recent::default(),
            clock: device.clock().clone(),
            ids: RequestIds::default(),
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

    /// The newest steps that landed, oldest first; at most [`RECENT_STEPS`].
    pub fn recent(&self) -> Vec<StepRecord> {
        self.recent.steps()
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
        let id = self.ids.next();
        self.submit_as(id, request, self.clock.now())?;
        Ok(id)
    }

    /// Queues a request under an id from `ids`, submitted at `submitted` by the device's clock.
    fn submit_as(
        &mut self,
        id: RequestId,
        request: Request,
        submitted: Duration,
    ) -> Result<(), Reject> {
        let (prompt_tokens, timeout) = (request.prompt.len(), request.limits.timeout);
        self.scheduler.submit(id.0, request)?;
        self.requests.add(id, prompt_tokens, submitted, timeout);
        Ok(())
    }

    /// Whether a request can run at all.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        request.check(self.scheduler.bounds())
    }

    /// How many more requests may be open.
    pub fn room(&self) -> usize {
        self.scheduler.limit() - self.scheduler.open()
    }

    /// Changes whether and how wide a request drafts, from the next step on. Its tokens stay the
    /// same. Unknown and ended ids are ignored.
    ///
    /// # Errors
    /// A width that the drafter cannot do.
    pub fn set_speculation(&mut self, id: RequestId, to: Speculation) -> Result<(), RequestError> {
        self.scheduler.set_speculation(id.0, to)
    }

    /// Ends a request early; its last update, from the next turn, carries
    /// [`FinishReason::Cancelled`]. Unknown and ended ids are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        self.end(id, Early::Cancelled);
    }

    /// What the engine holds and has done by now.
    pub fn snapshot(&self) -> Snapshot {
        let (waiting, running) = self.load();
        Snapshot {
            waiting,
            running,
            pages: self.kv_pages(),
            tally: self.tally(),
            counters: self.counters,
            usage: self.device().usage(),
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
        let geometry = Geometry::plan(&pair, options);
        let Geometry { pages, context, .. } = geometry;
        let mask_id = pair.draft_config().map(|draft| draft.mask_id);
        let Pair { models, tokenizer, .. } = pair;
        let (target, drafter) = match models {
            Models::Host(models) => models.with_memory(&geometry, tokenizer.len()),
            #[cfg(feature = "cuda")]
            Models::Card(models) => models.with_memory(&geometry, options, tokenizer.len()),
        };
        Parts { target, drafter, vocabulary: tokenizer, context, pages, mask_id }
    }
}
