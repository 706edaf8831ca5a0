//! Which ids a drafter proposes, and the head that tells their logits.
//!
//! A text is made of few of the ids that its vocabulary has, and the head costs what it reads: a drafter is
//! asked about a part of them (Zhao et al. 2025, "FR-Spec"). Either its configuration lists those ids, by how
//! often the target's answers have them, or it is the lower half: a byte-pair vocabulary numbers its tokens in
//! the order in which they were learned, frequent ones first.

use crate::decoder::Decoder;
use crate::load::Precision;
use device::Cpu;
use kernels::choose::Outputs;
use kernels::embed::embed;
use kernels::format::{Format, quantize_q8_0};
use kernels::gemm::{RowOrder, Weight};

/// Of so many ids one is proposed, the lowest, where none are listed.
pub const PROPOSED: usize = 2;

/// The ids that a drafter proposes.
pub enum Proposals {
    /// All below a bound; their head is the first rows of the target's.
    Below(usize),
    /// Those listed, ascending, with a head of their own.
    Listed(Listed),
}

/// Ids, and their rows of the target's head.
pub struct Listed {
    ids: Vec<u32>,
    /// `[ids, hidden]`.
    head: Weight,
    /// Ids that there are in all.
    allowed: usize,
}

impl Proposals {
    /// What is proposed of the ids below `allowed`: of those `listed`, if they are, whose head is held as `precision`
    /// says.
    pub(crate) fn new(
        cpu: &Cpu,
        target: &Decoder,
        (listed, precision): (Option<&[u32]>, Precision),
        allowed: usize,
    ) -> Proposals {
        let within = |ids: &[u32]| ids.partition_point(|&id| (id as usize) < allowed);
        match listed.map(|ids| &ids[..within(ids)]) {
            Some(ids) if !ids.is_empty() => {
                let head = rows_of(cpu, target.head_weight(), ids, precision);
                Proposals::Listed(Listed { ids: ids.to_vec(), head, allowed })
            }
            _ => Proposals::Below(allowed.div_ceil(PROPOSED)),
        }
    }

    /// The head that tells their logits, and which of its outputs those are.
    pub(crate) fn head<'a>(&'a self, target: &'a Decoder) -> (&'a Weight, Outputs<'a>) {
        match self {
            Proposals::Below(bound) => (target.head_weight(), Outputs::First(*bound)),
            Proposals::Listed(Listed { ids, head, allowed }) => {
                (head, Outputs::Listed(ids, *allowed))
            }
        }
    }
}

/// Some rows of `weight`.
fn rows_of(cpu: &Cpu, weight: &Weight, ids: &[u32], precision: Precision) -> Weight {
    /// Rows that are there as floats at a time.
    const AT_ONCE: usize = 1024;
    let k = weight.k();
    let whole_blocks = k.is_multiple_of(Format::Q8_0.block());
    let eight_bits = precision == Precision::Int8 && whole_blocks;
    let format = if eight_bits { Format::Q8_0 } else { Format::F32 };
    let mut data = Vec::new();
    for ids in ids.chunks(AT_ONCE) {
        let mut rows = vec![0.0; ids.len() * k];
        embed(cpu, weight, ids, &mut rows);
        match format {
            Format::Q8_0 => data.extend(quantize_q8_0(&rows)),
            _ => data.extend(rows.into_iter().flat_map(f32::to_le_bytes)),
        }
    }
    Weight::pack(cpu, format, ids.len(), k, RowOrder::Plain, &data)
}
