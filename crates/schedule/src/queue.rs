//! Who waits, and whether the next may start. Higher priority first, then first come, first
//! served; nobody overtakes the first in line.

use crate::request::RequestError;
use crate::sequence::{Place, Sequence};
use std::collections::BTreeMap;

/// Whether a request may start.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Now.
    Admit,
    /// Later.
    Wait(Shortage),
    /// Never.
    Reject(Reject),
}

/// What a waiting request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Its turn: others are before it.
    Turn,
    /// A row.
    Rows,
    /// So many more pages.
    Pages(usize),
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Reject {
    /// It could never run.
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// Too many are open already.
    #[error(
        "{limit} requests are open already, running and waiting, which is the limit; try again \
         later, or start the engine with a larger max_waiting"
    )]
    QueueFull {
        /// How many may be open.
        limit: usize,
    },
}

/// Requests without a row, in order of service.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: BTreeMap<Place, Sequence>,
}

impl Queue {
    pub(crate) fn push(&mut self, sequence: Sequence) {
        let before = self.waiting.insert(sequence.place, sequence);
        assert!(before.is_none(), "places are unique");
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn first(&self) -> Option<&Sequence> {
        self.waiting.values().next()
    }

    pub(crate) fn first_mut(&mut self) -> Option<&mut Sequence> {
        self.waiting.values_mut().next()
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Sequence> {
        self.waiting.get_mut(&place)
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Sequence> {
        self.waiting.remove(&place)
    }
}
