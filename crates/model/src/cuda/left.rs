//! Steps that were left: what they chose comes to the host while the card is at the next one.

use super::queue::land;
use super::run::Found;
use device::cuda::Cuda;
use device::{Device, Pending};
use std::sync::{Arc, OnceLock};

/// Between two looks at an event, since looking takes what launching needs, too.
const LOOKS_APART: usize = 64;

/// Drafts that the target's next pass takes as they are made.
#[derive(Debug)]
pub struct Promised {
    /// Rows of the draft pass, and those that were asked for.
    pub(super) all: usize,
    rows: Vec<usize>,
    found: OnceLock<Found>,
}

impl Promised {
    pub(super) fn new(all: usize, rows: &[usize]) -> Promised {
        Promised { all, rows: rows.to_vec(), found: OnceLock::new() }
    }

    /// The choices for all rows and how sure the drafter is of them have come.
    pub(super) fn keep(&self, words: Vec<u32>) {
        let kept = self.found.set(Found::new(words, self.all).of(&self.rows));
        assert!(kept.is_ok(), "a promise is kept once");
    }

    /// What was promised, a choice for each row that was asked for.
    ///
    /// # Panics
    /// While nobody knows what was chosen behind it.
    pub fn found(&self) -> &Found {
        self.found.get().expect("what was chosen behind a promise was asked for")
    }
}

/// A draft pass whose choices nobody has waited for.
pub struct Drafting {
    pending: Pending<u32, Cuda>,
    cuda: Cuda,
    /// Rows that chose, and those of them that were asked for.
    all: usize,
    rows: Vec<usize>,
}

impl Drafting {
    pub(super) fn new(
        (pending, cuda): (Pending<u32, Cuda>, &Cuda),
        all: usize,
        rows: Vec<usize>,
    ) -> Drafting {
        Drafting { pending, cuda: cuda.clone(), all, rows }
    }

    /// Waits for it: a choice for each row that was asked for.
    ///
    /// # Panics
    /// When the card is lost.
    pub fn found(self) -> Found {
        let Drafting { pending, cuda, all, rows } = self;
        Found::new(land(pending, &cuda), all).of(&rows)
    }
}

/// What a step that was left will have chosen.
pub struct Left {
    pending: Pending<u32, Cuda>,
    cuda: Cuda,
    /// Words before its own.
    before: usize,
    promised: Option<Arc<Promised>>,
}

impl Left {
    pub(super) fn new(
        pending: Pending<u32, Cuda>,
        cuda: &Cuda,
        before: usize,
        promised: Option<Arc<Promised>>,
    ) -> Left {
        Left { pending, cuda: cuda.clone(), before, promised }
    }

    /// Waits for it: a token for each row of its pass. What was promised to it is known from then on, too.
    ///
    /// # Panics
    /// When the card is lost.
    pub fn read(self) -> Vec<u32> {
        let Left { pending, cuda, before, promised } = self;
        while !pending.arrived() && cuda.lost().is_none() {
            (0..LOOKS_APART).for_each(|_| std::hint::spin_loop());
        }
        let mut words = pending.land().unwrap_or_else(|lost| panic!("{lost}"));
        let own = words.split_off(before);
        if let Some(promised) = promised {
            promised.keep(words);
        }
        own
    }
}
