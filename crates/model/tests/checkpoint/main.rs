//! Checkpoints: what opens, what is refused, and what the refusals say.

#[path = "../common/mod.rs"]
mod common;
mod config_json;
mod gguf;
mod gguf_malformed;
mod mutation;
mod safetensors;
mod sharded;

use model::LoadError;
use model::checkpoint::Checkpoint;

/// The error of an opening that must fail.
fn refusal(opened: Result<Checkpoint, LoadError>) -> LoadError {
    match opened {
        Ok(_) => panic!("the checkpoint must be refused"),
        Err(error) => error,
    }
}

/// Checks that an error's text says all of `parts`.
fn says(error: &LoadError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` must say `{part}`");
    }
}

#[test]
fn a_checkpoint_may_be_read_by_several_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
}
