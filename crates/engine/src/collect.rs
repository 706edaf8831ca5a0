//! Requests run to their ends: for scripts, benchmarks and tests.

use crate::{Engine, EngineLost, FinishReason, Reject, Request, Stats, TokenOut};
use device::HostDevice;

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Kept tokens.
    pub tokens: Vec<TokenOut>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it took.
    pub stats: Stats,
}

/// Why requests could not be run to their ends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// A request was refused; nothing of the batch was started.
    #[error(transparent)]
    Refused(#[from] Reject),
    /// The device stopped.
    #[error(transparent)]
    Lost(#[from] EngineLost),
}

impl Output {
    /// The ids of the kept tokens.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

impl<D: HostDevice> Engine<D> {
    /// Submits `requests` together and takes turns until all have ended. Outputs are in the
    /// requests' order. Updates of other requests that end meanwhile are dropped.
    ///
    /// # Errors
    /// The first refused request, or a lost device.
    pub fn run(&mut self, requests: Vec<Request>) -> Result<Vec<Output>, RunError> {
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match self.submit(request) {
                Ok(id) => ids.push(id),
                Err(refused) => {
                    ids.iter().for_each(|&id| self.cancel(id));
                    return Err(refused.into());
                }
            }
        }
        let mut partial = vec![(Vec::new(), String::new()); ids.len()];
        let mut ends = vec![None; ids.len()];
        while ends.iter().any(Option::is_none) {
            for update in self.turn()? {
                let Some(at) = ids.iter().position(|&id| id == update.id) else { continue };
                let (tokens, text) = &mut partial[at];
                tokens.extend(update.tokens);
                update.text.iter().for_each(|segment| text.push_str(&segment.text));
                ends[at] = update.finished.or(ends[at].take());
            }
        }
        let outputs = partial.into_iter().zip(ends).map(|((tokens, text), end)| {
            let end = end.expect("the loop ran until every request had ended");
            Output { tokens, text, reason: end.reason, stats: end.stats }
        });
        Ok(outputs.collect())
    }
}
