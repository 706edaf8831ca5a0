//! Biases of products on a card, which leave their sums in pieces: `y[row] += bias` before anyone adds
//! the pieces up. On the CPU this is [`crate::gemm::add_bias`].

pub mod cuda;
