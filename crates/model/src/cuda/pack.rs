//! Weights as a card's products take them: rounded to `bf16` and packed, from whatever holds them.

use super::shape::Sizes;
use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::LoadError;
use crate::load::in_order;
use device::Cpu;
use kernels::format::bf16_from_f32;
use kernels::gemm::cuda::{BLOCK, Shape};
use kernels::gemm::gated::woven;

/// Where weights come from.
pub(crate) enum Tensors<'f> {
    /// A checkpoint's files.
    Files(&'f Checkpoint),
    /// Nowhere: random ones of about the size that trained ones have, a function of the seed.
    Random(u64),
}

/// A stored matrix, by rows.
enum Rows<'f> {
    Stored { tensor: Tensor<'f>, bytes: usize },
    Random { seed: u64, scale: f32 },
}

/// How the rows or columns of a matrix lie on the card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// As in the matrix.
    Own,
    /// In padded heads.
    Heads(Sizes),
}

impl Order {
    /// How many there are on the card for `stored` in the matrix.
    fn count(self, stored: usize) -> usize {
        match self {
            Order::Own => stored,
            Order::Heads(sizes) => stored / sizes.own * sizes.heads.dim,
        }
    }

    /// Elements in this order, of stored ones.
    pub(crate) fn lay(self, stored: Vec<f32>) -> Vec<f32> {
        match self {
            Order::Own => stored,
            Order::Heads(sizes) => sizes.padded(&stored),
        }
    }

    fn stored(self, at: usize) -> Option<usize> {
        match self {
            Order::Own => Some(at),
            Order::Heads(sizes) => sizes.stored(at),
        }
    }
}

/// How the rows of several matrices lie in one weight.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Below,
    Woven,
}

/// The matrices of a weight.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    all: Vec<Part>,
    lie: Lie,
}

impl Parts {
    /// One below the other.
    pub(crate) fn below(all: Vec<Part>) -> Parts {
        Parts { all, lie: Lie::Below }
    }

    /// As [`woven`] says.
    pub(crate) fn woven(gates: Part, ups: Part) -> Parts {
        Parts { all: vec![gates, ups], lie: Lie::Woven }
    }

    pub(crate) fn all(&self) -> &[Part] {
        &self.all
    }

    /// Rows and columns on the card.
    pub(crate) fn on_card(&self) -> [usize; 2] {
        let rows = self.all.iter().map(|part| part.on_card()[0]).sum();
        [rows, self.all[0].on_card()[1]]
    }

    /// Which of the parts' rows, one part after the other, is row `at` of the weight.
    pub(crate) fn row(&self, at: usize) -> usize {
        match self.lie {
            Lie::Below => at,
            Lie::Woven => woven(at, self.all[0].on_card()[0]),
        }
    }
}

/// A matrix that is part of a packed weight.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its tensor's name.
    pub(crate) name: String,
    /// Its rows and columns as stored.
    pub(crate) shape: [usize; 2],
    pub(crate) rows: Order,
    pub(crate) columns: Order,
}

impl Part {
    pub(crate) fn plain(name: impl Into<String>, shape: [usize; 2]) -> Part {
        Part { name: name.into(), shape, rows: Order::Own, columns: Order::Own }
    }

    /// Rows and columns on the card.
    pub(crate) fn on_card(&self) -> [usize; 2] {
        [self.rows.count(self.shape[0]), self.columns.count(self.shape[1])]
    }
}

impl Tensors<'_> {
    /// A vector of `len` floats; random weights have norms of 1 and biases of 0.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        match self {
            Tensors::Random(_) => Ok(vec![if name.ends_with(".bias") { 0.0 } else { 1.0 }; len]),
            Tensors::Files(files) => {
                let tensor = files.tensor(name, &[len])?;
                let mut stored = vec![0.0; len];
                tensor.format.dequantize(tensor.data, &mut stored);
                Ok(in_order(stored, tensor.order))
            }
        }
    }

    fn rows(&self, part: &Part) -> Result<Rows<'_>, LoadError> {
        match self {
            Tensors::Random(seed) => {
                let mix = |seed: u64, byte: u8| mixed(seed.wrapping_add(u64::from(byte)));
                let seed = part.name.bytes().fold(*seed, mix);
                // So that a product's elements are of about the size of its input's.
                Ok(Rows::Random { seed, scale: (3.0 / part.shape[1] as f32).sqrt() })
            }
            Tensors::Files(files) => {
                let tensor = files.tensor(&part.name, &part.shape)?;
                let Some(bytes) = tensor.format.bytes(part.shape[1]) else {
                    let problem = format!(
                        "rows of {} are not whole {} blocks",
                        part.shape[1],
                        tensor.format.name()
                    );
                    return Err(LoadError::new(files.path(), &part.name, problem));
                };
                Ok(Rows::Stored { tensor, bytes })
            }
        }
    }

    /// The parts' rows, packed as `shape` says.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape.
    pub(crate) fn packed(
        &self,
        cpu: &Cpu,
        shape: &Shape,
        parts: &Parts,
    ) -> Result<Vec<u16>, LoadError> {
        let matrices = parts
            .all()
            .iter()
            .map(|part| Ok((part, self.rows(part)?)))
            .collect::<Result<Vec<_>, LoadError>>()?;
        // A place is the sum of what its row and its column make.
        let columns: Vec<usize> = (0..shape.k).map(|column| shape.place(0, column)).collect();
        let mut packed = vec![0; shape.packed()];
        let block = BLOCK * shape.k;
        cpu.chunks(&mut packed, block, &|index, to| {
            let (first, start) = (index * BLOCK, index * block);
            let mut row = vec![0.0; shape.k];
            for i in first..(first + BLOCK).min(shape.n) {
                fill(&matrices, parts.row(i), &mut row);
                let at = shape.place(i, 0) - start;
                for (&x, &column) in row.iter().zip(&columns) {
                    to[at + column] = bf16_from_f32(x);
                }
            }
        });
        self.release(matrices);
        Ok(packed)
    }

    /// The rows of `part`, one after the other, not packed.
    ///
    /// # Errors
    /// As [`Tensors::packed`].
    pub(crate) fn plain(&self, cpu: &Cpu, part: &Part) -> Result<Vec<u16>, LoadError> {
        let matrices = [(part, self.rows(part)?)];
        let [rows, columns] = part.on_card();
        let mut table = vec![0; rows * columns];
        cpu.chunks(&mut table, columns, &|index, to| {
            let mut row = vec![0.0; columns];
            fill(&matrices, index, &mut row);
            to.iter_mut().zip(&row).for_each(|(to, &x)| *to = bf16_from_f32(x));
        });
        Ok(table)
    }

    fn release<'t>(&self, matrices: impl IntoIterator<Item = (&'t Part, Rows<'t>)>) {
        let Tensors::Files(files) = self else { return };
        for (_, rows) in matrices {
            if let Rows::Stored { tensor, .. } = rows {
                files.release(&tensor);
            }
        }
    }
}

/// Row `i` of the parts together.
fn fill(matrices: &[(&Part, Rows<'_>)], mut i: usize, to: &mut [f32]) {
    to.fill(0.0);
    for (part, rows) in matrices {
        let count = part.on_card()[0];
        if i >= count {
            i -= count;
            continue;
        }
        let Some(stored) = part.rows.stored(i) else { return };
        if part.columns == Order::Own {
            return rows.read(stored, part.shape, to);
        }
        let mut row = vec![0.0; part.shape[1]];
        rows.read(stored, part.shape, &mut row);
        for (at, to) in to.iter_mut().enumerate() {
            *to = part.columns.stored(at).map_or(0.0, |column| row[column]);
        }
        return;
    }
    unreachable!("the parts have a row for each column of the product");
}

impl Rows<'_> {
    fn read(&self, row: usize, [n, k]: [usize; 2], to: &mut [f32]) {
        match self {
            Rows::Stored { tensor, bytes } => {
                let at = tensor.order.file_row(row, n) * bytes;
                tensor.format.dequantize(&tensor.data[at..at + bytes], to);
            }
            Rows::Random { seed, scale } => {
                let first = (row * k) as u64;
                for (i, to) in to.iter_mut().enumerate() {
                    let bits = mixed(seed.wrapping_add(first + i as u64));
                    *to = ((bits >> 40) as f32 / 8_388_608.0 - 1.0) * scale;
                }
            }
        }
    }
}

/// The mixer of SplitMix64 (Steele et al. 2014).
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::shape::tests::config;
    use std::path::Path;

    fn fixture(name: &str) -> Checkpoint {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
        Checkpoint::open(&path).expect("the checkpoint opens")
    }

    /// The elements of a packed weight, row by row.
    fn unpacked(shape: &Shape, packed: &[u16]) -> Vec<Vec<u16>> {
        let row = |i| (0..shape.k).map(|column| packed[shape.place(i, column)]).collect();
        (0..shape.n).map(row).collect()
    }

    #[test]
    fn parts_lie_one_below_the_other_in_padded_heads() {
        let sizes = Sizes::of(&config(24), Path::new("m")).expect("a head that fits");
        let heads = Order::Heads(sizes);
        let q = Part { rows: heads, ..Part::plain("q", [96, 64]) };
        let k = Part { rows: heads, ..Part::plain("k", [48, 64]) };
        let o = Part { columns: heads, ..Part::plain("o", [64, 96]) };
        let (cpu, random) = (Cpu::new(2), Tensors::Random(7));
        let own = |name: &str, shape| {
            let plain = random.plain(&cpu, &Part::plain(name, shape)).expect("nothing is missing");
            plain.chunks_exact(shape[1]).map(<[u16]>::to_vec).collect::<Vec<_>>()
        };
        let shape = Shape::new(256 + 128, 64, 132);
        let parts = Parts::below(vec![q, k]);
        let packed = random.packed(&cpu, &shape, &parts).expect("nothing is missing");
        let (rows, own_q, own_k) =
            (unpacked(&shape, &packed), own("q", [96, 64]), own("k", [48, 64]));
        for (i, row) in rows.iter().enumerate() {
            let (of, at) = if i < 256 { (&own_q, i) } else { (&own_k, i - 256) };
            match sizes.stored(at) {
                Some(stored) => assert_eq!(*row, of[stored], "row {i}"),
                None => assert!(row.iter().all(|&x| x == 0), "row {i} stands for nothing"),
            }
        }
        let shape = Shape::new(64, 256, 132);
        let parts = Parts::below(vec![o]);
        let packed = random.packed(&cpu, &shape, &parts).expect("nothing is missing");
        for (row, own) in unpacked(&shape, &packed).iter().zip(own("o", [64, 96])) {
            for (at, &x) in row.iter().enumerate() {
                assert_eq!(x, sizes.stored(at).map_or(0, |stored| own[stored]), "column {at}");
            }
        }
    }

    #[test]
    fn gates_and_ups_are_woven() {
        let (cpu, random) = (Cpu::new(2), Tensors::Random(7));
        let [gate, up] = ["gate", "up"].map(|name| Part::plain(name, [96, 64]));
        let own = [&gate, &up].map(|part| random.plain(&cpu, part).expect("nothing is missing"));
        let shape = Shape::new(192, 64, 132);
        let packed = random.packed(&cpu, &shape, &Parts::woven(gate, up));
        let packed = packed.expect("nothing is missing");
        for (column, row) in unpacked(&shape, &packed).iter().enumerate() {
            let stacked = woven(column, 96);
            let of = &own[stacked / 96][stacked % 96 * 64..][..64];
            assert_eq!(row, of, "column {column}");
        }
    }

    /// A file's rows, whatever their format and order, are those of the same model in floats, rounded.
    #[test]
    fn stored_rows_are_rounded_in_the_order_of_use() {
        let (cpu, plain, gguf) = (Cpu::new(1), fixture("llama3"), fixture("llama3.gguf"));
        let part = Part::plain("model.layers.1.self_attn.q_proj.weight", [64, 64]);
        let shape = Shape::new(64, 64, 132);
        let of = |files| {
            let parts = Parts::below(vec![part.clone()]);
            Tensors::Files(files).packed(&cpu, &shape, &parts).expect("the tensor is there")
        };
        assert_eq!(of(&plain), of(&gguf));
        let tensor = plain.tensor(&part.name, &[64, 64]).expect("the tensor is there");
        let mut floats = vec![0.0; 64 * 64];
        tensor.format.dequantize(tensor.data, &mut floats);
        let narrowed: Vec<u16> = floats.iter().map(|&x| bf16_from_f32(x)).collect();
        assert_eq!(of(&plain), shape.pack(&narrowed));
    }

    #[test]
    fn random_weights_are_about_as_large_as_trained_ones() {
        let part = Part::plain("w", [64, 4096]);
        let weights = Tensors::Random(1).plain(&Cpu::new(2), &part).expect("nothing is missing");
        let squares: f64 =
            weights.iter().map(|&bits| f64::from(kernels::format::bf16_to_f32(bits)).powi(2)).sum();
        // 2¹⁸ uniform squares of a mean of 1 / 4096 stray from it by 2⁻⁹ of it; ten times that never.
        let mean = squares / weights.len() as f64 * 4096.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert_eq!(Tensors::Random(1).vector("a.norm.weight", 3).expect("ones"), [1.0; 3]);
        assert_eq!(Tensors::Random(1).vector("a.q_proj.bias", 3).expect("zeros"), [0.0; 3]);
    }
}
