//! A GGUF file of any bytes: parsed, understood as a model, every tensor read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::checkpoint::Checkpoint;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_gguf(Path::new("fuzz.gguf"), bytes.to_vec()) else {
        return;
    };
    for info in checkpoint.tensors() {
        let tensor = checkpoint.tensor(info.name, info.shape).expect("a listed tensor is there");
        assert_eq!(tensor.data.len(), info.bytes);
    }
    let config = checkpoint.config();
    assert_eq!(config.rope.frequencies(config.head_dim).len(), config.head_dim / 2);
});
