//! Requests run to their ends: for scripts, benchmarks and tests.

use crate::{
    Engine, EngineLost, FinishReason, PromptToken, Reject, Request, RequestId, Stats, TokenOut,
    Update,
};
use device::HostDevice;
use std::collections::HashMap;

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Tokens of the prompt, when asked for.
    pub prompt: Vec<PromptToken>,
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

/// Puts the updates of one request together.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    prompt: Vec<PromptToken>,
    tokens: Vec<TokenOut>,
    text: String,
}

impl Collector {
    /// Takes the request's next update; the last one completes the output.
    pub fn add(&mut self, update: Update) -> Option<Output> {
        self.prompt.extend(update.prompt);
        self.tokens.extend(update.tokens);
        update.text.iter().for_each(|segment| self.text.push_str(&segment.text));
        let end = update.finished?;
        let Collector { prompt, tokens, text } = std::mem::take(self);
        Some(Output { prompt, tokens, text, reason: end.reason, stats: end.stats })
    }
}

impl<D: HostDevice> Engine<D> {
    /// Submits `requests`, in order and as many at once as may be open, and takes turns until all
    /// have ended. Outputs are in the requests' order. Updates of other requests that end
    /// meanwhile are dropped.
    ///
    /// # Errors
    /// The first request that could never run, or a lost device.
    pub fn run(&mut self, requests: Vec<Request>) -> Result<Vec<Output>, RunError> {
        requests.iter().try_for_each(|request| self.check(request)).map_err(Reject::from)?;
        let mut outputs = vec![None; requests.len()];
        let mut rest = requests.into_iter().enumerate();
        let mut open: HashMap<RequestId, (usize, Collector)> = HashMap::new();
        while open.len() + rest.len() > 0 {
            for (at, request) in rest.by_ref().take(self.room()) {
                open.insert(self.submit(request)?, (at, Collector::default()));
            }
            for update in self.turn()? {
                let id = update.id;
                let Some((at, collector)) = open.get_mut(&id) else { continue };
                if let Some(output) = collector.add(update) {
                    outputs[*at] = Some(output);
                    open.remove(&id);
                }
            }
        }
        let ended = |output: Option<Output>| output.expect("the loop ran until all had ended");
        Ok(outputs.into_iter().map(ended).collect())
    }
}
