//! A card for tests: buffers in and out, and numbers as a card has them.

use device::cuda::{Cuda, CudaOptions};
use device::{Element, Forward, Lanes, Readback, Shared, Staging};
use kernels::format::{bf16_from_f32, bf16_to_f32};
use kernels::gemm::cuda::Layout;

/// Memory of the card, written by the forward lane.
pub(crate) type Buffer<T> = Shared<T, Forward, Cuda>;

/// A card and its lanes.
pub(crate) struct Card {
    pub(crate) cuda: Cuda,
    pub(crate) lanes: Lanes<Cuda>,
}

impl Card {
    /// The first card, or what is missing.
    pub(crate) fn open(options: CudaOptions) -> Card {
        let cuda = Cuda::new(options).unwrap_or_else(|error| panic!("this needs a card: {error}"));
        let lanes = Lanes::new(&cuda);
        Card { cuda, lanes }
    }

    /// A buffer with these elements.
    pub(crate) fn put<T: Element>(&self, elements: &[T]) -> Buffer<T> {
        let lane = &self.lanes.forward;
        let mut buffer = Shared::new(&self.cuda, "in", elements.len());
        let mut staging: Staging<T, Forward, Cuda> =
            Staging::new(&self.cuda, "staging", 1, elements.len());
        let staged = staging.stage(lane, elements);
        lane.launch(
            "put",
            (lane.queue(), staged.view(), buffer.write(lane).view()),
            |(queue, from, to)| queue.copy(from, to),
        );
        buffer
    }

    /// What a buffer holds.
    pub(crate) fn get<T: Element>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let lane = &self.lanes.forward;
        let mut out: Readback<T, Forward, Cuda> = Readback::new(&self.cuda, "out", 1, buffer.len());
        let mut filling = out.fill(lane, buffer.len());
        lane.launch(
            "get",
            (lane.queue(), buffer.read(lane).view(), filling.view()),
            |(queue, from, to)| queue.copy(from, to),
        );
        filling.pending().land().unwrap_or_else(|lost| panic!("{lost}"))
    }
}

/// Rows of `width` as `layout` has them.
pub(crate) fn laid(layout: Layout, x: &[u16], width: usize) -> Vec<u16> {
    let mut laid = vec![0x7fff; layout.elements(x.len() / width, width)];
    for (i, &x) in x.iter().enumerate() {
        laid[layout.place((i / width, i % width), width)] = x;
    }
    laid
}

/// `rows` rows of `width` one behind the other, which lie as `layout` says.
pub(crate) fn lined(layout: Layout, laid: &[u16], (rows, width): (usize, usize)) -> Vec<u16> {
    (0..rows * width).map(|i| laid[layout.place((i / width, i % width), width)]).collect()
}

/// Rounded to bf16.
pub(crate) fn narrowed(floats: &[f32]) -> Vec<u16> {
    floats.iter().map(|&x| bf16_from_f32(x)).collect()
}

/// The values of bf16 bits.
pub(crate) fn widened(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|&x| bf16_to_f32(x)).collect()
}

/// Holds `got` to `want` within `bound(i)`; NaN is never within.
pub(crate) fn close(what: &str, got: &[f32], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let apart = (f64::from(got) - want).abs();
        let most = bound(i);
        assert!(
            apart <= most,
            "{what}: element {i} is {got}, not {want}: {apart} apart, {most} at most"
        );
    }
}
