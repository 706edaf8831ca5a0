//! Which ids a drafter proposes, and the head that tells their logits.
//!
//! A text is made of few of the ids that its vocabulary has, and the head costs what it reads: a drafter is
//! asked about a part of them (Zhao et al. 2025, "FR-Spec"). Either its configuration lists those ids, by how
//! often the target's answers have them, or it is the lower half: a byte-pair vocabulary numbers its tokens in
//! the order in which they were learned, frequent ones first.

use crate::decoder::Decoder;
use crate::load::Precision;
use device::Cpu;
use kernels::choose::{Draw, Logits, Shape, choose, choose_from};
use kernels::embed::embed;
use kernels::format::{Format, quantize_q8_0};
use kernels::gemm::{RowOrder, Scratch, Weight};

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

    /// How many they are.
    pub fn count(&self) -> usize {
        match self {
            Proposals::Below(bound) => *bound,
            Proposals::Listed(listed) => listed.ids.len(),
        }
    }

    /// Where the logit of `id` stands in a row of logits of what is proposed; `None` for an id that is not
    /// proposed.
    pub fn place(&self, id: u32) -> Option<u32> {
        match self {
            Proposals::Below(bound) => Some(id).filter(|&id| (id as usize) < *bound),
            Proposals::Listed(Listed { ids, .. }) => {
                ids.binary_search(&id).ok().map(|place| place as u32)
            }
        }
    }

    /// `out` becomes the logits of normed rows `x` (`[rows, hidden]`, and how many) for the ids that are proposed,
    /// `[rows, count]`.
    pub(crate) fn head(
        &self,
        cpu: &Cpu,
        scratch: &mut Scratch,
        target: &Decoder,
        x: (&[f32], usize),
        out: &mut Logits,
    ) {
        let weight = match self {
            Proposals::Below(_) => target.head_weight(),
            Proposals::Listed(listed) => &listed.head,
        };
        out.fill(cpu, scratch, x, weight, (self.count(), self.count()));
    }

    /// Chooses an id for each row of `logits`, which are of what is proposed. `room` is memory that comes back from
    /// one call to the next.
    ///
    /// # Panics
    /// When the lengths do not match.
    pub fn choose(
        &self,
        cpu: &Cpu,
        logits: &Logits,
        (draws, shapes): (&[Draw], &[Shape<'_>]),
        room: &mut Vec<f32>,
        out: &mut [u32],
    ) {
        let likeliest =
            draws.iter().all(|draw| draw.temperature == 0.0) && shapes.iter().all(Shape::is_plain);
        match self {
            Proposals::Below(_) => choose_from(cpu, logits, draws, shapes, out),
            // Ids ascend with their places, so the first place of equals is the smallest id.
            Proposals::Listed(Listed { ids, .. }) if likeliest => {
                let found = logits.likeliest().map(|place| ids[place as usize]);
                out.iter_mut().zip(found).for_each(|(out, id)| *out = id);
            }
            // Noise and shapes are of ids.
            Proposals::Listed(listed) => {
                let (logits, width) = listed.by_id(logits.values(), room);
                choose(cpu, logits, width, width, draws, shapes, out);
            }
        }
    }
}

impl Listed {
    /// The logits `[rows, ids]` as those of all ids, `[rows, width]`, and that width: −∞ where an id is not listed.
    /// `room` is memory that comes back from one call to the next.
    pub fn by_id<'a>(&self, logits: &[f32], room: &'a mut Vec<f32>) -> (&'a [f32], usize) {
        let (ids, allowed) = (&self.ids, self.allowed);
        let rows = logits.len() / ids.len();
        // The same places are written each time, so the others stay as they are.
        room.resize(rows * allowed, f32::NEG_INFINITY);
        for (row, to) in logits.chunks_exact(ids.len()).zip(room.chunks_exact_mut(allowed)) {
            for (&id, &logit) in ids.iter().zip(row) {
                to[id as usize] = logit;
            }
        }
        (room, allowed)
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
