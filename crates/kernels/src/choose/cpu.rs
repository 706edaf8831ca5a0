//! The choice on the CPU: the largest logit of each row, then the filters, then the noise. A row
//! may be cut into segments for the threads; maxima merge to the same token however it is cut.

use super::contest::{Contest, Ids, Scan};
use super::filter::{self, Argmax, Cut};
use super::head::{Largest, NOTHING, larger};
use super::noise::BLOCK;
use super::shape::{Shape, Shaped};
use super::{Draw, Ready, Rows};
use crate::lanes::Level;
use crate::spread::spread;
use device::{Cpu, Disjoint};
use std::ops::Range;

/// Tokens that are worth a thread.
const SEGMENT: usize = 16 * 1024;

/// How the rows of a launch are cut for the threads.
struct Segments {
    a_row: usize,
    len: usize,
    allowed: usize,
}

impl Segments {
    fn new(cpu: &Cpu, rows: usize, allowed: usize) -> Segments {
        let wanted = cpu.threads().div_ceil(rows.max(1)).min(allowed.div_ceil(SEGMENT));
        let len = allowed.div_ceil(wanted).next_multiple_of(BLOCK);
        Segments { a_row: allowed.div_ceil(len), len, allowed }
    }

    /// The results of `body(row, tokens)` for every segment, those of row `i` of `rows` together.
    /// `elements` is the work in all.
    fn map<T: Clone + Send>(
        &self,
        cpu: &Cpu,
        rows: &[usize],
        elements: usize,
        empty: T,
        body: &(dyn Fn(usize, Range<usize>) -> T + Sync),
    ) -> Vec<T> {
        let mut results = vec![empty; rows.len() * self.a_row];
        let shared = Disjoint::new(&mut results);
        spread(cpu, rows.len() * self.a_row, elements, &|part| {
            let start = part % self.a_row * self.len;
            let tokens = start..(start + self.len).min(self.allowed);
            // SAFETY: each part writes its own result.
            let result = unsafe { shared.slice(part..part + 1) };
            result[0] = body(rows[part / self.a_row], tokens);
        });
        results
    }
}

/// A row to be sampled: its draw, what its filters leave, and the contest that its greedy choice has opened.
struct Sampled<'a> {
    draw: &'a Draw,
    cut: Cut,
    open: Contest,
}

pub(super) fn choose(
    cpu: &Cpu,
    level: Level,
    (rows, known): (&Rows<'_>, Option<&[Largest]>),
    draws: &[Draw],
    shapes: &[Shape<'_>],
    out: &mut [u32],
) {
    assert_eq!(out.len(), draws.len(), "a place for each choice");
    assert!(shapes.is_empty() || shapes.len() == draws.len(), "a shape for each row, or none");
    let ready = Ready { rows, shaped: Shaped::new(cpu, rows, shapes) };
    let mut largest = known.map_or_else(|| vec![NOTHING; draws.len()], <[Largest]>::to_vec);
    let unknown = |&row: &usize| known.is_none() || ready.shaped.row(row, rows.allowed).is_some();
    let unknown: Vec<usize> = (0..draws.len()).filter(unknown).collect();
    let segments = Segments::new(cpu, unknown.len(), rows.allowed);
    let found =
        segments.map(cpu, &unknown, unknown.len() * rows.allowed, NOTHING, &|row, tokens| {
            let (id, logit) = level.dispatch(Argmax::of(&ready.row(row)[tokens.clone()]));
            (tokens.start as u32 + id, logit)
        });
    for (&row, segments) in unknown.iter().zip(found.chunks_exact(segments.a_row)) {
        largest[row] = segments.iter().copied().reduce(larger).expect("a segment");
    }
    let mut sampled = Vec::new();
    for (row, (id, logit)) in largest.into_iter().enumerate() {
        out[row] = match shapes.get(row) {
            Some(shape) if logit == f32::NEG_INFINITY => shape.last_resort(rows.allowed),
            _ => id,
        };
        if draws[row].temperature > 0.0 && logit.is_finite() {
            sampled.push((row, logit));
        }
    }
    if !sampled.is_empty() {
        sample(cpu, level, &ready, draws, &sampled, out);
    }
}

/// Chooses with noise for the rows `sampled` (row, largest logit); `out` holds the greedy choice.
fn sample(
    cpu: &Cpu,
    level: Level,
    ready: &Ready<'_>,
    draws: &[Draw],
    sampled: &[(usize, f32)],
    out: &mut [u32],
) {
    let allowed = ready.rows.allowed;
    let whole = Segments { a_row: 1, len: allowed, allowed };
    let indices: Vec<usize> = (0..sampled.len()).collect();
    let ranked = sampled.iter().filter(|(row, _)| filter::ranks(&draws[*row])).count();
    let cuts = whole.map(cpu, &indices, ranked * allowed, None, &|i, _| {
        let (row, largest) = sampled[i];
        Some(Cut::new(level, ready.row(row), largest, &draws[row]))
    });
    let plans: Vec<Sampled<'_>> = sampled
        .iter()
        .zip(cuts)
        .map(|(&(row, largest), cut)| {
            let (draw, mut open) = (&draws[row], Contest::new());
            open.favour(draw, (out[row], largest));
            Sampled { draw, cut: cut.expect("every row has its cut"), open }
        })
        .collect();
    let segments = Segments::new(cpu, sampled.len(), allowed);
    let nobody = Contest::new();
    let contests = segments.map(cpu, &indices, sampled.len() * allowed, nobody, &|i, tokens| {
        let Sampled { draw, cut, open } = &plans[i];
        let (ids, mut contest) = (Ids::From(tokens.start as u32), open.clone());
        let logits = &ready.row(sampled[i].0)[tokens];
        level.dispatch(Scan { draw, logits, ids, cut, contest: &mut contest });
        contest
    });
    for (&(row, largest), contests) in sampled.iter().zip(contests.chunks_exact(segments.a_row)) {
        out[row] = Contest::winner(contests, largest, &draws[row]).0;
    }
}
