//! A pair on a card, one pass after the other: the host says what a pass is for and the card does it,
//! as a graph where passes of its shape come again. Nothing here waits, besides those who ask for what
//! the card found. Small passes are enqueued when somebody asks, together: a step of few rows is one graph, from
//! what the drafter takes in to what is chosen behind its drafts. A step may be left, too: the card accepts what it
//! chose, and the next one begins where that ends.

use super::batch::{Batch, Kind, Often, filled};
use super::card::Card;
use super::job::{Job, MOST_LEFT, Part, Place, Said, marked};
use super::left::{Drafting, Left, Promised};
use super::load::CardModels;
use super::pass::{Asked, From, Ids, Taps, Tokens, What, times};
use super::plan::Plan;
use super::queue::land;
use super::room::{Capacity, Room, SLAB, draw_words};
use crate::pass::Pass;
use device::cuda::Cuda;
use device::{
    Device, Forward, Graph, HeldQueue, HeldView, HeldViewMut, Lane, OnQueue, Readback, Reading,
    Reason, Shared, Staging, View, ViewMut, Writing,
};
use kernels::choose::cuda::{Sampled, Written};
use kernels::choose::{Draw, Shape};
use kernels::gather::cuda::{Unsettled, is_promised, promise};
use kernels::gemm::cuda::{MOST_ROWS, stair};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Arrays that may be on their way to the card at once: those of a step, and some.
const STAGED: usize = 16;

/// Arrays of choices that may be on their way from the card at once: those of two steps that were left, and one that is
/// waited for.
const CHOSEN: usize = 3;

/// The arguments of a pass.
type Given<'g> = (
    (OnQueue<Forward, Cuda>, View<'g, u16, Forward, Cuda>, View<'g, f32, Forward, Cuda>),
    (ViewMut<'g, u16, Forward, Cuda>, ViewMut<'g, u64, Forward, Cuda>),
);
/// What a graph holds of them.
type Held = (
    (HeldQueue, HeldView<u16, Cuda>, HeldView<f32, Cuda>),
    (HeldViewMut<u16, Cuda>, HeldViewMut<u64, Cuda>),
);

/// A program whose shape comes again: how often it came, and its graph.
#[derive(Default)]
pub(super) struct Captured {
    pub(super) times: usize,
    pub(super) graph: Option<Graph<Forward, Held, Cuda>>,
}

/// The card's memory of a pair.
pub(super) struct Memory {
    weights: Shared<u16, Forward, Cuda>,
    vectors: Shared<f32, Forward, Cuda>,
    /// Keys of all layers, then values of all layers.
    kv: Shared<u16, Forward, Cuda>,
    pub(super) scratch: Shared<u64, Forward, Cuda>,
}

/// Guards of it all.
pub(super) struct Guards<'g> {
    lane: &'g Lane<Forward, Cuda>,
    weights: Reading<'g, u16, Forward, Forward, Cuda>,
    vectors: Reading<'g, f32, Forward, Forward, Cuda>,
    kv: Writing<'g, u16, Forward, Cuda>,
    scratch: Writing<'g, u64, Forward, Cuda>,
}

impl Memory {
    pub(super) fn guard<'g>(&'g mut self, lane: &'g Lane<Forward, Cuda>) -> Guards<'g> {
        Guards {
            lane,
            weights: self.weights.read(lane),
            vectors: self.vectors.read(lane),
            kv: self.kv.write(lane),
            scratch: self.scratch.write(lane),
        }
    }
}

impl Guards<'_> {
    /// The arguments of a pass.
    pub(super) fn given(&mut self) -> Given<'_> {
        let queue = self.lane.queue();
        ((queue, self.weights.view(), self.vectors.view()), (self.kv.view(), self.scratch.view()))
    }
}

/// A committed row of the last pass: its position and slot.
type Kept = (u32, u32);

/// What was chosen for some rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// A token for each.
    pub tokens: Vec<u32>,
    /// How likely each is by the drafter's logits, as [`kernels::choose::confidences`] says, where ids are
    /// proposed; none where they are not.
    pub confidences: Vec<f32>,
}

/// A pair with its memory.
pub struct CardPair {
    pub(super) card: Card,
    pub(super) plan: Arc<Plan>,
    pub(super) room: Arc<Room>,
    pub(super) memory: Memory,
    pub(super) graphs: HashMap<Vec<Part>, Captured>,
    /// What is not enqueued yet, in order.
    pub(super) waiting: Vec<Job>,
    /// Promised, and nobody asked yet for what was chosen behind it.
    pub(super) promised: Option<Arc<Promised>>,
    pub(super) staging: Staging<u32, Forward, Cuda>,
    pub(super) chosen: Readback<u32, Forward, Cuda>,
    logits: Readback<f32, Forward, Cuda>,
    /// Rows of the last pass of the target, those that fill it up included.
    rows: usize,
    /// Those of them that are committed and that the drafter does not know yet.
    kept: Vec<Option<Kept>>,
}

/// How much of the card's memory a pair takes beside its weights.
fn needed(plan: &Plan, capacity: &Capacity) -> (usize, usize) {
    let room = Room::new(plan, capacity);
    let kv = 2 * plan.kv_layers() * room.pool(plan) * size_of::<u16>();
    (kv, room.words() * size_of::<u64>())
}

impl CardModels {
    /// Bytes of KV memory and of working memory that `capacity` takes.
    pub fn bytes(&self, capacity: &Capacity) -> (usize, usize) {
        needed(&self.plan, capacity)
    }

    /// Makes memory for passes.
    ///
    /// # Panics
    /// When the card has no room for it; [`CardModels::bytes`] says how much is taken.
    pub fn with_memory(self, capacity: &Capacity) -> CardPair {
        let CardModels { card, plan, weights, vectors, .. } = self;
        let (cuda, room) = (card.cuda(), Room::new(&plan, capacity));
        let kv = 2 * plan.kv_layers() * room.pool(&plan);
        CardPair {
            memory: Memory {
                weights,
                vectors,
                kv: Shared::new(cuda, "KV memory", kv),
                scratch: Shared::new(cuda, "working memory", room.words()),
            },
            staging: Staging::new(
                cuda,
                "words of passes",
                STAGED,
                room.said() + marked(room.said()),
            ),
            chosen: Readback::new(cuda, "choices", CHOSEN, room.chosen()),
            logits: Readback::new(cuda, "logits", 1, SLAB * plan.vocab),
            graphs: HashMap::new(),
            waiting: Vec::new(),
            promised: None,
            plan: Arc::new(plan),
            room: Arc::new(room),
            rows: 0,
            kept: Vec::new(),
            card,
        }
    }
}

/// The draw of a row that nobody asked for.
const NOTHING: Draw =
    Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };

/// The words of `draws`, filled up to `rows`: see [`Program::choose`].
fn words_of(draws: &[Draw], rows: usize) -> Vec<u32> {
    let mut words = vec![0; draw_words(rows)];
    for (i, draw) in draws.iter().enumerate() {
        words[2 * i] = draw.seed as u32;
        words[2 * i + 1] = (draw.seed >> 32) as u32;
        words[2 * rows + i] = draw.temperature.to_bits();
        words[3 * rows + i] = draw.position;
    }
    words
}

/// What is said of how some rows of `pass` draw, of `filled` in all.
fn said_of(pass: &Pass, (rows, draws): (&[usize], &[Draw]), filled: usize) -> Said {
    let mut every = vec![(None, NOTHING); filled];
    for (&row, draw) in rows.iter().zip(draws) {
        every[row] = (pass.behind(row), *draw);
    }
    let all: Vec<Draw> = every.iter().map(|(_, draw)| *draw).collect();
    let mut said = Said::from(words_of(&all, filled));
    said.settle(filled, every.iter().map(|(behind, draw)| (*behind, draw)));
    said
}

impl Said {
    /// Marks the positions of draws, `filled` in all, that are settled by what becomes of a block.
    fn settle<'d>(
        &mut self,
        filled: usize,
        draws: impl Iterator<Item = (Option<usize>, &'d Draw)>,
    ) {
        for (i, (behind, draw)) in draws.enumerate() {
            if let Some(block) = behind {
                let at = 3 * filled + i;
                self.words[at] = Unsettled::Less(draw.position as usize).behind(block);
                self.marks.push(at);
            }
        }
    }
}

fn sampled(draws: &[Draw]) -> Sampled {
    if draws.iter().any(|draw| draw.temperature > 0.0) { Sampled::Some } else { Sampled::None }
}

/// Row numbers in runs that follow one another: first, and how many.
fn runs(rows: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &row in rows {
        match runs.last_mut() {
            Some(run) if run.end == row => run.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

/// So many rows as a graph has them, and whether there is one.
fn often(rows: usize, most: usize) -> (usize, Often) {
    filled(rows, most).map_or((rows, Often::No), |filled| (filled, Often::Yes))
}

/// Who says which tokens `pass` is of.
fn tokens_of(pass: &Pass) -> Tokens {
    let promised = pass.tokens.iter().copied().any(is_promised);
    if promised { Tokens::Promised } else { Tokens::Told }
}

impl CardPair {
    /// Runs the target over `pass`, storing the keys and values of its rows at their slots. Tokens may be what
    /// [`CardPair::promise`] said. Returns while the card works, or before: a pass of few rows begins when
    /// somebody asks for its results, or with [`CardPair::finish`].
    pub fn forward(&mut self, pass: &Pass, taps: Taps) {
        let Batch { said, cut, often } = self.rows_of(pass);
        let what = What::Verify { cut, taps, tokens: tokens_of(pass) };
        self.submit((Said::default(), said), what, often);
    }

    /// Words of the target's next pass, behind all that the drafter has to take in of the last one.
    fn rows_of(&mut self, pass: &Pass) -> Batch {
        self.settle();
        let heads = self.plan.target.sizes.heads;
        let batch = Batch::new(pass, Kind::Causal, &self.room, heads);
        self.rows = batch.cut.regions.rows;
        self.kept.clear();
        batch
    }

    /// Runs the target over `pass`, chooses behind each of its rows, and accepts what was chosen of its blocks: the
    /// next pass of target and drafter may begin behind those, as [`crate::pass::Start::Behind`] says. Draws have no
    /// filters. Returns while the card works.
    ///
    /// # Panics
    /// With another number of draws than rows, more than [`MOST_LEFT`] blocks, or more rows than are accepted at once.
    pub fn leave(&mut self, pass: &Pass, taps: Taps, draws: &[Draw]) -> Left {
        assert_eq!(draws.len(), pass.rows(), "all rows of a step that is left choose");
        let Batch { said, cut, often } = self.rows_of(pass);
        let (regions, chosen) = (cut.regions, self.behind_promises());
        assert!(pass.spans.len() <= MOST_LEFT, "{} blocks are not left", pass.spans.len());
        let job = |(draws, batch), what, chosen| Job { what, draws, batch, chosen, often };
        let verify = What::Verify { cut, taps, tokens: tokens_of(pass) };
        let rows: Vec<usize> = (0..draws.len()).collect();
        let asked = said_of(pass, (&rows, draws), regions.rows);
        let choose = What::Choose { rows: regions.rows, from: From::All, sampled: sampled(draws) };
        self.submit_together(vec![
            job((Said::default(), said), verify, 0),
            job((asked, Said::default()), choose, chosen),
            job((Said::default(), Said::default()), What::Accept { regions }, chosen),
        ]);
        let pending = self.bring(chosen + pass.rows());
        Left::new(pending, self.card.cuda(), chosen, self.promised.take())
    }

    /// Numbers of rows of the target's passes, ascending: one of fewer rows costs what one of the next of them does.
    pub fn stairs(&self) -> Vec<usize> {
        let next = |&last: &usize| Some(stair(last + 1));
        std::iter::successors(Some(1), next).take_while(|&rows| rows <= self.room.rows).collect()
    }

    /// Chooses the next token after each of some rows of the target's last pass, greedily or with noise:
    /// filters are not looked at.
    pub fn choose(&mut self, rows: &[usize], draws: &[Draw]) -> Found {
        let (filled, often) = often(rows.len(), self.room.rows);
        let from = if rows.iter().copied().eq(0..rows.len()) { From::All } else { From::Picked };
        if from == From::Picked {
            self.pick(rows);
        }
        let what = What::Choose { rows: filled, from, sampled: sampled(draws) };
        self.submit((words_of(draws, filled).into(), Said::default()), what, often);
        self.found(rows.len(), filled, Ids::All)
    }

    /// As [`CardPair::choose`], with the filters of the draws, among some ids and after rows of the
    /// drafter's last pass or the target's.
    pub fn filter(&mut self, rows: &[usize], draws: &[Draw], ids: Ids) -> Found {
        let (filled, often) = often(rows.len(), self.room.rows);
        let mut written = Written::new(self.width(ids));
        let fill = std::iter::repeat(&NOTHING);
        draws
            .iter()
            .chain(fill)
            .take(filled)
            .for_each(|draw| written.push(draw, &Shape::default()));
        self.rule((rows, ids), (draws, &written), (filled, often))
    }

    /// As [`CardPair::filter`], with what shapes do to the logits first. A shape has
    /// [`super::MOST_ADDITIONS`] at most.
    pub fn shape(
        &mut self,
        rows: &[usize],
        draws: &[Draw],
        shapes: &[Shape<'_>],
        ids: Ids,
    ) -> Found {
        let (mut found, mut done) = (Found::default(), 0);
        while done < rows.len() {
            let mut written = Written::new(self.width(ids));
            let mut end = done;
            while end < rows.len().min(done + SLAB)
                && written.len() + written.most(&shapes[end]) <= self.room.rules
            {
                written.push(&draws[end], &shapes[end]);
                end += 1;
            }
            assert!(end > done, "there is room for the rules of one row");
            let some = (&rows[done..end], ids);
            let more = self.rule(some, (&draws[done..end], &written), (end - done, Often::No));
            found.tokens.extend(more.tokens);
            found.confidences.extend(more.confidences);
            done = end;
        }
        found
    }

    /// Chooses for some rows by the rules that were written for them, and for more up to `filled`.
    fn rule(
        &mut self,
        (rows, ids): (&[usize], Ids),
        (draws, written): (&[Draw], &Written<'_>),
        (filled, often): (usize, Often),
    ) -> Found {
        self.pick(rows);
        let words = [words_of(draws, filled), written.words()].concat();
        let lists = written.lists();
        let what = What::Rule { rows: filled, ids, lists };
        self.submit((words.into(), Said::default()), what, often);
        self.found(rows.len(), filled, ids)
    }

    /// How many of some ids there are that may be chosen.
    fn width(&self, ids: Ids) -> usize {
        match ids {
            Ids::All => self.room.allowed,
            Ids::Proposed => self.room.proposed,
        }
    }

    /// The logits of up to [`SLAB`] rows of the last pass, the drafter's or the target's, for some ids.
    pub fn logits(&mut self, rows: &[usize], ids: Ids) -> Vec<f32> {
        assert!(rows.len() <= SLAB, "logits of {} rows at once", rows.len());
        self.pick(rows);
        let what = What::Logits { rows: rows.len(), ids };
        self.submit((Said::default(), Said::default()), what, Often::No);
        let width = match ids {
            Ids::All => self.plan.vocab,
            Ids::Proposed => self.room.proposed,
        };
        let (lane, room) = (&self.card.lanes.forward, self.room.clone());
        let mut filling = self.logits.fill(lane, rows.len() * width);
        let mut scratch = self.memory.scratch.write(lane);
        let arguments = (lane.queue(), scratch.view(), filling.view());
        lane.launch("logits", arguments, move |(queue, scratch, to)| {
            let logits = room.cut(scratch, &Place::default()).logits;
            queue.copy(logits.read().range(0..to.len()), to);
        });
        drop(scratch);
        land(filling.pending(), self.card.cuda())
    }

    /// Runs the drafter over the blocks of `pass` and chooses for some of its rows, each as its draw says.
    ///
    /// # Panics
    /// Without a drafter, and when no row is asked for.
    pub fn draft(&mut self, pass: &Pass, rows: &[usize], draws: &[Draw]) -> Found {
        self.start(pass, rows, draws).found()
    }

    /// As [`CardPair::draft`], while nobody waits.
    ///
    /// # Panics
    /// As [`CardPair::draft`], and while the target has not chosen behind a promise.
    pub fn start(&mut self, pass: &Pass, rows: &[usize], draws: &[Draw]) -> Drafting {
        assert!(self.promised.is_none(), "what was promised is asked for first");
        let batch = self.blocks(pass);
        let all = batch.cut.regions.rows;
        if all <= MOST_ROWS {
            self.draft_all(batch, pass, rows, draws);
            let pending = self.bring(all + pass.rows());
            return Drafting::new((pending, self.card.cuda()), all, rows.to_vec());
        }
        let Batch { said, cut, often: its } = batch;
        let (filled, _) = often(rows.len(), self.room.rows);
        let mut asked = Said::from(words_of(draws, filled));
        asked.settle(filled, rows.iter().map(|&row| pass.behind(row)).zip(draws));
        let first = *rows.first().expect("a row that chooses");
        let numbers = rows.iter().chain(std::iter::repeat(&first)).take(filled);
        asked.words.extend(numbers.map(|&row| u32::try_from(row).expect("a pass has few rows")));
        let what = What::Draft { cut, asked: Asked::Some(filled), sampled: sampled(draws) };
        self.submit((asked, said), what, its);
        let pending = self.bring(filled + rows.len());
        Drafting::new((pending, self.card.cuda()), filled, (0..rows.len()).collect())
    }

    /// As [`CardPair::draft`], for the target's next pass, which takes the choices as they are made: returns what
    /// stands for that of each row among the tokens of that pass, and what they were, once somebody knows what was
    /// chosen behind them.
    ///
    /// # Panics
    /// As [`CardPair::draft`]; with more rows than are multiplied together, and while the target has not chosen
    /// behind the last promise.
    pub fn promise(
        &mut self,
        pass: &Pass,
        rows: &[usize],
        draws: &[Draw],
    ) -> (Vec<u32>, Arc<Promised>) {
        assert!(self.promised.is_none(), "one promise at a time");
        let batch = self.blocks(pass);
        let all = batch.cut.regions.rows;
        assert!(all <= MOST_ROWS, "{all} rows are not drafted at once");
        self.draft_all(batch, pass, rows, draws);
        let promised = Arc::new(Promised::new(all, rows));
        self.promised = Some(promised.clone());
        (rows.iter().copied().map(promise).collect(), promised)
    }

    /// Words of the drafter's blocks, which may see all that was committed.
    fn blocks(&mut self, pass: &Pass) -> Batch {
        self.settle();
        let drafter = self.plan.drafter.as_ref().expect("a pair with a drafter");
        Batch::new(pass, Kind::Block, &self.room, drafter.body.sizes.heads)
    }

    /// Drafts for all rows of a pass: the head reads its weight once, for some of them or all.
    fn draft_all(&mut self, batch: Batch, pass: &Pass, rows: &[usize], draws: &[Draw]) {
        let Batch { said, cut, often } = batch;
        let all = cut.regions.rows;
        let asked = said_of(pass, (rows, draws), all);
        let what = What::Draft { cut, asked: Asked::All, sampled: sampled(draws) };
        self.submit((asked, said), what, often);
    }

    /// The drafter is to know the rows of the last pass from `first` on, at these positions and slots: they are
    /// committed, or nobody reads those slots before they are written again.
    pub fn keep(&mut self, first: usize, positions: &[u32], slots: &[u32]) {
        let end = first + positions.len();
        self.kept.resize(end.max(self.kept.len()), None);
        let kept = positions.iter().copied().zip(slots.iter().copied());
        self.kept[first..end].iter_mut().zip(kept).for_each(|(to, kept)| *to = Some(kept));
    }

    /// Lets the drafter take in what was kept. Returns while the card works.
    pub fn settle(&mut self) {
        if self.kept.iter().all(Option::is_none) {
            return;
        }
        let rows = self.rows;
        let mut words = vec![0; 3 * rows];
        let nowhere = self.room.nowhere() * self.room.page_size as u32;
        words[2 * rows..].fill(nowhere);
        for (row, (position, slot)) in
            self.kept.iter().enumerate().filter_map(|(i, kept)| kept.map(|kept| (i, kept)))
        {
            words[row] = position;
            words[2 * rows + row] = slot;
        }
        self.kept.clear();
        let often = often(rows, rows).1;
        self.submit((Said::default(), words.into()), What::Absorb { rows }, often);
    }

    /// Waits for everything that was asked for.
    pub fn finish(&mut self) {
        self.flush();
        let (cuda, event) = (self.card.cuda(), self.card.lanes.forward.record());
        while !cuda.reached(&event) && cuda.lost().is_none() {
            std::hint::spin_loop();
        }
        cuda.land(&event, Reason::Results).unwrap_or_else(|lost| panic!("{lost}"));
    }

    /// Gathers normed outputs of the last pass for the head.
    fn pick(&mut self, rows: &[usize]) {
        self.flush();
        let (lane, room) = (&self.card.lanes.forward, self.room.clone());
        let (runs, hidden) = (runs(rows), self.plan.target.sizes.hidden);
        let mut scratch = self.memory.scratch.write(lane);
        lane.launch("pick", (lane.queue(), scratch.view()), move |(queue, scratch)| {
            let mut scratch = room.cut(scratch, &Place::default());
            let mut at = 0;
            for run in runs {
                let to = at..at + run.len() * hidden;
                at = to.end;
                let from = scratch.hidden.read().range(times(&run, hidden));
                queue.copy(from, scratch.picked.range(to));
            }
        });
    }

    /// The choices that were made last for the first `rows` rows, of `filled`.
    fn found(&mut self, rows: usize, filled: usize, ids: Ids) -> Found {
        let before = self.behind_promises();
        let mut words = self.read(match ids {
            Ids::All => before + rows,
            // Both in one copy.
            Ids::Proposed => before + filled + rows,
        });
        let own = words.split_off(before);
        if let Some(promised) = self.promised.take() {
            promised.keep(words);
        }
        let mut found = Found::new(own, filled);
        found.tokens.truncate(rows);
        found
    }
}

impl Found {
    /// Of words: a choice for each of `rows` rows, then perhaps how sure the drafter is of some of them.
    pub(super) fn new(mut words: Vec<u32>, rows: usize) -> Found {
        let confidences = words.get(rows..).unwrap_or_default();
        let confidences = confidences.iter().copied().map(f32::from_bits).collect();
        words.truncate(rows);
        Found { tokens: words, confidences }
    }

    /// What was found for some of its rows.
    pub(super) fn of(&self, rows: &[usize]) -> Found {
        Found {
            tokens: rows.iter().map(|&row| self.tokens[row]).collect(),
            confidences: rows.iter().map(|&row| self.confidences[row]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_runs() {
        assert!(runs(&[]).is_empty());
        assert_eq!(runs(&[3, 4, 5, 9, 11, 12]), [3..6, 9..10, 11..13]);
    }

    #[test]
    fn graphs_are_for_few_numbers_of_rows() {
        let of = |rows| often(rows, 1024);
        let few = [1, 2, 3, 33, 65, 129, 193, 300, 512];
        let filled = [1, 2, 4, 64, 128, 192, 256, 384, 512];
        assert_eq!(few.map(of), filled.map(|rows| (rows, Often::Yes)));
        assert_eq!(of(513), (513, Often::No));
        assert_eq!(often(3, 3), (3, Often::No));
        assert_eq!(often(200, 255), (200, Often::No));
    }

    #[test]
    fn a_draw_is_where_the_card_looks_for_it() {
        let draw = |seed, position| Draw {
            temperature: 0.5,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
            position,
        };
        let words = words_of(&[draw(7, 3), draw(0x1_0000_0002, 9)], 4);
        let half = 0.5f32.to_bits();
        assert_eq!(words, [7, 0, 2, 1, 0, 0, 0, 0, half, half, 0, 0, 3, 9, 0, 0]);
    }
}
