//! Choices from the pieces of a product: the CPU's, for the same logits, seeds and positions.

use crate::card;
use crate::card::{Buffer, Card, narrowed};
use crate::gemm::Weight;
use crate::random::Random;
use device::Cpu;
use kernels::choose::cuda::{Choices, Confidences, Draws, Room, Sampled};
use kernels::choose::{Draw, choose};
use kernels::cuda::Pieces;
use kernels::gemm::cuda::{Products, Shape};

/// What a launch chooses from, and how.
pub(crate) struct Case {
    pub(crate) rows: usize,
    pub(crate) first: usize,
    pub(crate) allowed: usize,
    pub(crate) shift: u32,
    pub(crate) temperatures: Vec<f32>,
    pub(crate) seeds: Vec<u64>,
    pub(crate) positions: Vec<u32>,
}

impl Case {
    pub(crate) fn random(
        random: &mut Random,
        (rows, first, shift): (usize, usize, u32),
        allowed: usize,
    ) -> Case {
        Case {
            rows,
            first,
            allowed,
            shift,
            temperatures: (0..rows).map(|row| [0.0, 1.0, 0.3, 7.0][row % 4]).collect(),
            seeds: (0..rows).map(|_| random.bits()).collect(),
            positions: (0..rows).map(|_| random.below(1 << 20) as u32).collect(),
        }
    }

    /// The CPU's choices from logits.
    fn on_cpu(&self, logits: &[f32]) -> Vec<u32> {
        let vocab = logits.len() / self.rows;
        let draw = |row: usize| Draw {
            temperature: self.temperatures[row],
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: self.seeds[row],
            position: self.positions[row] + self.shift,
        };
        let draws: Vec<Draw> = (self.first..self.rows).map(draw).collect();
        let (mut out, logits) = (vec![0; draws.len()], &logits[self.first * vocab..]);
        choose(&Cpu::new(1), logits, vocab, self.allowed, &draws, &[], &mut out);
        out
    }

    /// The card's from the pieces of the same logits, and how likely each is: choices are the same whether that
    /// is asked or not.
    pub(crate) fn on_card(
        &self,
        card: &Card,
        shape: Shape,
        pieces: &Buffer<f32>,
    ) -> (Vec<u32>, Vec<f32>) {
        let choices = Choices::load(&card.cuda).expect("the choices load");
        let (lane, chosen) = (&card.lanes.forward, self.rows - self.first);
        let temperatures = card.put(&self.temperatures);
        let (seeds, positions) = (card.put(&self.seeds), card.put(&self.positions));
        let wanted = Choices::chunks(self.allowed) * chosen;
        let mut largest = card.put(&vec![f32::NAN; wanted]);
        let mut ids = card.put(&vec![u32::MAX; wanted]);
        let mut scores = card.put(&vec![f64::NAN; wanted]);
        let mut drawn = card.put(&vec![u32::MAX; wanted]);
        let mut out = [(); 2].map(|()| card.put(&vec![u32::MAX; chosen]));
        let [plain, beside] = &mut out;
        let mut weights = card.put(&vec![f32::NAN; 2 * wanted]);
        let mut sure = card.put(&vec![f32::NAN; chosen]);
        let &Case { rows, first, allowed, shift, .. } = self;
        let above = self.temperatures.iter().any(|&temperature| temperature > 0.0);
        let sampled = if above { Sampled::Some } else { Sampled::None };
        lane.launch(
            "choose",
            (
                (lane.queue(), pieces.read(lane).view()),
                (
                    temperatures.read(lane).view(),
                    seeds.read(lane).view(),
                    positions.read(lane).view(),
                ),
                (largest.write(lane).view(), ids.write(lane).view()),
                (scores.write(lane).view(), drawn.write(lane).view()),
                (plain.write(lane).view(), beside.write(lane).view()),
                (weights.write(lane).view(), sure.write(lane).view()),
            ),
            move |((queue, at), draws, largest, scores, (plain, beside), (weights, out))| {
                let ((mut largest, mut ids), (mut scores, mut drawn)) = (largest, scores);
                let (temperatures, seeds, positions) = draws;
                let draws = Draws { temperatures, seeds, positions, shift, sampled };
                let logits = (Pieces { at, shape, rows: rows as u32 }, allowed);
                let sure = Some(Confidences { weights, out });
                for out in [(plain, None), (beside, sure)] {
                    let room = Room {
                        largest: largest.all(),
                        ids: ids.all(),
                        scores: scores.all(),
                        drawn: drawn.all(),
                    };
                    choices.launch(queue, logits, first, draws, room, out);
                }
            },
        );
        let [plain, beside] = out.each_ref().map(|out| card.get(out));
        assert_eq!(plain, beside, "with and without how likely they are");
        (plain, card.get(&sure))
    }
}

#[test]
fn choices_are_the_cpu_s() {
    let (card, mut random) = (card(), Random::fresh());
    let products = Products::load(&card.cuda).expect("the products load");
    for (vocab, allowed) in
        [(1usize, 1), (130, 129), (3001, 3000), (20_000, 19_998), (49_152, 49_152)]
    {
        // Rows of the weight that come again: every logit has equals.
        let rows = narrowed(&random.floats(vocab.div_ceil(3) * 64, 1.0));
        let plain: Vec<u16> = rows.iter().cycle().copied().take(vocab * 64).collect();
        let weight = Weight::new(&card, plain, Shape::new(vocab, 64, card.cuda.multiprocessors()));
        // The last leaves its sums whole.
        for launch in [(1, 0, 1), (16, 1, 0), (40, 0, 1), (200, 7, 0)] {
            let mut x = narrowed(&random.floats(launch.0 * 64, 1.5));
            if launch.0 == 40 {
                x[3 * 64..4 * 64].fill(0x7fff);
            }
            let mut case = Case::random(&mut random, launch, allowed);
            let logits = weight.times(&card, &products, &x);
            let pieces = weight.pieces(&card, &products, &x);
            let (got, _) = case.on_card(&card, weight.shape, &pieces);
            assert_eq!(got, case.on_cpu(&logits), "{launch:?} of {allowed} of {vocab}");
            case.temperatures.fill(0.0);
            let (got, _) = case.on_card(&card, weight.shape, &pieces);
            assert_eq!(got, case.on_cpu(&logits), "greedy, {launch:?} of {allowed} of {vocab}");
        }
    }
}
