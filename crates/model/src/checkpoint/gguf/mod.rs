//! GGUF files (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

mod metadata;

pub use metadata::{Array, Metadata, Value};
