//! How a pair's programs come to its card: those of few rows wait for one another and go as one graph, others go as
//! they come.

use super::batch::Often;
use super::job::{Job, Part, Place, Said, fits, lay};
use super::pass::{Program, What};
use super::room::Scratch;
use super::run::CardPair;
use device::cuda::Cuda;
use device::{Device, Element, Pending};
use kernels::gather::cuda::Settling;

/// A program that comes so often gets a graph: a capture takes as long as several launches of it, and of a crowd's
/// shapes some come once.
const WORTH_A_GRAPH: usize = 3;

/// A step that comes so often gets one, too, instead of two, up to its drafts and from there on: that saves a launch, of
/// which a step that is left has time for many, and there are more sequences than stretches.
const WORTH_ONE_GRAPH: usize = 250;

/// Waits without going to sleep, whose end would come late: what follows is on the card's way.
pub(super) fn land<T: Element>(pending: Pending<T, Cuda>, cuda: &Cuda) -> Vec<T> {
    while !pending.arrived() && cuda.lost().is_none() {
        std::hint::spin_loop();
    }
    pending.land().unwrap_or_else(|lost| panic!("{lost}"))
}

impl CardPair {
    /// Has `what` done, with what is said of draws and of a batch: with what comes next, or at once.
    pub(super) fn submit(&mut self, (draws, batch): (Said, Said), what: What, often: Often) {
        let chosen = match what {
            What::Verify { .. } => 0,
            _ => self.behind_promises(),
        };
        let job = Job { what, draws, batch, chosen, often };
        let joins = job.joins();
        if !joins || !fits(self.waiting.iter().chain([&job]), self.room.said()) {
            self.flush();
        }
        self.waiting.push(job);
        if !joins {
            self.flush();
        }
    }

    /// Has jobs done at once, together with what waits where there is room for it all.
    pub(super) fn submit_together(&mut self, jobs: Vec<Job>) {
        if !fits(self.waiting.iter().chain(&jobs), self.room.said()) {
            self.flush();
        }
        self.waiting.extend(jobs);
        self.flush();
    }

    /// Where choices stand that spare those that were promised.
    pub(super) fn behind_promises(&self) -> usize {
        self.promised.as_ref().map_or(0, |promised| 2 * promised.all)
    }

    /// Enqueues what waits.
    pub(super) fn flush(&mut self) {
        let jobs = std::mem::take(&mut self.waiting);
        if jobs.is_empty() {
            return;
        }
        let whole = lay(&jobs, self.room.said());
        let verify = |job: &Job| matches!(job.what, What::Verify { .. });
        match jobs.iter().position(verify) {
            Some(first) if first > 0 && !self.comes_often(&whole.1) => {
                let (before, behind) = jobs.split_at(first);
                for some in [before, behind] {
                    self.send(some, lay(some, self.room.said()));
                }
            }
            _ => self.send(&jobs, whole),
        }
    }

    /// Whether such a sequence came often. This is one more of it.
    fn comes_often(&mut self, parts: &[Part]) -> bool {
        let seen = self.graphs.entry(parts.to_vec()).or_default();
        seen.times += 1;
        seen.times >= WORTH_ONE_GRAPH
    }

    /// Enqueues programs together, as they were laid out.
    fn send(&mut self, jobs: &[Job], (said, parts): (Said, Vec<Part>)) {
        let often = |job: &Job| job.often == Often::Yes;
        self.tell(&said);
        self.enqueue(parts, if jobs.iter().all(often) { Often::Yes } else { Often::No });
    }

    /// Hands words to the card, which finds there what depends on the step before.
    fn tell(&mut self, said: &Said) {
        let count = said.words.len();
        if count == 0 {
            return;
        }
        let CardPair { card, room, memory, staging, .. } = self;
        let (lane, room, gather) = (&card.lanes.forward, room.clone(), card.kernels.gather.clone());
        let staged = staging.stage(lane, &[&said.words[..], &said.bits()].concat());
        let mut scratch = memory.scratch.write(lane);
        let arguments = (lane.queue(), scratch.view(), staged.view());
        lane.launch("words", arguments, move |(queue, scratch, staged)| {
            let (from, marks) = (staged.range(0..count), staged.range(count..staged.len()));
            let all = Place { draws: 0..count, batch: count..count, chosen: 0 };
            let Scratch { mut draws, batch, refused, anchors, .. } = room.cut(scratch, &all);
            let settling = Settling { marks, refused: refused.read(), anchors: anchors.read() };
            gather.words(queue, (from, settling), draws.all(), batch);
        });
    }

    /// Enqueues a program, or a graph of it.
    fn enqueue(&mut self, parts: Vec<Part>, often: Often) {
        let CardPair { card, plan, room, memory, graphs, .. } = self;
        let (lane, kernels) = (&card.lanes.forward, card.kernels.clone());
        let (plan, room) = (plan.clone(), room.clone());
        let program = Program { kernels, plan, room, parts: parts.clone() };
        let mut guards = memory.guard(lane);
        match often {
            Often::No => lane.launch("pass", guards.given(), move |seen| program.run(seen)),
            Often::Yes => {
                let seen = graphs.entry(parts).or_default();
                seen.times += 1;
                if seen.times < WORTH_A_GRAPH {
                    return lane.launch("pass", guards.given(), move |seen| program.run(seen));
                }
                let graph = seen.graph.get_or_insert_with(|| {
                    lane.capture("pass", guards.given(), move |seen| program.run(seen))
                });
                lane.replay(graph, guards.given());
            }
        }
    }

    /// The first words of what was chosen.
    pub(super) fn read(&mut self, words: usize) -> Vec<u32> {
        let pending = self.bring(words);
        land(pending, self.card.cuda())
    }

    /// Has the first words of what was chosen brought to the host.
    pub(super) fn bring(&mut self, words: usize) -> Pending<u32, Cuda> {
        self.flush();
        let (lane, room) = (&self.card.lanes.forward, self.room.clone());
        let mut filling = self.chosen.fill(lane, words);
        let mut scratch = self.memory.scratch.write(lane);
        let arguments = (lane.queue(), scratch.view(), filling.view());
        let gather = self.card.kernels.gather.clone();
        lane.launch("choices", arguments, move |(queue, scratch, to)| {
            let (none, to) = to.split(0);
            let Scratch { chosen, refused, anchors, .. } = room.cut(scratch, &Place::default());
            let chosen = chosen.read();
            let settling = Settling {
                marks: chosen.range(0..0),
                refused: refused.read(),
                anchors: anchors.read(),
            };
            gather.words(queue, (chosen.range(0..to.len()), settling), to, none);
        });
        drop(scratch);
        filling.pending()
    }
}
