//! Steps that were left: the target runs them, chooses and accepts by itself, and the step behind them begins where
//! they end, wherever that is. Whoever lands one, or has to know, reads what it chose.

use crate::ahead::Promised;
use crate::counters::StepTimes;
use crate::draft::{Calibration, Draft, Judge};
use crate::recent::Span;
use crate::report::{Aside, Entry};
use crate::target::Left;
use cache::Row;
use device::Clock;
use kernels::accept::accept;
use model::pass::Start;
use schedule::{Absorb, Chances, RowOutcome};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

/// What is known of a row's drafts before they are verified, those that are not worth it included.
#[derive(Clone, Default)]
pub(crate) struct Judged {
    pub(crate) confidences: Vec<f32>,
    pub(crate) chances: Chances,
}

impl Judged {
    /// Of a draft of which so much is wanted, of `most` in the widest, by what is known: beside its tokens.
    pub(crate) fn of(
        (calibration, price): (&Calibration, f32),
        most: usize,
        draft: Draft,
    ) -> (Vec<u32>, Judged) {
        let Draft { tokens, confidences } = draft;
        let chances = Judge::new(calibration, price).judged(&confidences, most);
        (tokens, Judged { confidences, chances })
    }
}

/// A step that was left.
pub(crate) struct LeftStep {
    pub(crate) rows: Vec<LeftRow>,
    /// Until somebody reads it.
    coming: Mutex<Option<Coming>>,
    read: OnceLock<ReadStep>,
    clock: Clock,
    began: Duration,
    /// When the last step that was read ended.
    ended: Arc<Mutex<Duration>>,
}

/// A block of such a step.
pub(crate) struct LeftRow {
    pub(crate) row: Row,
    /// First row in the pass, and rows.
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) absorb: Absorb,
    pub(crate) pages: Vec<u32>,
}

/// What is still to come of a step.
pub(crate) struct Coming {
    pub(crate) left: Box<dyn Left>,
    pub(crate) drafts: Drafts,
}

/// The drafts of a step that was left.
pub(crate) enum Drafts {
    /// Of each row, and how long they took.
    Told(Vec<(Vec<u32>, Judged)>, Duration),
    /// They come, too. By what they are judged, of how many drafts in the widest block.
    Promised(Promised, Box<Calibration>, usize),
}

impl Drafts {
    /// How long they took, and those of each of `rows` rows.
    fn known(self, rows: usize) -> (Duration, Vec<(Vec<u32>, Judged)>) {
        let (promised, calibration, most) = match self {
            Drafts::Told(drafts, took) => return (took, drafts),
            Drafts::Promised(promised, calibration, most) => (promised, calibration, most),
        };
        let mut drafts = vec![(Vec::new(), Judged::default()); rows];
        let Promised { promise, rows, takes } = promised;
        for ((place, price), draft) in rows.into_iter().zip(promise.redeem()) {
            drafts[place] = Judged::of((&calibration, price), most, draft);
        }
        (takes, drafts)
    }
}

/// A step that was read.
pub(crate) struct ReadStep {
    pub(crate) outcomes: Vec<RowOutcome>,
    /// What each block looked at, and how sure the drafter was of those and of what was not worth it.
    pub(crate) drafts: Vec<(Vec<u32>, Vec<f32>)>,
    pub(crate) times: StepTimes,
    /// From when to when nothing ran before it.
    pub(crate) span: Span,
}

impl LeftStep {
    /// What became of it, once it has ended. Who asks first waits for the card, and others for that one: awake, since
    /// going to sleep would take longer than they have.
    ///
    /// # Panics
    /// When the card is lost.
    pub(crate) fn read(&self) -> &ReadStep {
        loop {
            match self.coming.try_lock() {
                Ok(mut coming) => {
                    let read = || self.settle(coming.take().expect("a step that nobody has read"));
                    return self.read.get_or_init(read);
                }
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
                Err(TryLockError::Poisoned(_)) => panic!("who read this step failed"),
            }
        }
    }

    /// Waits for what is to come.
    fn settle(&self, coming: Coming) -> ReadStep {
        let Coming { left, drafts } = coming;
        let chosen = left.read();
        let now = self.clock.now();
        let (takes, judged) = drafts.known(self.rows.len());
        let (mut outcomes, mut drafts) = (Vec::new(), Vec::new());
        for (row, (tokens, Judged { confidences, chances })) in self.rows.iter().zip(judged) {
            let choices = &chosen[row.first..row.first + row.width];
            let accepted = accept(&tokens, choices);
            let kept = choices[..=accepted].to_vec();
            let drafted = tokens.len();
            outcomes.push(RowOutcome { tokens: kept, accepted, drafted, chances, end: None });
            drafts.push((tokens, confidences));
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.began.max(*ended).min(now);
        *ended = now;
        let draft = takes.min(now - start);
        let times = StepTimes { draft, verify: now - start - draft, ..StepTimes::default() };
        ReadStep { outcomes, drafts, times, span: Span { start, end: now } }
    }

    /// What the host is told, as any step tells it; the results go to `words`, in entries of `stride`.
    pub(crate) fn report(&self, words: &mut [u32], stride: usize) -> (Aside, Span) {
        let ReadStep { outcomes, drafts, times, span } = self.read();
        for (outcome, entry) in outcomes.iter().zip(words.chunks_exact_mut(stride)) {
            Entry::write(entry, outcome);
        }
        let rows = self.rows.len();
        let aside = Aside {
            logprobs: vec![Vec::new(); rows],
            prompts: vec![Vec::new(); rows],
            drafts: drafts.iter().map(|(tokens, _)| tokens.clone()).collect(),
            times: *times,
        };
        (aside, *span)
    }
}

/// What may stay unknown of the steps that were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The last one.
    Last,
    /// Those that nobody has read.
    Unread,
    /// None.
    Nothing,
}

/// The steps that were left and that the forward lane has not read, oldest first.
#[derive(Default)]
pub(crate) struct Steps {
    steps: VecDeque<Arc<LeftStep>>,
    ended: Arc<Mutex<Duration>>,
}

impl Steps {
    /// One more, which began at `began`.
    pub(crate) fn push(
        &mut self,
        rows: Vec<LeftRow>,
        coming: Coming,
        (clock, began): (&Clock, Duration),
    ) -> Arc<LeftStep> {
        let step = Arc::new(LeftStep {
            rows,
            coming: Mutex::new(Some(coming)),
            read: OnceLock::new(),
            clock: clock.clone(),
            began,
            ended: self.ended.clone(),
        });
        self.steps.push_back(step.clone());
        step
    }

    /// The oldest, unless it is to stay unknown.
    pub(crate) fn pop(&mut self, unknown: Unknown) -> Option<Arc<LeftStep>> {
        let stays = match unknown {
            Unknown::Nothing => false,
            Unknown::Unread => self.steps.front()?.read.get().is_none(),
            Unknown::Last => self.steps.len() == 1,
        };
        if stays { None } else { self.steps.pop_front() }
    }

    /// The step before the one that is made.
    pub(crate) fn last(&self) -> Option<&Arc<LeftStep>> {
        self.steps.back()
    }

    /// Where `row` begins, which had so many tokens before the last step.
    pub(crate) fn start(&self, row: Row, len: usize) -> Start {
        let block = self.last().and_then(|step| {
            let block = step.rows.iter().position(|left| left.row == row)?;
            Some((block, step.rows[block].width))
        });
        match block {
            None => Start::At(len),
            Some((block, width)) => Start::Behind { block, most: len + width },
        }
    }
}
