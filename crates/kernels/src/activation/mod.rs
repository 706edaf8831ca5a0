//! SwiGLU (Shazeer 2020): `out = silu(gate) · up`, elementwise, with `silu(g) = g / (1 + e⁻ᵍ)`. On the CPU
//! it is part of the products that make both: [`crate::gemm::Scratch::gate`].

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod test;

pub(crate) use cpu::swiglu;
