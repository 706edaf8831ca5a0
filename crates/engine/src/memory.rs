//! How much KV memory an engine takes, fixed when it starts.

use crate::Pair;
use crate::pair::Models;
use device::Fence;
use schedule::{Discipline, StepCost, WidthPolicy};

/// Bytes of KV memory taken at most when nobody says how much.
const DEFAULT_KV_BYTES: usize = 4 << 30;

/// A server takes one part in so many of the memory that is available.
pub const KV_SHARE: usize = 4;

/// What decides how much KV memory a server takes that nobody told how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvNeed {
    /// Most tokens of a sequence.
    pub context: usize,
    /// Most requests that run at once.
    pub running: usize,
    /// Bytes of a token's keys and values, target and drafter together.
    pub token_bytes: usize,
    /// Bytes of memory that nothing else uses; `None` where the system does not say.
    pub available: Option<usize>,
}

impl KvNeed {
    /// Tokens: a whole context for every running request, but never more than one part in
    /// [`KV_SHARE`] of the available memory (4 GiB where the system does not say how much that is), and
    /// at least one. What lies beside running requests keeps prefixes.
    pub fn tokens(&self) -> usize {
        let bytes = self.available.map_or(DEFAULT_KV_BYTES, |bytes| bytes / KV_SHARE);
        let most = bytes / self.token_bytes.max(1);
        self.context.saturating_mul(self.running).min(most).max(1)
    }
}

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
            width: 16,
            widths: WidthPolicy::Adaptive(StepCost::default()),
            fence: Fence::Fine,
            discipline: Discipline::Sound,
        }
    }
}

impl Pair {
    /// Most tokens of a sequence that the target was made for.
    pub fn context(&self) -> usize {
        self.config().context
    }

    /// Bytes of a token's keys and values, target and drafter together.
    pub fn kv_token_bytes(&self) -> usize {
        match &self.models {
            Models::Host(models) => models.kv_token_bytes(),
            #[cfg(feature = "cuda")]
            Models::Card(models) => models.kv_token_bytes(),
        }
    }

    /// Tokens that 4 GiB of KV memory hold, or half of what a card has left, target and drafter
    /// together.
    pub fn affordable_kv_tokens(&self) -> usize {
        let bytes = self.free_on_card().map_or(DEFAULT_KV_BYTES, |free| free / 2);
        bytes / self.kv_token_bytes()
    }

    /// Positions that the drafter drafts in one pass, the anchor included; `None` without one.
    pub fn block(&self) -> Option<usize> {
        self.draft_config().map(|draft| draft.block)
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
    /// Tokens of a page.
    pub(crate) page_size: usize,
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
        Geometry { pages, page_size: options.page_size, context }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_server_takes_what_its_requests_may_need_within_its_share_of_memory() {
        let need = KvNeed { context: 8192, running: 16, token_bytes: 1024, available: None };
        let with = |mib: usize| KvNeed { available: Some(mib * MIB), ..need };
        // Plenty: a whole context each, and no more however much there is.
        assert_eq!(with(64 * 1024).tokens(), 16 * 8192);
        assert_eq!(with(512).tokens(), 16 * 8192);
        // One part in four, to the token.
        assert_eq!(with(256).tokens(), 64 * 1024);
        assert_eq!(with(4).tokens(), 1024);
        // Fewer requests, or less context, need less.
        assert_eq!(KvNeed { running: 1, ..with(1024) }.tokens(), 8192);
        assert_eq!(KvNeed { context: 100, ..with(1024) }.tokens(), 1600);
        // Where the system says nothing the bound is what it was for one request.
        assert_eq!(KvNeed { token_bytes: MIB, ..need }.tokens(), 4096);
        // Never nothing, and nothing overflows.
        assert_eq!(with(0).tokens(), 1);
        let huge = KvNeed { context: usize::MAX, running: 2, token_bytes: 1, available: Some(40) };
        assert_eq!(huge.tokens(), 10);
    }

    #[test]
    fn a_share_is_never_exceeded() {
        for available in (0..40).map(|power| 3_usize << power) {
            for token_bytes in [1, 7, 46_080, 1 << 20] {
                let need = KvNeed {
                    context: 131_072,
                    running: 64,
                    token_bytes,
                    available: Some(available),
                };
                let taken = need.tokens() * token_bytes;
                assert!(taken <= available / KV_SHARE || need.tokens() == 1, "{need:?}");
            }
        }
    }
}
