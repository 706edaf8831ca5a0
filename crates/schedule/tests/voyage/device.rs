//! A scripted device with memory: every KV slot holds the token and position last written to it,
//! and the token chosen at a position is a hash of all tokens read back through the row's pages.
//! A page that is mixed up, read stale or written while others read it changes tokens or panics.
//!
//! Steps run in order, some as soon as they are launched, some only when the host lands them.

use schedule::{
    Absorb, Bounds, Chances, Discipline, Early, FinishReason, Limits, Outcome, PlannedRow, Request,
    RowOutcome, Scheduler, SchedulerOptions, StepPlan, Text, Then, WidthPolicy, Work,
};
use std::collections::HashMap;

pub(crate) const VOCAB: u32 = 50;

/// One byte of text a token.
static PIECES: [u8; VOCAB as usize] = {
    let mut pieces = [0; VOCAB as usize];
    let mut i = 0;
    while i < pieces.len() {
        pieces[i] = b'A' + i as u8;
        i += 1;
    }
    pieces
};

fn piece(token: u32) -> &'static [u8] {
    &PIECES[token as usize..][..1]
}

/// The token that follows `tokens` under `seed`, whatever was drafted.
pub(crate) fn script(seed: u64, tokens: impl IntoIterator<Item = u32>) -> u32 {
    choice(tokens.into_iter().fold(seed, mix))
}

fn mix(hash: u64, token: u32) -> u64 {
    (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
}

fn choice(hash: u64) -> u32 {
    (mix(hash, VOCAB) >> 20) as u32 % VOCAB
}

/// What a request must end with when nobody cancels it: the serial, uncached, undrafted run.
pub(crate) fn serial(request: &Request, context: usize) -> (Vec<u32>, FinishReason) {
    let left = context - request.prompt.len();
    let cap = request.limits.max_tokens.map_or(left, |max| max.min(left));
    let (mut all, mut out) = (request.prompt.clone(), Vec::new());
    if cap == 0 {
        return (out, FinishReason::Length);
    }
    loop {
        let token = script(request.sampling.seed, all.iter().copied());
        if request.stops.ids.contains(&token) {
            return (out, FinishReason::Stop);
        }
        all.push(token);
        out.push(token);
        if out.len() == cap {
            return (out, FinishReason::Length);
        }
    }
}

/// A pool of `pages` pages and a context that fills it; blocks of 8 as asked for.
pub(crate) fn options(page_size: usize, pages: usize) -> SchedulerOptions {
    let kv_tokens = page_size * pages;
    SchedulerOptions {
        bounds: Bounds { vocab: VOCAB as usize, context: kv_tokens + 1, kv_tokens, max_width: 16 },
        page_size,
        step_tokens: 256,
        max_running: 16,
        max_waiting: 1000,
        width: 8,
        widths: WidthPolicy::Fixed,
        discipline: Discipline::Sound,
    }
}

/// A prompt of `len` ids that depends on `family` from its first token on.
pub(crate) fn prompt(family: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (family * 11 + i * (family + 1)) % VOCAB).collect()
}

/// A greedy request that only its length ends.
pub(crate) fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        limits: Limits { max_tokens: Some(max_tokens), ..Limits::default() },
        ..Request::new(prompt)
    }
}

/// How good drafts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quality {
    Perfect,
    Mixed,
    Wrong,
}

/// When a launched step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Early,
    Late,
    Mixed,
}

/// Token and position, as written last; `None` for noise.
pub(crate) type Slot = Option<(u32, usize)>;

#[derive(Clone, Copy, Debug, Default)]
struct RowState {
    len: usize,
    anchor: u32,
}

/// A planned row and its part of the page table as the step saw it.
#[derive(Clone)]
pub(crate) struct Launched {
    pub(crate) row: PlannedRow,
    pub(crate) pages: Vec<u32>,
}

pub(crate) struct Device {
    page_size: usize,
    table: HashMap<usize, Vec<u32>>,
    rows: HashMap<usize, RowState>,
    target: Vec<Slot>,
    drafter: Vec<Slot>,
    quality: Quality,
    draws: u64,
}

impl Device {
    pub(crate) fn new(pages: usize, page_size: usize, quality: Quality) -> Device {
        let slots = vec![None; pages * page_size];
        Device {
            page_size,
            table: HashMap::new(),
            rows: HashMap::new(),
            target: slots.clone(),
            drafter: slots,
            quality,
            draws: 1,
        }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.draws = self.draws.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.draws >> 33) as usize % below
    }

    /// Writes the page table and takes the step's snapshot of it.
    pub(crate) fn launch(&mut self, plan: &StepPlan) -> Vec<Launched> {
        for write in plan.table.iter() {
            let entries = self.table.entry(write.row).or_default();
            assert!(write.first <= entries.len(), "the page table would have a hole");
            entries.truncate(write.first);
            entries.extend(write.pages);
        }
        let snapshot = |row: &PlannedRow| {
            let pages = self.table[&row.row.index][..row.pages].to_vec();
            Launched { row: row.clone(), pages }
        };
        plan.rows.iter().map(snapshot).collect()
    }

    /// Runs a step. `beside` was in flight when it was planned: none of its other requests may
    /// hold a page that this step writes.
    pub(crate) fn run(&mut self, step: &[Launched], beside: &[Launched]) -> Vec<RowOutcome> {
        let mut readers: HashMap<u32, Vec<u64>> = HashMap::new();
        for launched in step.iter().chain(beside) {
            for &page in &launched.pages {
                readers.entry(page).or_default().push(launched.row.id);
            }
        }
        for Launched { row, .. } in beside {
            let same = step.iter().find(|new| new.row.row.index == row.row.index);
            assert!(same.is_none_or(|new| new.row.row == row.row), "a row is reused a step early");
        }
        let mut outcomes = Vec::new();
        for Launched { row, pages } in step {
            let (outcome, written) = self.row(row, pages);
            for position in written {
                let page = pages[position / self.page_size];
                let alone = readers[&page].iter().all(|&id| id == row.id);
                assert!(alone, "request {} writes page {page}, which others hold", row.id);
            }
            outcomes.push(outcome);
        }
        outcomes
    }

    /// What the pools hold in some pages: target and drafter.
    pub(crate) fn contents(&self, pages: &[u32]) -> (Vec<Slot>, Vec<Slot>) {
        let read = |pool: &[Slot]| {
            let page = |&page: &u32| {
                let first = page as usize * self.page_size;
                pool[first..first + self.page_size].to_vec()
            };
            pages.iter().flat_map(page).collect()
        };
        (read(&self.target), read(&self.drafter))
    }

    fn slot(&self, pages: &[u32], position: usize) -> usize {
        pages[position / self.page_size] as usize * self.page_size + position % self.page_size
    }

    fn read(&self, pages: &[u32], position: usize) -> u32 {
        match self.target[self.slot(pages, position)] {
            Some((token, at)) if at == position => token,
            other => panic!("position {position} reads {other:?}"),
        }
    }

    /// What a row computes, and the positions it wrote.
    fn row(&mut self, row: &PlannedRow, pages: &[u32]) -> (RowOutcome, std::ops::Range<usize>) {
        let state = self.rows.entry(row.row.index).or_default();
        let mut chances = Chances::default();
        let (context, tokens, drafted) = match &row.work {
            Work::Chunk { tokens, start, .. } => {
                state.len = *start;
                (*start, tokens.clone(), 0)
            }
            Work::Block { width, price, .. } => {
                let RowState { len, anchor } = *state;
                let width = (*width).min(row.limit - 1 - len);
                if width == 0 {
                    return (RowOutcome::default(), len..len);
                }
                let mut tokens = vec![anchor];
                if width > 1 {
                    self.draft(row, pages, len, width, &mut tokens);
                    let worth = judge(tokens.len() - 1, *price, len, &mut chances);
                    tokens.truncate(1 + worth);
                }
                let drafted = tokens.len() - 1;
                (len, tokens, drafted)
            }
        };
        let end = context + tokens.len();
        assert!(end <= pages.len() * self.page_size, "a row reaches past its pages");
        for (i, &token) in tokens.iter().enumerate() {
            let slot = self.slot(pages, context + i);
            self.target[slot] = Some((token, context + i));
            // The drafter's pass over the block leaves noise.
            self.drafter[slot] = None;
        }
        let outcome = RowOutcome { chances, ..self.choose(row, pages, context, &tokens, drafted) };
        let kept = match row.work {
            Work::Chunk { .. } => tokens.len(),
            Work::Block { .. } => outcome.tokens.len(),
        };
        if row.absorb == Absorb::Keep {
            for (i, &token) in tokens[..kept].iter().enumerate() {
                let slot = self.slot(pages, context + i);
                self.drafter[slot] = Some((token, context + i));
            }
        }
        let state = self.rows.get_mut(&row.row.index).expect("it was made above");
        state.len = context + kept;
        state.anchor = outcome.tokens.last().copied().unwrap_or(state.anchor);
        (outcome, context..end)
    }

    /// Appends at most `width - 1` proposals, after a look at all the context they need.
    fn draft(
        &mut self,
        row: &PlannedRow,
        pages: &[u32],
        len: usize,
        width: usize,
        tokens: &mut Vec<u32>,
    ) {
        let mut hash = row.sampling.seed;
        for position in 0..len {
            let token = self.read(pages, position);
            let seen = self.drafter[self.slot(pages, position)];
            assert_eq!(seen, Some((token, position)), "request {} drafts on noise", row.id);
            hash = mix(hash, token);
        }
        hash = mix(hash, tokens[0]);
        let silent = self.quality == Quality::Mixed && self.draw(10) == 0;
        let count = if silent { self.draw(width) } else { width - 1 };
        for _ in 0..count {
            let right = choice(hash);
            let wrong = match self.quality {
                Quality::Perfect => false,
                Quality::Mixed => self.draw(4) == 0,
                Quality::Wrong => true,
            };
            let token = if wrong { (right + 1) % VOCAB } else { right };
            tokens.push(token);
            hash = mix(hash, token);
        }
    }

    /// The target's choices over all that the row's pages hold now.
    fn choose(
        &self,
        row: &PlannedRow,
        pages: &[u32],
        context: usize,
        tokens: &[u32],
        drafted: usize,
    ) -> RowOutcome {
        if matches!(row.work, Work::Chunk { then: Then::Continue | Then::End, .. }) {
            return RowOutcome::default();
        }
        let first = context + tokens.len() - 1 - drafted;
        let before = (0..first).map(|position| self.read(pages, position));
        let mut hash = before.fold(row.sampling.seed, mix);
        let mut chosen = Vec::new();
        for j in 0..=drafted {
            hash = mix(hash, self.read(pages, first + j));
            chosen.push(choice(hash));
            if j == drafted || tokens[j + 1] != chosen[j] {
                let tokens = chosen;
                return RowOutcome { tokens, accepted: j, drafted, ..RowOutcome::default() };
            }
        }
        unreachable!("the last row has no draft to agree with")
    }
}

/// How many of so many drafts behind `len` tokens are worth `price`: each is less likely than the one
/// before it, by some share.
fn judge(drafts: usize, price: f32, len: usize, chances: &mut Chances) -> usize {
    let (mut likely, mut worth) = (1.0, 0);
    for place in 0..drafts {
        likely *= (mix(len as u64, place as u32) % 11) as f32 / 10.0;
        chances.add(likely);
        worth += usize::from(likely >= price);
    }
    worth
}

/// A launched step.
pub(crate) struct Flight {
    pub(crate) plan: StepPlan,
    pub(crate) launched: Vec<Launched>,
    beside: Vec<Launched>,
    outcomes: Option<Vec<RowOutcome>>,
}

/// What a request got.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Got {
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: Vec<u8>,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) cached: usize,
    /// Verify passes, and tokens that they committed.
    pub(crate) passes: usize,
    pub(crate) committed: usize,
    /// Prompt tokens that were reported, from the first that was asked for.
    pub(crate) reported: Vec<u32>,
    from: usize,
}

impl Got {
    /// Takes in the prompt tokens that a landed row was to report: the next ones, each with the row
    /// before it in the chunk.
    fn report(&mut self, row: &PlannedRow) {
        let Some(scores) = &row.scores else { return };
        let Work::Chunk { tokens, start, .. } = &row.work else {
            panic!("a block reports {row:?}")
        };
        assert_eq!(scores.first, self.from + self.reported.len(), "reported twice, or not at all");
        let rows = scores.first.max(1) - 1..(scores.first + scores.tokens.len()).max(2) - 1;
        assert!(*start <= rows.start && rows.end <= start + tokens.len(), "{rows:?} of {row:?}");
        self.reported.extend(&scores.tokens);
    }
}

/// A scheduler, a device one step behind, and what came out.
pub(crate) struct Voyage {
    pub(crate) scheduler: Scheduler,
    pub(crate) device: Device,
    pub(crate) flying: Option<Flight>,
    pub(crate) got: HashMap<u64, Got>,
    pub(crate) steps: usize,
    pace: Pace,
}

impl Voyage {
    pub(crate) fn new(options: SchedulerOptions, quality: Quality, pace: Pace) -> Voyage {
        let page_size = options.page_size;
        let scheduler = Scheduler::new(options);
        let device = Device::new(scheduler.pages().total, page_size, quality);
        Voyage { scheduler, device, flying: None, got: HashMap::new(), steps: 0, pace }
    }

    pub(crate) fn submit(&mut self, id: u64, request: Request) {
        let from = request.prompt_logprobs.map_or(0, |asked| asked.from);
        self.scheduler.submit(id, request).expect("the request is in bounds");
        self.got.insert(id, Got { from, ..Got::default() });
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        let youngest = self.flying.as_mut().map(|flight| &mut flight.plan);
        let mut text = Text::default();
        if let Some(outcome) = self.scheduler.end(id, Early::Cancelled, youngest, &mut text) {
            self.take(&outcome, &text, None);
        }
    }

    /// One turn of the loop: plans and launches a step, then lands the one before it.
    pub(crate) fn turn(&mut self) {
        let next = self.scheduler.plan().map(|plan| self.launch(plan));
        assert!(
            next.is_some() || self.flying.is_some() || self.scheduler.is_idle(),
            "nothing is planned, nothing is in flight, and somebody waits"
        );
        let before = std::mem::replace(&mut self.flying, next);
        if let Some(flight) = before {
            self.land(flight);
        }
        self.check();
    }

    fn launch(&mut self, plan: StepPlan) -> Flight {
        self.steps += 1;
        assert!(!plan.rows.is_empty() && plan.rows.len() <= self.scheduler.rows().1);
        let launched = self.device.launch(&plan);
        let beside = self.flying.as_ref().map_or_else(Vec::new, |flight| flight.launched.clone());
        let early = match self.pace {
            Pace::Early => true,
            Pace::Late => false,
            Pace::Mixed => self.device.draw(2) == 0,
        };
        let mut flight = Flight { plan, launched, beside, outcomes: None };
        if early {
            if let Some(before) = &mut self.flying {
                run(&mut self.device, before);
            }
            run(&mut self.device, &mut flight);
        }
        flight
    }

    fn land(&mut self, mut flight: Flight) {
        run(&mut self.device, &mut flight);
        let outcomes = flight.outcomes.expect("it has just run");
        let rows = flight.plan.rows.clone();
        let youngest = self.flying.as_mut().map(|flight| &mut flight.plan);
        let mut text = Text::default();
        for outcome in self.scheduler.land(flight.plan, &outcomes, youngest, piece, &mut text) {
            let planned = outcome.planned.expect("landed rows were planned");
            assert_eq!(rows[planned].id, outcome.id);
            self.take(&outcome, &text, Some((&rows[planned], &outcomes[planned])));
        }
    }

    fn take(&mut self, outcome: &Outcome, text: &Text, part: Option<(&PlannedRow, &RowOutcome)>) {
        let got = self.got.get_mut(&outcome.id).expect("an outcome of a submitted request");
        assert_eq!(got.finish, None, "request {} ends twice or goes on", outcome.id);
        got.cached = outcome.cached;
        got.finish = outcome.committed.finish;
        text.runs(outcome.committed.text.clone()).for_each(|(_, run)| got.text.extend(run));
        if let Some((planned, row)) = part {
            got.report(planned);
            got.tokens.extend(&row.tokens[..outcome.committed.kept]);
            if matches!(planned.work, Work::Block { .. }) && outcome.committed.taken > 0 {
                got.passes += 1;
                got.committed += outcome.committed.taken;
            }
        }
        if got.finish.is_some() {
            let text: Vec<u8> =
                got.tokens.iter().flat_map(|&token| piece(token)).copied().collect();
            assert_eq!(got.text, text, "text is lost or said twice");
        }
    }

    fn check(&self) {
        let pages = self.scheduler.pages();
        assert_eq!(pages.free + pages.cached + pages.in_use, pages.total);
        if self.idle() {
            let (free, total) = self.scheduler.rows();
            assert_eq!((pages.in_use, free), (0, total), "something was not given back");
        }
    }

    /// Asserts that a request got its serial, uncached, undrafted run.
    pub(crate) fn assert_serial(&self, id: u64, request: &Request, context: usize) {
        let (tokens, finish) = serial(request, context);
        let got = &self.got[&id];
        assert_eq!((&got.tokens, got.finish), (&tokens, Some(finish)), "request {id}");
    }

    /// The step in flight mentions a request.
    pub(crate) fn in_flight(&self, id: u64) -> bool {
        self.flying.iter().flat_map(|flight| &flight.plan.rows).any(|row| row.id == id)
    }

    pub(crate) fn idle(&self) -> bool {
        self.scheduler.is_idle() && self.flying.is_none()
    }

    /// Turns until nothing is left to do.
    pub(crate) fn finish(&mut self) {
        for _ in 0..20_000 {
            if self.idle() {
                return;
            }
            self.turn();
        }
        panic!("the voyage does not end");
    }
}

fn run(device: &mut Device, flight: &mut Flight) {
    if flight.outcomes.is_none() {
        flight.outcomes = Some(device.run(&flight.launched, &flight.beside));
    }
}
