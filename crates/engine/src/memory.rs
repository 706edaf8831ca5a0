//! How much KV memory an engine takes, fixed when it starts.

use crate::Pair;
use device::Fence;
use schedule::{Discipline, StepCost, WidthPolicy};

/// Bytes of KV memory taken at most when nobody says how much.
const DEFAULT_KV_BYTES: usize = 4 << 30;

/// Fixed at start.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// KV memory, in tokens over all requests; `None` for one full context, within 4 GiB.
    pub kv_tokens: Option<usize>,
    /// Tokens of a KV page; a power of two.
    pub page_size: usize,
    /// Most tokens one step computes, over all requests; at least 2.
    pub chunk: usize,
    /// Most requests that run at once; at least 1.
    pub max_running: usize,
    /// Most open requests beyond `max_running`: they wait, and further ones are refused with
    /// [`crate::Reject::QueueFull`].
    pub max_waiting: usize,
    /// Verify width of drafting requests that name none (the anchor included); the widest when
    /// widths adapt.
    pub width: usize,
    /// Whether the width of requests that name none adapts to what pays. An adaptive policy that
    /// knows no cost has it measured when an engine starts over a pair, in about 50 ms.
    pub widths: WidthPolicy,
    /// How a step is ordered after the one before it; anything but [`Fence::Fine`] is there to be
    /// measured against it.
    pub fence: Fence,
    /// How memory is held for steps in flight; anything but [`Discipline::Sound`] is broken, to show
    /// that tests notice.
    pub discipline: Discipline,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            kv_tokens: None,
            page_size: 16,
            chunk: 512,
            max_running: 1,
            max_waiting: 1024,
            width: 8,
            widths: WidthPolicy::Adaptive(StepCost::default()),
            fence: Fence::Fine,
            discipline: Discipline::Sound,
        }
    }
}

impl Pair {
    /// Most tokens of a sequence that the target was made for.
    pub fn context(&self) -> usize {
        self.target.config().context
    }

    /// Tokens that 4 GiB of KV memory hold, target and drafter together.
    pub fn affordable_kv_tokens(&self) -> usize {
        let draft = self.draft.as_ref().map_or(0, |draft| draft.kv_token_bytes());
        DEFAULT_KV_BYTES / (self.target.kv_token_bytes() + draft)
    }

    /// Positions that the drafter drafts in one pass, the anchor included; `None` without one.
    pub fn block(&self) -> Option<usize> {
        self.draft.as_ref().map(|draft| draft.config().block)
    }
}

/// Where the KV pages are: `free + cached + held == total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPages {
    /// Nobody's.
    pub free: usize,
    /// Of prefixes that no running request uses; they make room when free pages run out.
    pub cached: usize,
    /// Of requests that run or have just ended, the prefixes they share included.
    pub held: usize,
    /// All.
    pub total: usize,
}

/// The sizes that follow from the options and the pair.
pub(crate) struct Geometry {
    pub(crate) pages: usize,
    /// Most tokens of a sequence: the model's context, or what the pages hold.
    pub(crate) context: usize,
}

impl Geometry {
    pub(crate) fn plan(pair: &Pair, options: &EngineOptions) -> Geometry {
        let context = pair.context();
        let tokens = options.kv_tokens.unwrap_or(context.min(pair.affordable_kv_tokens()));
        let pages = tokens.div_ceil(options.page_size).max(1);
        // The last token of a sequence is chosen, never computed: it needs no slot.
        let context = context.min(pages * options.page_size + 1);
        Geometry { pages, context }
    }
}
