//! Builders of tiny checkpoint files, well formed or broken in one place.

pub(crate) mod gguf;
pub(crate) mod safetensors;
