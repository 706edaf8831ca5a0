//! What each request will say, for a drafter whose acceptance is simulated: known from a plain run
//! of the same load.

use super::items::Item;
use engine::RequestId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The outputs of the requests that are open, shared with the drafter. Cloning shares them.
#[derive(Clone, Default)]
pub(super) struct Truth {
    open: Arc<Mutex<HashMap<u64, Known>>>,
}

/// What is known of a request.
struct Known {
    /// Where its output begins.
    prompt: usize,
    output: Arc<[u32]>,
}

/// The plain output of each item.
pub(super) type Outputs = Vec<Arc<[u32]>>;

impl Truth {
    /// Request `id` runs `item`, whose output is `output`.
    pub(super) fn submitted(&self, id: RequestId, item: &Item, output: &Arc<[u32]>) {
        let known = Known { prompt: item.prompt.len(), output: output.clone() };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id.0, known);
    }

    /// Forgets all requests: none of them is open any more.
    pub(super) fn forget(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The token that request `id` will have at `position`, when that is known.
    pub(super) fn token(&self, id: u64, position: usize) -> Option<u32> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { prompt, output } = open.get(&id)?;
        output.get(position.checked_sub(*prompt)?).copied()
    }
}
