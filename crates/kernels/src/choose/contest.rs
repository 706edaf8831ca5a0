//! Who may win a row with noise, told before the row's largest logit is known.
//!
//! A choice is the largest sum of a score, `(logit − largest) / T` in `f32`, and noise. Two tokens of a row are
//! compared without the largest: one leads by the difference of their logits over `T` and that of their noise. So a
//! row is gone through once, a stretch at a time, each token against the best so far. Those that it does not leave
//! behind by more than [`SLACK`] stay until the largest is known; then their sums, as defined, are compared.
//!
//! No winner is left behind. Noise is between −2.9 and [`noise::MOST`], and the token with the largest logit has
//! the score 0, so a winner's is above −26. A token that led it by more than the slack would have one above −52;
//! rounding moves neither by more than 52 · 2⁻²³, so that token's sum would be the larger. Leads are computed in
//! `f64`, or in `f32` with the same bounds. Which token is the best at the time does not matter, nor who is compared
//! with whom: however a row is cut, the same one wins.

use super::Draw;
use super::filter::{self, Cut, inverse_temperature};
use super::head::Largest;
use super::noise::{self, BLOCK};
use crate::lanes::{Kernel, LANES, Lanes, Level};
use std::sync::atomic::{AtomicU64, Ordering};

/// A lead that rounding cannot have made.
const SLACK: f64 = 1e-3;

/// A token and its noise.
#[derive(Clone, Copy)]
struct Contender {
    id: u32,
    logit: f32,
    noise: f64,
}

/// What a token has to keep up with: the logit and the noise of another one of its row.
#[derive(Clone, Copy, PartialEq)]
struct Best {
    logit: f32,
    noise: f64,
}

impl Best {
    const NOBODY: Best = Best { logit: f32::NEG_INFINITY, noise: 0.0 };

    /// How far another one leads; infinitely far where there is nobody.
    fn lead(self, other: Best, inverse: f32) -> f64 {
        if self == Best::NOBODY {
            return f64::INFINITY;
        }
        let further = (f64::from(other.logit) - f64::from(self.logit)) * f64::from(inverse);
        further + (other.noise - self.noise)
    }
}

/// The best token of a row, as far as those who look at its parts have told each other: one who begins has somebody to
/// compare with at once.
pub(super) struct Leader(AtomicU64);

impl Leader {
    /// Of a row that nobody has looked at.
    pub(super) fn new() -> Leader {
        Leader(AtomicU64::new(Leader::word(Best::NOBODY)))
    }

    fn word(best: Best) -> u64 {
        u64::from(best.logit.to_bits()) << 32 | u64::from((best.noise as f32).to_bits())
    }

    fn best(&self) -> Best {
        let word = self.0.load(Ordering::Relaxed);
        let noise = f64::from(f32::from_bits(word as u32));
        Best { logit: f32::from_bits((word >> 32) as u32), noise }
    }

    /// Tells the others of a better one. Of two at once one may get lost.
    fn tell(&self, best: Best, inverse: f32) {
        if self.best().lead(best, inverse) > 0.0 {
            self.0.store(Leader::word(best), Ordering::Relaxed);
        }
    }
}

/// Tokens of a part of a row, of which one may win.
#[derive(Clone)]
pub(super) struct Contest {
    best: Best,
    /// Whom it does not leave behind.
    close: Vec<Contender>,
}

impl Contest {
    /// Of no tokens.
    pub(super) fn new() -> Contest {
        Contest { best: Best::NOBODY, close: Vec::new() }
    }

    /// Of those who keep up with a leader.
    pub(super) fn behind(leader: &Leader) -> Contest {
        Contest { best: leader.best(), close: Vec::new() }
    }

    /// Whether there is nobody to compare with.
    pub(super) fn is_open(&self) -> bool {
        self.best == Best::NOBODY
    }

    /// Lets a token take part that is likely to leave others behind, with a logit above −∞.
    pub(super) fn favour(&mut self, draw: &Draw, (id, logit): Largest) {
        let noise = noise::gumbel(noise::word(draw.seed, draw.position, id));
        self.offer(Contender { id, logit, noise }, inverse_temperature(draw));
    }

    /// Lets the tokens of a stretch take part, and the leader know.
    pub(super) fn follow(
        &mut self,
        level: Level,
        leader: &Leader,
        (draw, logits, ids): (&Draw, &[f32], Ids<'_>),
    ) {
        let before = self.best;
        level.dispatch(Scan { draw, logits, ids, cut: &Cut::NONE, contest: self });
        if self.best != before {
            leader.tell(self.best, inverse_temperature(draw));
        }
    }

    fn offer(&mut self, new: Contender, inverse: f32) {
        let own = Best { logit: new.logit, noise: new.noise };
        let lead = self.best.lead(own, inverse);
        if lead > SLACK {
            self.close.clear();
        }
        if lead >= -SLACK {
            self.close.push(new);
        }
        if lead > 0.0 {
            self.best = own;
        }
    }

    /// The winner of a row, with its logit: of those who are close to the best of a part, the largest sum, and the
    /// smallest id among equals. `largest` is the row's largest logit, finite.
    ///
    /// # Panics
    /// When nobody takes part.
    pub(super) fn winner<'c>(
        contests: impl IntoIterator<Item = &'c Contest>,
        largest: f32,
        draw: &Draw,
    ) -> Largest {
        let inverse = inverse_temperature(draw);
        let sum = |one: &Contender| f64::from((one.logit - largest) * inverse) + one.noise;
        let all = contests.into_iter().flat_map(|contest| &contest.close);
        let better = |a: (f64, Contender), b: (f64, Contender)| {
            if b.0 > a.0 || (b.0 == a.0 && b.1.id < a.1.id) { b } else { a }
        };
        let (_, winner) =
            all.map(|one| (sum(one), *one)).reduce(better).expect("somebody takes part");
        (winner.id, winner.logit)
    }
}

/// The ids of successive logits.
#[derive(Clone, Copy)]
pub(super) enum Ids<'a> {
    /// From this one on, a multiple of [`BLOCK`].
    From(u32),
    /// Ascending.
    Listed(&'a [u32]),
}

/// Lets the tokens of a stretch take part in a contest that somebody of a finite logit takes part in.
///
/// The noise is bounded, so most tokens cannot win: 64 at a time are passed over without drawing
/// when even the largest noise would not lift one to the best so far; of the others, only those
/// whose number is small enough get the logarithms.
pub(super) struct Scan<'a> {
    pub(super) draw: &'a Draw,
    pub(super) logits: &'a [f32],
    pub(super) ids: Ids<'a>,
    pub(super) cut: &'a Cut,
    pub(super) contest: &'a mut Contest,
}

impl Kernel for Scan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, lanes: L) {
        let inverse = inverse_temperature(self.draw);
        let floor = lanes.splat(self.cut.floor(inverse));
        let (largest, lowest) = (lanes.splat(self.cut.largest), lanes.splat(f32::NEG_INFINITY));
        let logits = self.logits;
        for (index, chunk) in logits.chunks(BLOCK).enumerate() {
            let padded;
            let whole: &[f32; BLOCK] = if let Ok(whole) = chunk.try_into() {
                whole
            } else {
                padded = filter::filled_up(chunk);
                &padded
            };
            let (vectors, _) = whole.as_chunks::<LANES>();
            let mut logits = [lowest; 4];
            for i in 0..4 {
                logits[i] = lanes.max(lanes.load(&vectors[i]), lowest);
            }
            let most = lanes.max(lanes.max(logits[0], logits[1]), lanes.max(logits[2], logits[3]));
            let score = lanes.mul(lanes.sub(most, largest), lanes.splat(inverse));
            let reach = self.reach(lanes, most, inverse) & lanes.ge(score, floor);
            if reach != 0 {
                self.draw(lanes, index * BLOCK, (&logits, most), inverse);
            }
        }
    }
}

impl Scan<'_> {
    /// Which of `logits` the largest noise would bring as far as the best so far.
    #[inline(always)]
    fn reach<L: Lanes>(&self, lanes: L, logits: L::F, inverse: f32) -> u16 {
        let Best { logit, noise } = self.contest.best;
        let further = lanes.mul(lanes.sub(logits, lanes.splat(logit)), lanes.splat(inverse));
        lanes.ge(further, lanes.splat((noise - SLACK) as f32 - noise::MOST))
    }

    /// Up to which number the noise brings `logits` as far as the best so far.
    ///
    /// Noise of `u` is at least `n` when -ln(1 - u) ≤ e⁻ⁿ, and -ln(1 - u) ≥ u. The factor outweighs the rounding.
    #[inline(always)]
    fn limit<L: Lanes>(&self, lanes: L, logits: L::F, inverse: f32) -> L::F {
        let Best { logit, noise } = self.contest.best;
        let further = lanes.mul(lanes.sub(logits, lanes.splat(logit)), lanes.splat(inverse));
        let x = lanes.add(further, lanes.splat((SLACK - noise) as f32));
        lanes.mul(lanes.exp(x), lanes.splat(1.0001))
    }

    /// Draws for the logits `at .. at + 64`. `most` are the largest of each lane.
    #[inline(always)]
    fn draw<L: Lanes>(
        &mut self,
        lanes: L,
        at: usize,
        (logits, most): (&[L::F; 4], L::F),
        inverse: f32,
    ) {
        let words = self.words(at);
        let mut least = words[0];
        for words in &words[1..] {
            for lane in 0..LANES {
                least[lane] = least[lane].min(words[lane]);
            }
        }
        if lanes.ge(self.limit(lanes, most, inverse), low(lanes, &least)) == 0 {
            return;
        }
        for i in 0..4 {
            let limit = self.limit(lanes, logits[i], inverse);
            let mut candidates = lanes.ge(limit, low(lanes, &words[i]));
            while candidates != 0 {
                let lane = candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                self.offer(at + i * LANES + lane, words[i][lane], inverse);
            }
        }
    }

    /// The words of the tokens `at .. at + 64`; past the end any.
    #[inline(always)]
    fn words(&self, at: usize) -> [[u32; LANES]; 4] {
        let Draw { seed, position, .. } = *self.draw;
        let ids = match self.ids {
            Ids::From(first) => {
                return noise::words(seed, position, (first + at as u32) / BLOCK as u32);
            }
            Ids::Listed(ids) => &ids[at..ids.len().min(at + BLOCK)],
        };
        let (mut words, mut place) = ([[0; LANES]; 4], 0);
        let own = words.as_flattened_mut();
        while place < ids.len() {
            let block = ids[place] / BLOCK as u32;
            let drawn = noise::words(seed, position, block);
            while place < ids.len() && ids[place] / BLOCK as u32 == block {
                own[place] = drawn.as_flattened()[ids[place] as usize % BLOCK];
                place += 1;
            }
        }
        words
    }

    /// Lets a token take part, if the filters leave it. Past the end of the stretch there is none.
    fn offer(&mut self, place: usize, word: u32, inverse: f32) {
        let Some(&logit) = self.logits.get(place) else { return };
        let id = match self.ids {
            Ids::From(first) => first + place as u32,
            Ids::Listed(ids) => ids[place],
        };
        if self.cut.keeps(id, logit, inverse) {
            let noise = noise::gumbel(word);
            self.contest.offer(Contender { id, logit, noise }, inverse);
        }
    }
}

/// At most the uniform numbers of words.
#[inline(always)]
fn low<L: Lanes>(lanes: L, words: &[u32; LANES]) -> L::F {
    let mut low = [0.0; LANES];
    for lane in 0..LANES {
        low[lane] = (words[lane] >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
    }
    lanes.load(&low)
}
