//! Programs on the simulated device under thousands of seeds: the fence that Slipstream runs on
//! leaves no race and no wrong value, and each broken one is caught.

use device::{
    Device, Forward, Lane, LaneId, Lanes, Plan, ReadDone, Readback, Reading, Reason, Role,
    Schedule, Shared, Sim, SimOptions,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

const SEEDS: u64 = 10_000;

/// What one run found.
struct Found {
    races: usize,
    wrong: u32,
}

/// Runs that raced and runs that saw a wrong value.
fn count(read_done: ReadDone, run: impl Fn(&Sim, u64) -> u32) -> (u64, u64) {
    let (mut raced, mut wrong) = (0, 0);
    for seed in 0..SEEDS {
        let sim = Sim::with(SimOptions { seed, read_done, ..SimOptions::default() });
        let found = Found { wrong: run(&sim, seed), races: sim.races().len() };
        raced += u64::from(found.races > 0);
        wrong += u64::from(found.wrong > 0);
    }
    println!("{read_done:?}: {raced} of {SEEDS} seeds race, {wrong} give wrong values");
    (raced, wrong)
}

/// Wrong values, counted by jobs.
#[derive(Clone, Default)]
struct Wrong(Arc<AtomicU32>);

impl Wrong {
    /// Launches a job that compares what `reading` views with `want`.
    fn expect<W: Role, R: Role>(
        &self,
        lane: &Lane<R, Sim>,
        reading: &Reading<'_, u32, W, R, Sim>,
        want: &[u32],
    ) {
        let (wrong, want) = (self.0.clone(), want.to_vec());
        lane.launch("compare", reading.view(), move |seen| {
            wrong.fetch_add(u32::from(seen != want), Ordering::Relaxed);
        });
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Twelve overlapped steps over one table: the schedule lane writes a row, then the forward and
/// plan lanes read them all; each step lands while the next runs.
fn steps(sim: &Sim, _: u64) -> u32 {
    const ROWS: usize = 4;
    let (lanes, wrong) = (Lanes::new(sim), Wrong::default());
    let mut table: Shared<u32, Schedule, Sim> = Shared::new(sim, "table", ROWS);
    let (mut want, mut before) = ([0; ROWS], None);
    for step in 0..12 {
        let row = step as usize % ROWS;
        let mut writing = table.write(&lanes.schedule);
        lanes.schedule.launch("row", writing.range(row..row + 1), move |row| row[0] = step);
        drop(writing);
        want[row] = step;
        let (forward, plan) = (table.read(&lanes.forward), table.read(&lanes.plan));
        wrong.expect(&lanes.forward, &forward, &want);
        wrong.expect(&lanes.plan, &plan, &want);
        drop((forward, plan));
        if let Some(event) = before.replace(lanes.forward.record()) {
            sim.land(&event, Reason::Results).unwrap();
        }
    }
    sim.drain();
    wrong.count()
}

#[test]
fn overlapped_steps() {
    assert_eq!(count(ReadDone::PerLane, steps), (0, 0));
    for mutant in [ReadDone::OneSlot, ReadDone::Missing] {
        let (raced, wrong) = count(mutant, steps);
        assert_eq!(raced, SEEDS, "{mutant:?} raced in {raced} seeds");
        assert!(wrong > SEEDS / 4, "{mutant:?} gave wrong values in {wrong} seeds");
    }
}

/// A source of choices (xorshift64*, Vigna 2016).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

const LEN: usize = 6;

/// A buffer and what it must hold once everything launched so far has run.
struct Model<W: Role> {
    buffer: Shared<u32, W, Sim>,
    want: [u32; LEN],
}

impl<W: Role> Model<W> {
    fn new(sim: &Sim, label: &'static str) -> Self {
        Model { buffer: Shared::new(sim, label, LEN), want: [0; LEN] }
    }

    fn write(&mut self, lane: &Lane<W, Sim>, choices: &mut Choices, value: u32) {
        let start = choices.below(LEN);
        let range = start..start + 1 + choices.below(LEN - start);
        let mut writing = self.buffer.write(lane);
        lane.launch("write", writing.range(range.clone()), move |part| part.fill(value));
        self.want[range].fill(value);
    }

    /// Up to four lanes hold a read at once; each launches one or two jobs.
    fn read(&self, lanes: &Lanes<Sim>, choices: &mut Choices, wrong: &Wrong) {
        let who = 1 + choices.below(15);
        let on = |lane: LaneId| who >> lane.index() & 1 == 1;
        let buffer = &self.buffer;
        let schedule = on(LaneId::Schedule).then(|| buffer.read(&lanes.schedule));
        let plan = on(LaneId::Plan).then(|| buffer.read(&lanes.plan));
        let forward = on(LaneId::Forward).then(|| buffer.read(&lanes.forward));
        let copies = on(LaneId::Copies).then(|| buffer.read(&lanes.copies));
        for _ in 0..1 + choices.below(2) {
            schedule.iter().for_each(|r| wrong.expect(&lanes.schedule, r, &self.want));
            plan.iter().for_each(|r| wrong.expect(&lanes.plan, r, &self.want));
            forward.iter().for_each(|r| wrong.expect(&lanes.forward, r, &self.want));
            copies.iter().for_each(|r| wrong.expect(&lanes.copies, r, &self.want));
        }
    }
}

/// Sixty random writes, reads and landings over buffers of three writers.
fn random_program(sim: &Sim, seed: u64) -> u32 {
    let mut choices = Choices(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (lanes, wrong) = (Lanes::new(sim), Wrong::default());
    let mut table: Model<Schedule> = Model::new(sim, "table");
    let mut metadata: Model<Plan> = Model::new(sim, "metadata");
    let mut lengths: Model<Forward> = Model::new(sim, "lengths");
    for value in 1..=60 {
        match choices.below(8) {
            0 => table.write(&lanes.schedule, &mut choices, value),
            1 => metadata.write(&lanes.plan, &mut choices, value),
            2 => lengths.write(&lanes.forward, &mut choices, value),
            3 | 4 => table.read(&lanes, &mut choices, &wrong),
            5 => metadata.read(&lanes, &mut choices, &wrong),
            6 => lengths.read(&lanes, &mut choices, &wrong),
            _ => {
                let event = match choices.below(4) {
                    0 => lanes.schedule.record(),
                    1 => lanes.plan.record(),
                    2 => lanes.forward.record(),
                    _ => lanes.copies.record(),
                };
                sim.land(&event, Reason::Results).unwrap();
            }
        }
    }
    sim.drain();
    wrong.count()
}

#[test]
fn random_programs() {
    assert_eq!(count(ReadDone::PerLane, random_program), (0, 0));
    for mutant in [ReadDone::OneSlot, ReadDone::Missing] {
        let (raced, wrong) = count(mutant, random_program);
        assert!(raced > SEEDS * 95 / 100, "{mutant:?} raced in {raced} seeds");
        assert!(wrong > SEEDS / 4, "{mutant:?} gave wrong values in {wrong} seeds");
    }
}

/// A reader that the device delays sees what was there when it was launched, and the write that
/// waits for it comes through.
#[test]
fn a_delayed_reader_sees_the_old_contents() {
    for seed in 0..1_000 {
        let sim = Sim::new(seed);
        let lanes = Lanes::new(&sim);
        let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 3);
        let mut out = Readback::new(&sim, "out", 3, 3);
        let mut landing = Vec::new();
        for step in 1..=3 {
            let mut writing = table.write(&lanes.schedule);
            lanes.schedule.launch("fill", writing.view(), move |table| table.fill(step));
            drop(writing);
            let reading = table.read(&lanes.copies);
            let mut filling = out.fill(&lanes.copies, 3);
            let arguments = (reading.view(), filling.view());
            lanes.copies.launch("copy", arguments, |(table, out)| out.copy_from_slice(table));
            landing.push(filling.pending());
        }
        let landed = landing.into_iter().map(|pending| pending.land().unwrap());
        assert!(landed.eq([vec![1; 3], vec![2; 3], vec![3; 3]]), "seed {seed}");
        assert_eq!(sim.races(), []);
    }
}

/// A race names the buffer, the elements, both jobs and both lanes.
#[test]
fn a_race_names_both_places() {
    let options = SimOptions { seed: 3, read_done: ReadDone::Missing, ..SimOptions::default() };
    let sim = Sim::with(options);
    let lanes = Lanes::new(&sim);
    let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 9);
    lanes.plan.launch("gather", table.read(&lanes.plan).range(2..7), |_| ());
    sim.drain();
    lanes.schedule.launch("fill", table.write(&lanes.schedule).range(5..9), |part| part.fill(1));
    sim.drain();
    let said: Vec<String> = sim.races().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["table[5..7]: nothing orders a read by `gather` on the plan lane and a write by `fill` \
          on the schedule lane"]
    );
}

/// The same seed runs the same program in the same order, and another seed in another.
#[test]
fn a_seed_repeats() {
    let order = |seed| {
        let sim = Sim::new(seed);
        let lanes = Lanes::new(&sim);
        let ran = Arc::new(Mutex::new(Vec::new()));
        for i in 0..20 {
            let (forward, copies) = (ran.clone(), ran.clone());
            lanes.forward.launch("f", (), move |()| forward.lock().unwrap().push(i));
            lanes.copies.launch("c", (), move |()| copies.lock().unwrap().push(100 + i));
        }
        sim.drain();
        Arc::into_inner(ran).unwrap().into_inner().unwrap()
    };
    let orders: Vec<Vec<u32>> = (0..20).map(order).collect();
    assert_eq!((0..20).map(order).collect::<Vec<_>>(), orders);
    assert!(orders.iter().any(|order| *order != orders[0]));
}
