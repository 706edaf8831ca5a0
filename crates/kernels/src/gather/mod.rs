//! Rows of a matrix by their numbers, one behind the other, on a card. On the CPU these are slices.

pub mod cuda;
