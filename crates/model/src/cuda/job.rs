//! Programs that are enqueued together: where each finds what the host says about it, and where it leaves its
//! choices. What is said about all of them goes to the card at once, and a graph is of all of them.

use super::batch::Often;
use super::pass::What;
use std::ops::Range;

/// Most rows of a program that is enqueued together with others: of more, so many sequences of shapes come that
/// few would come again.
pub const TOGETHER: usize = 16;

/// Words that begin at a multiple of this may be read as whatever they are.
const ALIGN: usize = 4;

/// A program that waits to be enqueued.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) what: What,
    /// What the host says about choices, and about a pass: see [`super::batch`].
    pub(crate) draws: Vec<u32>,
    pub(crate) batch: Vec<u32>,
    /// Its choices stand from here on.
    pub(crate) chosen: usize,
    pub(crate) often: Often,
}

/// Where a program finds its words, among all that were said, and where its choices stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) draws: Range<usize>,
    /// Behind the draws. Its end is rounded up, so that it does not tell how many pages a request has.
    pub(crate) batch: Range<usize>,
    pub(crate) chosen: usize,
}

/// A program among others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) what: What,
    pub(crate) place: Place,
}

impl Job {
    /// Whether it waits for others to be enqueued with.
    pub(crate) fn joins(&self) -> bool {
        self.often == Often::Yes && self.what.rows() <= TOGETHER
    }
}

/// Room for a batch that others follow. Rows of a block that reach past their request's pages, a page each at most, find
/// words there, too.
fn rounded(batch: &[u32]) -> usize {
    (batch.len() + TOGETHER).next_power_of_two()
}

/// Whether what is said about `jobs` together fits into `room` words.
pub(crate) fn fits<'j>(jobs: impl Iterator<Item = &'j Job>, room: usize) -> bool {
    let most = |job: &Job| job.draws.len() + rounded(&job.batch) + 2 * (ALIGN - 1);
    jobs.map(most).sum::<usize>() <= room
}

/// What is said about `jobs`, one after the other, and where: all draws, then all batches, of which the last may
/// be as long as there is room, which is `room` words.
pub(crate) fn lay(jobs: &[Job], room: usize) -> (Vec<u32>, Vec<Part>) {
    let mut words: Vec<u32> = Vec::new();
    let put = |words: &mut Vec<u32>, own: &[u32]| {
        let start = words.len().next_multiple_of(ALIGN);
        words.resize(start, 0);
        words.extend_from_slice(own);
        start..words.len()
    };
    let mut draws = Vec::with_capacity(jobs.len());
    draws.extend(jobs.iter().map(|job| put(&mut words, &job.draws)));
    let mut parts = Vec::with_capacity(jobs.len());
    for (i, (job, draws)) in jobs.iter().zip(draws).enumerate() {
        let mut batch = put(&mut words, &job.batch);
        if jobs[i + 1..].iter().all(|job| job.batch.is_empty()) {
            batch.end = room;
        } else {
            batch.end = batch.start + rounded(&job.batch);
            words.resize(batch.end, 0);
        }
        let place = Place { draws, batch, chosen: job.chosen };
        parts.push(Part { what: job.what.clone(), place });
    }
    (words, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::pass::From;
    use kernels::choose::cuda::Sampled;

    fn job(draws: usize, batch: usize) -> Job {
        Job {
            what: What::Absorb { rows: 4 },
            draws: (1..).take(draws).collect(),
            batch: (101..).take(batch).collect(),
            chosen: 0,
            often: Often::Yes,
        }
    }

    #[test]
    fn every_program_finds_its_own_words() {
        let jobs = [job(0, 12), job(7, 33), job(0, 90), job(5, 0)];
        let (words, parts) = lay(&jobs, 1000);
        assert!(
            fits(jobs.iter(), 1000) && !fits(jobs.iter(), words.len() - 1),
            "{} words",
            words.len()
        );
        for (job, part) in jobs.iter().zip(&parts) {
            let Place { draws, batch, .. } = &part.place;
            assert_eq!(words[draws.clone()], job.draws);
            assert!(draws.end <= batch.start && batch.end <= 1000, "{part:?}");
            assert!(draws.start % ALIGN == 0 && batch.start % ALIGN == 0, "{part:?}");
            let own = words.get(batch.start..batch.start + job.batch.len());
            assert_eq!(own.unwrap_or_default(), job.batch);
            assert!(job.batch.is_empty() || batch.len() >= job.batch.len() + TOGETHER, "{part:?}");
        }
        let apart = |a: &Part, b: &Part| a.place.batch.end <= b.place.batch.start;
        assert!(parts[..3].windows(2).all(|two| apart(&two[0], &two[1])), "{parts:?}");
    }

    /// The number of pages changes from step to step, and a graph is of places.
    #[test]
    fn places_tell_little_of_how_many_pages_there_are() {
        let of = |pages: usize| lay(&[job(4, 40 + pages), job(0, 50 + pages)], 1000).1;
        assert_eq!(of(0), of(7));
        assert_ne!(of(2), of(60));
    }

    #[test]
    fn few_rows_join() {
        let of = |rows, often| {
            let what = What::Choose { rows, from: From::All, sampled: Sampled::None };
            Job { what, often, ..job(4, 0) }
        };
        assert!(of(16, Often::Yes).joins());
        assert!(!of(32, Often::Yes).joins() && !of(16, Often::No).joins());
    }
}
