//! `config.json`, a safetensors file and an index of any bytes. The input is the configuration up
//! to the first NUL byte and the weights behind it; without one, it is an index.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model::checkpoint::{Checkpoint, safetensors};
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz");
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else {
        if let Ok(index) = safetensors::parse_index(path, bytes) {
            for shard in index.shards.keys() {
                assert_eq!(path.join(shard).parent(), Some(path), "a shard stays in its folder");
            }
        }
        return;
    };
    let (config, weights) = (&bytes[..end], bytes[end + 1..].to_vec());
    if let Ok(tensors) = safetensors::parse(path, &weights) {
        let held: usize = tensors.iter().map(|tensor| tensor.range.len()).sum();
        assert!(held <= weights.len(), "no byte belongs to two tensors");
    }
    let Ok(checkpoint) = Checkpoint::from_safetensors(path, config, weights) else { return };
    for info in checkpoint.tensors() {
        let tensor = checkpoint.tensor(info.name, info.shape).expect("a listed tensor is there");
        assert_eq!(tensor.data.len(), info.bytes);
    }
});
