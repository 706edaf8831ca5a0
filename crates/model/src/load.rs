//! Tensors of a checkpoint as the layers hold them.

use crate::checkpoint::{Checkpoint, Tensor};
use crate::error::LoadError;
use device::Cpu;
use kernels::format::{Format, quantize_q8_0};
use kernels::gemm::{RowOrder, Weight};

/// How matrices are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// In the format of the file.
    AsStored,
    /// Expanded to `f32`, so that nothing is rounded but sums: what quantized arithmetic is
    /// judged by. Takes several times the memory.
    Float,
    /// Plain floats as 8-bit blocks of 32 ([`Format::Q8_0`]), which halves what is read and
    /// doubles the speed of a product. For drafters: what they propose is checked, so their
    /// rounding costs acceptance at most, never a byte of the output.
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
        let pack = |format, data: &[u8]| Weight::pack(self.cpu, format, n, k, tensor.order, data);
        let whole_blocks = k.is_multiple_of(Format::Q8_0.block());
        let weight = match self.precision {
            Precision::Int8 if tensor.format.block() == 1 && whole_blocks => {
                pack(Format::Q8_0, &quantize_q8_0(&floats(&tensor)))
            }
            Precision::Float => {
                let bytes: Vec<u8> =
                    floats(&tensor).into_iter().flat_map(f32::to_le_bytes).collect();
                pack(Format::F32, &bytes)
            }
            Precision::AsStored | Precision::Int8 => pack(tensor.format, tensor.data),
        };
        self.from.release(&tensor);
        Ok(weight)
    }
}

/// A tensor's elements.
fn floats(tensor: &Tensor<'_>) -> Vec<f32> {
    let mut floats = vec![0.0; tensor.shape.iter().product()];
    tensor.format.dequantize(tensor.data, &mut floats);
    floats
}

/// Puts the entries of a stored bias into the order of the outputs.
pub(crate) fn in_order(stored: Vec<f32>, order: RowOrder) -> Vec<f32> {
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
