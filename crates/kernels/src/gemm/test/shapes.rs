//! The same promises over shapes that are drawn anew in every run, for every format and every
//! instruction set that this machine has.

use super::{BLOCKS, Case, FLOATS, Random, bits, matches_f64};
use crate::format::Format;
use crate::gemm::cpu::Isa;

/// Shapes that are drawn of each format.
const SHAPES: usize = 4;
/// Most rows of a launch: more than any tile has.
const ROWS: usize = 70;

impl Random {
    /// Uniform in `1..=most`.
    fn up_to(&mut self, most: usize) -> usize {
        1 + (self.bits() % most as u64) as usize
    }

    /// A matrix of up to 150 outputs, and of some whole blocks or up to 600 floats.
    fn case(&mut self, format: Format) -> Case {
        let (most, block) = match format.block() {
            1 => (600, 1),
            block => (1024 / block + 2, block),
        };
        let (n, k) = (self.up_to(150), self.up_to(most) * block);
        Case::new(self, format, n, k)
    }
}

/// Shapes of every format.
pub(super) fn drawn(random: &mut Random) -> Vec<Case> {
    let formats = BLOCKS.into_iter().chain(FLOATS);
    formats.flat_map(|f| [f; SHAPES]).map(|format| random.case(format)).collect()
}

#[test]
fn a_row_of_any_launch_of_any_shape_equals_the_row_alone() {
    let mut random = Random::fresh();
    for case in drawn(&mut random) {
        let (n, k) = (case.n, case.k);
        let x = random.input(ROWS * k);
        for isa in Isa::available() {
            let alone: Vec<f32> = x.chunks_exact(k).flat_map(|row| case.run(isa, 1, row)).collect();
            for _ in 0..6 {
                // Any neighbours: some of the rows, from anywhere.
                let rows = random.up_to(ROWS);
                let first = random.up_to(ROWS - rows + 1) - 1;
                let threads = random.up_to(3);
                let y = case.run(isa, threads, &x[first * k..(first + rows) * k]);
                let what = format!(
                    "{} [{n}, {k}] {isa:?}, rows {first} to {} on {threads} threads",
                    case.format.name(),
                    first + rows
                );
                assert_eq!(bits(&y), bits(&alone[first * n..(first + rows) * n]), "{what}");
            }
        }
    }
}

#[test]
fn products_of_any_shape_match_f64() {
    let mut random = Random::fresh();
    for case in drawn(&mut random) {
        let rows = random.up_to(20);
        let x = random.input(rows * case.k);
        matches_f64(&case, &x, rows);
    }
}
