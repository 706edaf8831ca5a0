//! Programs that are enqueued together: where each finds what the host says about it, and where it leaves its
//! choices. What is said about all of them goes to the card at once, and a graph is of all of them.

use super::batch::Often;
use super::pass::What;
use kernels::gather::cuda::MOST_BLOCKS;
use std::ops::Range;

/// Most rows of a program that waits for others to be enqueued together with, unless its step is left: of more, so many sequences of shapes come that
/// few would come again.
pub const TOGETHER: usize = 16;

/// Most blocks of a pass that is left before anybody knows what it chose: what becomes of them has room, and of one more,
/// which stands for what fills the pass up.
pub const MOST_LEFT: usize = MOST_BLOCKS - 1;

/// Words that begin at a multiple of this may be read as whatever they are.
const ALIGN: usize = 4;

/// What the host says to the card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) words: Vec<u32>,
    /// Which of the words depend on what becomes of a block: see [`kernels::gather::cuda::Unsettled`].
    pub(crate) marks: Vec<usize>,
}

impl Said {
    /// Appends what is aligned, and says where it stands.
    fn put(&mut self, own: &Said) -> Range<usize> {
        let start = self.words.len().next_multiple_of(ALIGN);
        self.words.resize(start, 0);
        self.words.extend_from_slice(&own.words);
        self.marks.extend(own.marks.iter().map(|mark| start + mark));
        start..self.words.len()
    }

    /// A bit a word, of those that are marked; nothing when none is.
    pub(crate) fn bits(&self) -> Vec<u32> {
        let mut bits = Vec::new();
        if !self.marks.is_empty() {
            bits.resize(marked(self.words.len()), 0);
            self.marks.iter().for_each(|mark| bits[mark / 32] |= 1 << (mark % 32));
        }
        bits
    }
}

impl From<Vec<u32>> for Said {
    fn from(words: Vec<u32>) -> Said {
        Said { words, marks: Vec::new() }
    }
}

/// Words of the marks of so many words.
pub(crate) fn marked(words: usize) -> usize {
    words.div_ceil(32)
}

/// A program that waits to be enqueued.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) what: What,
    /// What the host says about choices, and about a pass: see [`super::batch`].
    pub(crate) draws: Said,
    pub(crate) batch: Said,
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
    let most = |job: &Job| job.draws.words.len() + rounded(&job.batch.words) + 2 * (ALIGN - 1);
    jobs.map(most).sum::<usize>() <= room
}

/// What is said about `jobs`, one after the other, and where: all draws, then all batches, of which the last may
/// be as long as there is room, which is `room` words. What accepts drafts finds the batch of the pass before it.
pub(crate) fn lay(jobs: &[Job], room: usize) -> (Said, Vec<Part>) {
    let mut said = Said::default();
    let mut draws = Vec::with_capacity(jobs.len());
    draws.extend(jobs.iter().map(|job| said.put(&job.draws)));
    let mut parts: Vec<Part> = Vec::with_capacity(jobs.len());
    for (i, (job, draws)) in jobs.iter().zip(draws).enumerate() {
        let batch = if matches!(job.what, What::Accept { .. }) {
            let verified = |part: &&Part| matches!(part.what, What::Verify { .. });
            let pass = parts.iter().rfind(verified).expect("drafts are accepted behind a pass");
            pass.place.batch.clone()
        } else if job.batch.words.is_empty() {
            // Behind its draws, wherever others' batches end: those end with pages, of which a graph is not to tell.
            let at = draws.end.next_multiple_of(ALIGN);
            at..at
        } else if jobs[i + 1..].iter().all(|job| job.batch.words.is_empty()) {
            said.put(&job.batch).start..room
        } else {
            let start = said.put(&job.batch).start;
            let end = start + rounded(&job.batch.words);
            said.words.resize(end, 0);
            start..end
        };
        let place = Place { draws, batch, chosen: job.chosen };
        parts.push(Part { what: job.what.clone(), place });
    }
    (said, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::pass::From;
    use kernels::choose::cuda::Sampled;

    fn job(draws: usize, batch: usize) -> Job {
        Job {
            what: What::Absorb { rows: 4 },
            draws: (1..).take(draws).collect::<Vec<_>>().into(),
            batch: (101..).take(batch).collect::<Vec<_>>().into(),
            chosen: 0,
            often: Often::Yes,
        }
    }

    #[test]
    fn every_program_finds_its_own_words() {
        let jobs = [job(0, 12), job(7, 33), job(0, 90), job(5, 0)];
        let (Said { words, .. }, parts) = lay(&jobs, 1000);
        assert!(
            fits(jobs.iter(), 1000) && !fits(jobs.iter(), words.len() - 1),
            "{} words",
            words.len()
        );
        for (job, part) in jobs.iter().zip(&parts) {
            let Place { draws, batch, .. } = &part.place;
            assert_eq!(words[draws.clone()], job.draws.words);
            assert!(draws.end <= batch.start && batch.end <= 1000, "{part:?}");
            assert!(draws.start % ALIGN == 0 && batch.start % ALIGN == 0, "{part:?}");
            let len = job.batch.words.len();
            let own = words.get(batch.start..batch.start + len);
            assert_eq!(own.unwrap_or_default(), job.batch.words);
            assert!(len == 0 || batch.len() >= len + TOGETHER, "{part:?}");
        }
        let apart = |a: &Part, b: &Part| a.place.batch.end <= b.place.batch.start;
        assert!(parts[..3].windows(2).all(|two| apart(&two[0], &two[1])), "{parts:?}");
    }

    /// Marks are of the words that they were put on, wherever those come to stand.
    #[test]
    fn marks_go_with_their_words() {
        let mut jobs = [job(6, 12), job(7, 33), job(0, 90)];
        jobs[0].draws.marks = vec![5];
        jobs[1].draws.marks = vec![0, 6];
        jobs[2].batch.marks = vec![89, 3];
        let (said, parts) = lay(&jobs, 1000);
        let marked = |part: &Part, mark| part.place.draws.start + mark;
        let mut want = vec![marked(&parts[0], 5), marked(&parts[1], 0), marked(&parts[1], 6)];
        want.extend([89, 3].map(|mark| parts[2].place.batch.start + mark));
        assert_eq!(said.marks, want);
        let bits = said.bits();
        assert_eq!(bits.len(), said.words.len().div_ceil(32));
        let bit = |i: usize| bits[i / 32] >> (i % 32) & 1 == 1;
        let set: Vec<usize> = (0..said.words.len()).filter(|&i| bit(i)).collect();
        want.sort_unstable();
        assert_eq!(set, want);
        assert!(Said::from(vec![1, 2]).bits().is_empty());
    }

    /// The number of pages changes from step to step, and a graph is of places.
    #[test]
    fn places_tell_little_of_how_many_pages_there_are() {
        let of = |pages: usize| lay(&[job(4, 40 + pages), job(0, 50 + pages), job(9, 0)], 1000).1;
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
