//! A drafter whose acceptance is given: it knows what the target will choose and proposes it with
//! a drawn probability. For measuring how fast a pair would be with a drafter that is not trained
//! yet; the output is what it always is.

use super::units::Units;
use super::{Draft, DraftRow, Drafter, Features, Promise, Spread};

/// How likely drafts are accepted: for each place in the block, the chance that the draft there is
/// accepted when those before it were.
#[derive(Clone, Debug, PartialEq)]
pub struct Chances(Vec<f64>);

impl Chances {
    /// Chances by place, the first draft first. Places past the last have its chance.
    ///
    /// # Panics
    /// When there is none, or one is not within 0 to 1.
    pub fn by_place(chances: Vec<f64>) -> Chances {
        assert!(!chances.is_empty(), "one chance at least");
        let within = chances.iter().all(|chance| (0.0..=1.0).contains(chance));
        assert!(within, "chances are from 0 to 1, not {chances:?}");
        Chances(chances)
    }

    /// The same chance at every place, such that blocks of `width` tokens (the anchor included)
    /// commit `tau` tokens on average, the bonus token included.
    ///
    /// # Panics
    /// When `tau` is not within 1 to `width`.
    pub fn of_tau(tau: f64, width: usize) -> Chances {
        assert!((1.0..=width as f64).contains(&tau), "τ is from 1 to {width}, not {tau}");
        let (mut low, mut high) = (0.0, 1.0);
        // τ rises with the chance; halving 60 times leaves less than rounding does.
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            let reached = Chances(vec![middle]).tau(width);
            if reached < tau { low = middle } else { high = middle }
        }
        Chances(vec![high])
    }

    /// Tokens that blocks of `width` commit on average, the bonus token included.
    pub fn tau(&self, width: usize) -> f64 {
        let mut chance = 1.0;
        let drafts = (0..width - 1).map(|place| {
            chance *= self.at(place);
            chance
        });
        1.0 + drafts.sum::<f64>()
    }

    /// The chance of the draft at `place`, the first draft at 0.
    pub fn at(&self, place: usize) -> f64 {
        self.0[place.min(self.0.len() - 1)]
    }
}

/// A draft whose fate is given: the token that the target will choose, and the chance that it is what
/// is proposed, on average over drafts like it.
pub type Fate = (u32, f64);

/// Proposes what `fate(request, position, place)` says the target will choose at a position, as the
/// draft at that place of a block, until a draw by the request's seed says that a draft is to be wrong;
/// nothing where that is not known. Each draft has a chance of its own, about what it is on average, and
/// says it as its confidence. The `inner` drafter is run as well and its proposals are dropped,
/// so that its time is spent; no more is proposed than it has drafted positions for.
pub struct Simulated<F> {
    inner: Box<dyn Drafter>,
    blocks: Vec<usize>,
    spread: Spread,
    fate: F,
}

impl<F: FnMut(u64, usize, usize) -> Option<Fate> + Send> Simulated<F> {
    /// A drafter of `block` positions, the anchor included, that costs what `inner` costs;
    /// nothing with [`super::NoDrafter`]. Chances spread as `spread` says.
    ///
    /// # Panics
    /// When `block` is not what `inner` drafts, unless that drafts nothing.
    pub fn new(inner: Box<dyn Drafter>, block: usize, spread: Spread, fate: F) -> Simulated<F> {
        let own = inner.block();
        assert!(own == 1 || own == block, "the drafter drafts {own} positions, not {block}");
        let blocks = if own == 1 { vec![block] } else { inner.blocks() };
        Simulated { inner, blocks, spread, fate }
    }

    fn drafts(&mut self, row: &DraftRow<'_>, out: &mut Draft) {
        let mut right = true;
        let width = row.width.min(self.positions(row.likely));
        for place in 0..width - 1 {
            let fate = (self.fate)(row.request, row.len + place + 1, place);
            let Some((token, usual)) = fate else { return };
            let mut units = Units::of(&row.draw, place);
            let luck = units.draw();
            let chance = self.spread.chance(usual, &mut units);
            right &= luck < chance;
            // What follows a wrong draft is never looked at.
            let wrong = if token == 0 { 1 } else { 0 };
            out.push(if right { token } else { wrong }, chance as f32);
        }
    }
}

impl<F: FnMut(u64, usize, usize) -> Option<Fate> + Send> Drafter for Simulated<F> {
    fn block(&self) -> usize {
        self.blocks[self.blocks.len() - 1]
    }

    fn blocks(&self) -> Vec<usize> {
        self.blocks.clone()
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn propose(&mut self, rows: &[DraftRow<'_>], out: &mut [Draft]) {
        let mut dropped = vec![Draft::default(); rows.len()];
        self.inner.propose(rows, &mut dropped);
        for (row, out) in rows.iter().zip(out) {
            self.drafts(row, out);
        }
    }

    fn start(&mut self, rows: &[DraftRow<'_>]) {
        self.inner.start(rows);
    }

    /// What is proposed is known at once, where a row begins: the inner drafter's proposals are dropped when they come.
    fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
        let inner = self.inner.promise(rows)?;
        let mut own = vec![Draft::default(); rows.len()];
        rows.iter().zip(&mut own).for_each(|(row, own)| self.drafts(row, own));
        let stand_ins = own.iter().map(|draft| draft.tokens.clone()).collect();
        Some(Promise::new(stand_ins, move || {
            inner.redeem();
            own
        }))
    }

    fn absorb(&mut self, features: Features<'_>, positions: &[u32], slots: &[u32]) {
        self.inner.absorb(features, positions, slots);
    }

    fn settle(&mut self) {
        self.inner.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::{Follows, Judge, NoDrafter};
    use kernels::choose::Draw;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const WIDTH: usize = 8;

    /// What is proposed for 20,000 blocks of [`WIDTH`] of many seeds and positions: of each draft, whether it is
    /// right and how sure the drafter is.
    fn blocks(chances: &Chances, spread: Spread) -> Vec<Vec<(bool, f64)>> {
        let fate =
            |_, position: usize, place: usize| Some((position as u32 % 50, chances.at(place)));
        let mut drafter = Simulated::new(Box::new(NoDrafter), WIDTH, spread, fate);
        let mut block = |i: usize| {
            let len = 10 + i % 400;
            let draw = Draw { seed: i as u64 / 400, position: len as u32 + 1, ..row(0).draw };
            let mut out = vec![Draft::default()];
            drafter.propose(&[DraftRow { len, draw, ..row(WIDTH - 1) }], &mut out);
            let Draft { tokens, confidences } = out.swap_remove(0);
            assert_eq!(tokens.len(), WIDTH - 1, "a wrong draft is a draft");
            let wanted = (len + 1..).map(|position| position as u32 % 50);
            let right = tokens.into_iter().zip(wanted).map(|(token, wanted)| token == wanted);
            right.zip(confidences.into_iter().map(f64::from)).collect()
        };
        (0..20_000).map(&mut block).collect()
    }

    /// Tokens that those blocks commit on average.
    fn committed(chances: &Chances, spread: Spread) -> f64 {
        let blocks = blocks(chances, spread);
        let accepted =
            |block: &Vec<(bool, f64)>| block.iter().take_while(|(right, _)| *right).count();
        let accepted: usize = blocks.iter().map(accepted).sum();
        1.0 + accepted as f64 / blocks.len() as f64
    }

    #[test]
    fn the_acceptance_is_the_one_asked_for() {
        // The mean of 20,000 blocks of at most 8 tokens strays by at most 3.5 / √20,000 = 0.025;
        // five times that never happens.
        for spread in [0.0, 0.3, 0.6, 0.95].map(Spread::of_correlation) {
            for tau in [1.0, 1.5, 3.0, 6.5, 8.0] {
                let chances = Chances::of_tau(tau, WIDTH);
                assert!((chances.tau(WIDTH) - tau).abs() < 1e-9, "{chances:?}");
                let found = committed(&chances, spread);
                assert!((found - tau).abs() < 0.125, "τ {found}, asked for {tau}, {spread:?}");
            }
            let steps = Chances::by_place(vec![1.0, 0.5, 0.0]);
            assert_eq!(steps.tau(WIDTH), 2.5);
            assert!((committed(&steps, spread) - 2.5).abs() < 0.125, "{spread:?}");
        }
    }

    /// Drafts behind accepted ones, of which a block has all up to the first wrong one.
    fn looked_at(blocks: Vec<Vec<(bool, f64)>>) -> Vec<(bool, f64)> {
        let of = |block: Vec<(bool, f64)>| {
            let accepted = block.iter().take_while(|(right, _)| *right).count();
            block.into_iter().take(accepted + 1)
        };
        blocks.into_iter().flat_map(of).collect()
    }

    #[test]
    fn confidences_tell_as_much_as_was_asked_for() {
        for (tau, r) in [(1.5, 0.5), (3.0, 0.2), (3.0, 0.6), (3.0, 0.9), (6.5, 0.6)] {
            let chances = Chances::of_tau(tau, WIDTH);
            let drafts = looked_at(blocks(&chances, Spread::of_correlation(r)));
            let n = drafts.len() as f64;
            let right = |right: bool| f64::from(u8::from(right));
            let mean = |of: &dyn Fn(&(bool, f64)) -> f64| drafts.iter().map(of).sum::<f64>() / n;
            let (a, c) = (mean(&|d| right(d.0)), mean(&|d| d.1));
            let covariance = mean(&|d| (right(d.0) - a) * (d.1 - c));
            let found = covariance / (mean(&|d| (d.1 - c).powi(2)) * a * (1.0 - a)).sqrt();
            // To first order what is found strays as the mean of x·y − r(x² + y²) / 2 does, of confidence x and fate
            // y in units of their deviations. With M the odds of what is usual or their inverse, the greater,
            // y² is at most M and x² at most M / r², so that x·y, r·x² / 2 and r·y² / 2 have deviations of at
            // most √M, √M / 2 and r√M / 2. Five times the sum of those never happens.
            let usual = chances.at(0);
            let odds = (usual / (1.0 - usual)).max((1.0 - usual) / usual);
            let strays = 5.0 * (1.5 + r / 2.0) * (odds / n).sqrt();
            assert!((found - r).abs() < strays, "τ {tau}: r {found}, asked for {r} ± {strays}");
        }
    }

    #[test]
    fn drafts_are_right_as_often_as_the_drafter_is_sure() {
        for r in [0.0, 0.6, 0.95] {
            let drafts = looked_at(blocks(&Chances::of_tau(3.0, WIDTH), Spread::of_correlation(r)));
            let mut bins = [(0.0, 0.0, 0.0); 10];
            for (right, confidence) in drafts {
                let (count, sure, accepted) = &mut bins[((10.0 * confidence) as usize).min(9)];
                *count += 1.0;
                *sure += confidence;
                *accepted += f64::from(u8::from(right));
            }
            for (count, sure, accepted) in bins.into_iter().filter(|bin| bin.0 > 0.0) {
                // n fates stray by at most √n / 2 from the sum of their chances; five times that never happens.
                let off: f64 = accepted - sure;
                assert!(off.abs() < 2.5 * f64::sqrt(count), "r {r}: {accepted} of {sure}, {count}");
            }
        }
    }

    /// Figures that were measured before chances could spread stay comparable.
    #[test]
    fn without_a_spread_nothing_but_the_first_draw_counts() {
        let chances = [0.853, 0.84, 0.823, 0.761, 1.0];
        let fate = |_, position: usize, place: usize| {
            chances.get(place).map(|&chance| (position as u32, chance))
        };
        let mut drafter = Simulated::new(Box::new(NoDrafter), WIDTH, Spread::NONE, fate);
        let draw = Draw { seed: 7, position: 13, ..row(0).draw };
        let mut out = vec![Draft::default()];
        drafter.propose(&[DraftRow { draw, ..row(WIDTH - 1) }], &mut out);
        // The draws are 0.8525, 0.8394, 0.8224, 0.7613 and so on.
        assert_eq!(out[0].tokens, [12, 13, 14, 0, 0]);
        assert_eq!(out[0].confidences, chances.map(|chance| chance as f32));
    }

    /// A row behind 12 tokens that wants room for `likely` drafts.
    fn row(likely: usize) -> DraftRow<'static> {
        let draw =
            Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 12 };
        DraftRow {
            request: 0,
            anchor: 0,
            len: 11,
            behind: None,
            width: WIDTH,
            judge: Judge::LENIENT,
            likely,
            pages: &[],
            draw,
            shaper: None,
            allowed: None,
        }
    }

    /// What is proposed with room for `likely` drafts, of a text that is known before position `known`.
    fn proposed(inner: Box<dyn Drafter>, known: usize, likely: usize) -> Vec<u32> {
        let fate = |_, position: usize, _| (position < known).then_some((3, 1.0));
        let mut drafter = Simulated::new(inner, WIDTH, Spread::NONE, fate);
        let mut out = vec![Draft::default()];
        drafter.propose(&[row(likely)], &mut out);
        out.swap_remove(0).tokens
    }

    #[test]
    fn nothing_is_proposed_past_what_is_known() {
        assert_eq!(proposed(Box::new(NoDrafter), 14, WIDTH - 1), [3, 3]);
    }

    /// A drafter of nothing, in blocks of 4 and 8 positions.
    struct InBlocks;

    impl Drafter for InBlocks {
        fn block(&self) -> usize {
            WIDTH
        }

        fn blocks(&self) -> Vec<usize> {
            vec![4, WIDTH]
        }

        fn taps(&self) -> &[usize] {
            &[]
        }

        fn propose(&mut self, _: &[DraftRow<'_>], _: &mut [Draft]) {}

        fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
    }

    #[test]
    fn no_more_is_proposed_than_positions_are_drafted() {
        for (likely, drafts) in [(0, 3), (3, 3), (4, 7), (7, 7)] {
            assert_eq!(proposed(Box::new(InBlocks), 99, likely).len(), drafts, "room for {likely}");
        }
        assert_eq!(proposed(Box::new(NoDrafter), 99, 2).len(), WIDTH - 1, "of one size");
    }

    /// A drafter that promises three drafts a row, and must keep that.
    struct Promising(Arc<AtomicUsize>);

    impl Drafter for Promising {
        fn block(&self) -> usize {
            WIDTH
        }

        fn taps(&self) -> &[usize] {
            &[]
        }

        fn propose(&mut self, _: &[DraftRow<'_>], _: &mut [Draft]) {
            panic!("nobody waits for this")
        }

        fn follows(&self) -> Follows {
            Follows::Blocks
        }

        fn promise(&mut self, rows: &[DraftRow<'_>]) -> Option<Promise> {
            let (kept, count) = (self.0.clone(), rows.len());
            Some(Promise::new(vec![vec![1000; 3]; count], move || {
                kept.fetch_add(1, Ordering::Relaxed);
                let mut three = Draft::default();
                three.extend([0; 3]);
                vec![three; count]
            }))
        }

        fn absorb(&mut self, _: Features<'_>, _: &[u32], _: &[u32]) {}
    }

    #[test]
    fn its_own_drafts_are_promised_where_the_inner_one_promises() {
        let kept = Arc::new(AtomicUsize::new(0));
        let fate = |_, position: usize, _| Some((position as u32, 1.0));
        let inner = Box::new(Promising(kept.clone()));
        let mut drafter = Simulated::new(inner, WIDTH, Spread::NONE, fate);
        let promise = drafter.promise(&[row(WIDTH - 1)]).expect("a promise");
        let own: Vec<u32> = (12..12 + WIDTH as u32 - 1).collect();
        assert_eq!(promise.stand_ins, std::slice::from_ref(&own));
        assert_eq!(kept.load(Ordering::Relaxed), 0);
        let out = promise.redeem();
        assert_eq!((&out[0].tokens, kept.load(Ordering::Relaxed)), (&own, 1));
        assert_eq!(
            drafter.follows(),
            Follows::Tokens,
            "it knows a text, whatever the inner one knows"
        );
        let mut alone = Simulated::new(Box::new(NoDrafter), WIDTH, Spread::NONE, fate);
        assert!(alone.promise(&[row(WIDTH - 1)]).is_none());
    }
}
