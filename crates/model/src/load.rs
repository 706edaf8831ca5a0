//! Tensors of a checkpoint as the layers hold them.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::LoadError;
use device::Cpu;
use kernels::format::Format;
use kernels::gemm::{RowOrder, Weight};

/// How matrices are held in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// In the format of the file.
    AsStored,
    /// Plain floats as 8-bit blocks of 32 ([`Format::Q8_0`]), which halves what is read and
    /// doubles the speed of a product. For drafters: what they propose is checked, so their
    /// rounding costs acceptance at most, never a byte of the output.
    #[default]
    Int8,
}

/// Loads from one checkpoint.
pub(crate) struct Loader<'a> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) from: &'a Checkpoint,
    pub(crate) precision: Precision,
}

impl Loader<'_> {
    /// A vector of `len` floats of any format.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.from.tensor(name, &[len])?;
        let mut stored = vec![0.0; len];
        tensor.format.dequantize(tensor.data, &mut stored);
        Ok(in_order(stored, tensor.order))
    }

    /// An `[n, k]` matrix, repacked.
    pub(crate) fn matrix(&self, name: &str, [n, k]: [usize; 2]) -> Result<Weight, LoadError> {
        let tensor = self.from.tensor(name, &[n, k])?;
        if !k.is_multiple_of(tensor.format.block()) {
            let format = tensor.format.name();
            let problem = format!("rows of {k} are not whole {format} blocks");
            return Err(LoadError::new(self.from.path(), name, problem));
        }
        let quantizes = self.precision == Precision::Int8
            && tensor.format.block() == 1
            && k.is_multiple_of(Format::Q8_0.block());
        let weight = if quantizes {
            let blocks = int8(&tensor, n * k);
            Weight::pack(self.cpu, Format::Q8_0, n, k, tensor.order, &blocks)
        } else {
            Weight::pack(self.cpu, tensor.format, n, k, tensor.order, tensor.data)
        };
        self.from.release(&tensor);
        Ok(weight)
    }
}

/// A tensor of plain floats as [`Format::Q8_0`] blocks.
fn int8(tensor: &Tensor<'_>, elements: usize) -> Vec<u8> {
    let mut floats = vec![0.0; elements];
    tensor.format.dequantize(tensor.data, &mut floats);
    kernels::format::quantize_q8_0(&floats)
}

/// Puts the entries of a stored bias into the order of the outputs.
fn in_order(stored: Vec<f32>, order: RowOrder) -> Vec<f32> {
    let RowOrder::Interleaved { heads } = order else { return stored };
    let dim = stored.len() / heads;
    (0..stored.len())
        .map(|i| {
            let (head, within) = (i / dim, i % dim);
            let (half, pair) = (within / (dim / 2), within % (dim / 2));
            stored[head * dim + 2 * pair + half]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_of_neighbouring_pairs_is_put_into_halves() {
        let stored = vec![
            0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 10.0, 14.0, 11.0, 15.0, 12.0, 16.0, 13.0, 17.0,
        ];
        let want = vec![
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0,
        ];
        assert_eq!(in_order(stored.clone(), RowOrder::Interleaved { heads: 2 }), want);
        assert_eq!(in_order(stored.clone(), RowOrder::Plain), stored);
    }
}
