//! What each request will say, for a drafter whose acceptance is simulated: known from a plain run
//! of the same load.

use super::items::Item;
use engine::RequestId;
use engine::draft::{Chances, Fate};
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
    /// How likely its drafts are right.
    chances: Arc<Chances>,
}

/// The plain output of each item.
pub(super) type Outputs = Vec<Arc<[u32]>>;

impl Truth {
    /// Request `id` runs `item`, whose output is `output`, and its drafts are right by `chances`.
    pub(super) fn submitted(
        &self,
        id: RequestId,
        item: &Item,
        (output, chances): (&Arc<[u32]>, &Arc<Chances>),
    ) {
        let (output, chances) = (output.clone(), chances.clone());
        let known = Known { prompt: item.prompt.len(), output, chances };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id.0, known);
    }

    /// Forgets all requests: none of them is open any more.
    pub(super) fn forget(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The token that request `id` will have at `position`, and how likely the draft at `place` of a
    /// block is that token; when the output is known so far.
    pub(super) fn fate(&self, id: u64, position: usize, place: usize) -> Option<Fate> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { prompt, output, chances } = open.get(&id)?;
        let token = *output.get(position.checked_sub(*prompt)?)?;
        Some((token, chances.at(place)))
    }
}
