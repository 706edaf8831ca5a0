//! The operations of a forward pass, one folder each. `mod.rs` holds the contract (shapes,
//! order of every reduction), `cpu.rs` the CPU code, `test.rs` the check against f64.
//!
//! Activations are `f32`, row-major. **Batch invariance**: the result for a row depends on that
//! row's inputs only: not on how many rows, requests or threads the launch has.
//!
//! With the feature `cuda` most operations have a `kernel.cu` and a `cuda.rs` beside that: the same
//! operation on a CUDA card.

pub mod accept;
pub mod activation;
pub mod attention;
#[cfg(feature = "cuda")]
pub mod bias;
pub mod ceiling;
pub mod choose;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod embed;
pub mod format;
#[cfg(feature = "cuda")]
pub mod gather;
pub mod gemm;
pub mod heads;
pub mod kv_store;
mod lanes;
pub mod norm;
#[cfg(test)]
mod random;
pub mod rope;
pub mod rows;
mod spread;
