//! Choices as the output head makes logits: whoever multiplies a stretch of columns looks at it while it is in its own
//! cache, and nobody writes it down. Logits are kept of rows alone that are looked at again.

use super::confidence::{Weigh, Weight as Weighed, share};
use super::contest::{Contest, Ids, Leader};
use super::filter::{self, Argmax};
use super::noise::BLOCK;
use super::shape::Shape;
use super::{Draw, Rows, cpu};
use crate::gemm::{Scratch, Stretch, UNIT, Weight};
use crate::lanes::Level;
use crate::rows::Given;
use device::{Cpu, Disjoint};

/// The largest logit of a row and the smallest id that has it.
pub(super) type Largest = (u32, f32);

/// What a row has that has no logit above −∞.
pub(super) const NOTHING: Largest = (0, f32::NEG_INFINITY);

/// Of two stretches of a row, the earlier one first, the larger.
pub(super) fn larger(a: Largest, b: Largest) -> Largest {
    if b.1 > a.1 { b } else { a }
}

/// Which ids the outputs of a head are for.
#[derive(Clone, Copy)]
pub enum Outputs<'a> {
    /// The first so many, each for the id that is its number.
    First(usize),
    /// The first ones, for these ids, which ascend, of so many that there are.
    Listed(&'a [u32], usize),
}

/// What is kept of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The choice.
    Choice,
    /// And the logits.
    Logits,
}

/// Whether it is told how likely choices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Nobody asks.
    Untold,
    /// See [`Choices::confidences`].
    Told,
}

/// What is asked about the rows of a launch.
pub struct Asked<'a> {
    /// How each is drawn.
    pub draws: &'a [Draw],
    /// One for each row, or none at all.
    pub shapes: &'a [Shape<'a>],
    /// One for each row, or none at all: choices are kept, then.
    pub kept: &'a [Kept],
    /// Of all rows.
    pub confidence: Confidence,
}

/// Choices from the outputs of a head, and the logits of some rows.
#[derive(Default)]
pub struct Choices {
    ids: Vec<u32>,
    confidences: Vec<f32>,
    /// `[rows that keep them, outputs]`.
    logits: Vec<f32>,
    /// Which row of `logits` is a row's own.
    places: Vec<Option<usize>>,
    outputs: usize,
    /// `[rows, ids]`: logits of a list where their ids are.
    by_id: Vec<f32>,
    /// For the stretches that are looked at.
    room: Vec<f32>,
}

impl Choices {
    /// Becomes what [`choose`](super::choose) would choose for normed rows `x` (`[rows, k]`) from the `outputs` of
    /// `weight`, with −∞ for ids that are not listed. It is found while the head is multiplied, except in rows that
    /// have a shape or filters, whose logits are kept for that.
    ///
    /// # Panics
    /// When the weight has fewer outputs, or lengths do not match.
    pub fn make(
        &mut self,
        cpu: &Cpu,
        scratch: &mut Scratch,
        (x, asked): (&[f32], &Asked<'_>),
        (weight, outputs): (&Weight, Outputs<'_>),
    ) {
        let rows = asked.draws.len();
        assert!([0, rows].contains(&asked.shapes.len()), "a shape for each row, or none");
        assert!([0, rows].contains(&asked.kept.len()), "what each row keeps, or nothing");
        assert!(outputs.count() > 0, "something to choose");
        let level = Level::best();
        let ways: Vec<Way> = asked
            .draws
            .iter()
            .enumerate()
            .map(|(i, draw)| Way::of(draw, asked.shapes.get(i)))
            .collect();
        self.outputs = outputs.count();
        let later = self.place(&ways, asked.kept);
        let units = match asked.confidence {
            Confidence::Untold => 0,
            Confidence::Told => self.outputs.div_ceil(UNIT),
        };
        let mut weights = vec![Weighed::default(); rows * units];
        scratch.fill(cpu, &Given::new(x, rows), [weight]);
        let watch = Watch {
            level,
            outputs,
            units,
            rows: asked.draws.iter().zip(ways).zip(self.places.iter().copied()).collect(),
            leaders: (0..rows).map(|_| Leader::new()).collect(),
            logits: Disjoint::new(&mut self.logits),
            weights: Disjoint::new(&mut weights),
        };
        let parts =
            scratch.stretches(cpu, (self.outputs, weight), &mut self.room, &|seen, stretch| {
                watch.look(seen, &stretch);
            });
        let (largest, mut chosen) = watch.choose(&parts);
        self.choose_later(cpu, (asked, outputs), &later, (&largest, &mut chosen));
        self.ids.clear();
        self.ids.extend(chosen.iter().map(|&(id, _)| id));
        self.confidences.clear();
        if units > 0 {
            let rows = weights.chunks_exact(units).zip(&largest).zip(&chosen);
            let of = |((weights, largest), chosen): ((_, &Largest), &Largest)| {
                share(level, weights, largest.1, chosen.1)
            };
            self.confidences.extend(rows.map(of));
        }
    }

    /// The choice for each row.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// How likely each choice is by its row, if that was asked: its softmax probability among all outputs, at
    /// temperature 1 and without filters and shapes. 0 where an id is not listed, or the row has no probabilities.
    pub fn confidences(&self) -> &[f32] {
        &self.confidences
    }

    /// The logits of a row that keeps them, one an output, as they are.
    ///
    /// # Panics
    /// When the row does not.
    pub fn logits(&self, row: usize) -> &[f32] {
        let place = self.places[row].unwrap_or_else(|| panic!("row {row} keeps its logits"));
        &self.logits[place * self.outputs..][..self.outputs]
    }

    /// Makes room for logits that are kept: first those of rows that are chosen from later, which are returned.
    fn place(&mut self, ways: &[Way], kept: &[Kept]) -> Vec<usize> {
        let rows = 0..ways.len();
        let later: Vec<usize> = rows.clone().filter(|&row| ways[row] == Way::Later).collect();
        let others = rows.filter(|&row| {
            ways[row] != Way::Later && kept.get(row).is_some_and(|&kept| kept == Kept::Logits)
        });
        self.places.clear();
        self.places.resize(ways.len(), None);
        let mut count = 0;
        for row in later.iter().copied().chain(others) {
            self.places[row] = Some(count);
            count += 1;
        }
        self.logits.resize(count * self.outputs, 0.0);
        later
    }

    /// Chooses from the logits of rows that are chosen from `later`, the first that are kept.
    fn choose_later(
        &mut self,
        cpu: &Cpu,
        (asked, outputs): (&Asked<'_>, Outputs<'_>),
        later: &[usize],
        (largest, chosen): (&[Largest], &mut [Largest]),
    ) {
        if later.is_empty() {
            return;
        }
        let logits = &self.logits[..later.len() * self.outputs];
        let rows = match outputs {
            Outputs::First(count) => Rows { logits, vocab: count, allowed: count },
            Outputs::Listed(ids, all) => {
                put_by_id(logits, (ids, all), &mut self.by_id);
                Rows { logits: &self.by_id, vocab: all, allowed: all }
            }
        };
        let draws: Vec<Draw> = later.iter().map(|&row| asked.draws[row]).collect();
        let shapes = later.iter().filter_map(|&row| asked.shapes.get(row).copied());
        let shapes: Vec<Shape<'_>> = shapes.collect();
        let known: Vec<Largest> = later.iter().map(|&row| largest[row]).collect();
        let mut ids = vec![0; later.len()];
        cpu::choose(cpu, Level::best(), (&rows, Some(&known)), &draws, &shapes, &mut ids);
        for (i, (&row, &id)) in later.iter().zip(&ids).enumerate() {
            chosen[row] = (id, rows.raw(i).get(id as usize).copied().unwrap_or(f32::NEG_INFINITY));
        }
    }
}

/// `room` becomes the logits `[rows, ids]` of a list as those of `all` ids, `[rows, all]`: −∞ where an id is not
/// listed.
fn put_by_id(logits: &[f32], (ids, all): (&[u32], usize), room: &mut Vec<f32>) {
    room.clear();
    room.resize(logits.len() / ids.len() * all, f32::NEG_INFINITY);
    for (row, to) in logits.chunks_exact(ids.len()).zip(room.chunks_exact_mut(all)) {
        for (&id, &logit) in ids.iter().zip(row) {
            to[id as usize] = logit;
        }
    }
}

impl Outputs<'_> {
    fn count(&self) -> usize {
        match *self {
            Outputs::First(count) => count,
            Outputs::Listed(ids, _) => ids.len(),
        }
    }

    /// The id of an output.
    fn id(&self, output: usize) -> u32 {
        match *self {
            Outputs::First(_) => output as u32,
            Outputs::Listed(ids, _) => ids[output],
        }
    }
}

/// How a row is chosen from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As it passes by: the largest logit.
    Largest,
    /// As it passes by, with noise.
    Noise,
    /// When all of it is there.
    Later,
}

impl Way {
    fn of(draw: &Draw, shape: Option<&Shape<'_>>) -> Way {
        let plain = shape.is_none_or(Shape::is_plain);
        match (plain, draw.temperature > 0.0) {
            (true, false) => Way::Largest,
            (true, true) if filter::leaves_all(draw) => Way::Noise,
            _ => Way::Later,
        }
    }
}

/// What is known of a row after some of its columns.
struct Seen {
    largest: Largest,
    contest: Contest,
}

/// Who looks at stretches.
struct Watch<'a> {
    level: Level,
    outputs: Outputs<'a>,
    /// Weights of a row.
    units: usize,
    /// How a row is drawn and chosen from, and where its logits are kept.
    rows: Vec<((&'a Draw, Way), Option<usize>)>,
    /// Of each row.
    leaders: Vec<Leader>,
    logits: Disjoint<'a, f32>,
    /// `[rows, units]`.
    weights: Disjoint<'a, Weighed>,
}

impl Watch<'_> {
    /// Adds a stretch to what is known of the part that it belongs to.
    fn look(&self, seen: &mut Vec<Seen>, stretch: &Stretch<'_>) {
        const { assert!(UNIT.is_multiple_of(BLOCK), "noise is drawn by blocks") };
        let columns = &stretch.columns;
        if seen.is_empty() {
            let begin = |leader| Seen { largest: NOTHING, contest: Contest::behind(leader) };
            seen.extend(self.leaders.iter().map(begin));
        }
        let rows = stretch.rows().zip(&self.rows).zip(seen).enumerate();
        for (row, ((logits, ((draw, way), place)), seen)) in rows {
            seen.add(self, (draw, *way, &self.leaders[row]), (columns.start, logits));
            // SAFETY: nobody else has these columns, nor their units.
            unsafe {
                if let Some(place) = place {
                    let first = place * self.outputs.count();
                    let at = first + columns.start..first + columns.end;
                    self.logits.slice(at).copy_from_slice(logits);
                }
                if self.units > 0 {
                    let first = row * self.units;
                    let at = columns.start / UNIT..columns.end.div_ceil(UNIT);
                    let out = self.weights.slice(first + at.start..first + at.end);
                    self.level.dispatch(Weigh { logits, out });
                }
            }
        }
    }

    /// The largest logit of each row, and the choice with its logit, which is the largest where the row is chosen from
    /// later.
    fn choose(&self, parts: &[Vec<Seen>]) -> (Vec<Largest>, Vec<Largest>) {
        let one = |(row, ((draw, way), _)): (usize, &((&Draw, Way), _))| {
            let largest = parts.iter().map(|seen| seen[row].largest).fold(NOTHING, larger);
            let noise = *way == Way::Noise && largest.1.is_finite();
            let contests = parts.iter().map(|seen| &seen[row].contest);
            let winner = || Contest::winner(contests, largest.1, draw);
            (largest, if noise { winner() } else { largest })
        };
        self.rows.iter().enumerate().map(one).unzip()
    }
}

impl Seen {
    /// Adds logits of successive outputs, `first` and those behind it.
    fn add(
        &mut self,
        watch: &Watch<'_>,
        (draw, way, leader): (&Draw, Way, &Leader),
        (first, logits): (usize, &[f32]),
    ) {
        let (at, logit) = watch.level.dispatch(Argmax { row: logits, above: self.largest.1 });
        if logit > self.largest.1 {
            self.largest = (watch.outputs.id(first + at as usize), logit);
        }
        // A row whose largest logit is infinite has no noise.
        if way != Way::Noise || !self.largest.1.is_finite() {
            return;
        }
        if self.contest.is_open() {
            self.contest.favour(draw, self.largest);
        }
        let ids = match watch.outputs {
            Outputs::First(_) => Ids::From(first as u32),
            Outputs::Listed(ids, _) => Ids::Listed(&ids[first..][..logits.len()]),
        };
        self.contest.follow(watch.level, leader, (draw, logits, ids));
    }
}
