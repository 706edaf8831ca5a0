//! One safetensors file with its `config.json`: heads, damage, and drafters.

use crate::common::safetensors::{Tensor, build, config, tensor, with, with_header, write};
use crate::{refusal, says};
use kernels::format::Format;
use model::checkpoint::{Checkpoint, safetensors};
use serde_json::{Value, json};
use std::path::Path;

fn open(config: &Value, tensors: &[Tensor]) -> Result<Checkpoint, model::LoadError> {
    let path = Path::new("tiny");
    Checkpoint::from_safetensors(path, config.to_string().as_bytes(), build(tensors))
}

fn embedding() -> Tensor {
    tensor("model.embed_tokens.weight", &[4, 8], 1.0)
}

fn untied() -> Value {
    with(config("LlamaForCausalLM"), json!({"tie_word_embeddings": false}))
}

#[test]
fn tied_without_a_head_uses_the_embedding() {
    let checkpoint = open(&config("LlamaForCausalLM"), &[embedding()]).unwrap();
    assert!(checkpoint.config().tied_embeddings);
    assert!(checkpoint.notes().is_empty());
}

#[test]
fn tied_with_the_same_head_uses_the_embedding_and_says_so() {
    let head = tensor("lm_head.weight", &[4, 8], 1.0);
    let checkpoint = open(&config("LlamaForCausalLM"), &[embedding(), head]).unwrap();
    assert!(checkpoint.config().tied_embeddings);
    assert!(checkpoint.notes()[0].contains("repeats the embedding"));
    assert_eq!(checkpoint.unused(), ["model.embed_tokens.weight"]);
}

#[test]
fn tied_with_another_head_uses_the_head_and_says_so() {
    let head = tensor("lm_head.weight", &[4, 8], 2.0);
    let checkpoint = open(&config("LlamaForCausalLM"), &[embedding(), head]).unwrap();
    assert!(!checkpoint.config().tied_embeddings);
    assert!(checkpoint.notes()[0].contains("differs from the embedding"));
    assert_eq!(checkpoint.tensor("lm_head.weight", &[4, 8]).unwrap().data[..4], [0, 0, 0, 64]);
}

#[test]
fn untied_without_a_head_is_refused() {
    says(&refusal(open(&untied(), &[embedding()])), &["lm_head.weight", "tie_word_embeddings"]);
    let head = tensor("lm_head.weight", &[4, 8], 1.0);
    assert!(!open(&untied(), &[embedding(), head]).unwrap().config().tied_embeddings);
    says(&refusal(open(&untied(), &[])), &["model.embed_tokens.weight", "missing"]);
}

#[test]
fn tensors_lie_where_the_header_says() {
    let mut half = tensor("half", &[2, 3], 0.0);
    (half.dtype, half.data) = ("F16", (0..12).collect());
    let mut brain = tensor("brain", &[2], 0.0);
    (brain.dtype, brain.data) = ("BF16", vec![1, 2, 3, 4]);
    let empty = tensor("empty", &[0, 4], 0.0);
    let scalar = tensor("scalar", &[], 3.0);
    let checkpoint =
        open(&config("LlamaForCausalLM"), &[half, embedding(), empty, brain, scalar]).unwrap();
    let read = |name: &str, shape: &[usize]| {
        let tensor = checkpoint.tensor(name, shape).unwrap();
        (tensor.format, tensor.data.to_vec())
    };
    assert_eq!(read("half", &[2, 3]), (Format::F16, (0..12).collect()));
    assert_eq!(read("brain", &[2]), (Format::BF16, vec![1, 2, 3, 4]));
    assert_eq!(read("empty", &[0, 4]), (Format::F32, vec![]));
    assert_eq!(read("scalar", &[]), (Format::F32, 3f32.to_le_bytes().to_vec()));
    assert_eq!(checkpoint.config_json().unwrap()["vocab_size"], 4);
    assert!(checkpoint.gguf().is_none() && checkpoint.folder().is_none());
}

/// Parses a file that must be refused.
fn refused(bytes: &[u8], parts: &[&str]) {
    let error = safetensors::parse(Path::new("bad.safetensors"), bytes).unwrap_err();
    says(&error, &["bad.safetensors"]);
    says(&error, parts);
}

#[test]
fn a_cut_file_is_refused_with_the_missing_bytes() {
    let big = tensor("model.embed_tokens.weight", &[64, 32], 1.0);
    let bytes = build(&[big]);
    let header = bytes.len() - 64 * 32 * 4;
    refused(&bytes[..bytes.len() - 1], &["1 are missing"]);
    refused(&bytes[..bytes.len() - 4096], &["4096 are missing"]);
    refused(&bytes[..header], &["8192 are missing"]);
    refused(&bytes[..header - 5], &["header", "5 are missing"]);
    refused(&bytes[..5], &["header length", "5 of its 8"]);
    let small = build(&[embedding()]);
    for length in 0..small.len() {
        refused(&small[..length], &[]);
    }
    safetensors::parse(Path::new("good.safetensors"), &small).unwrap();
}

#[test]
fn a_cut_file_in_a_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config("LlamaForCausalLM"), &[embedding()]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.folder(), Some(dir.path()));
    assert_eq!(checkpoint.path(), dir.path());
    drop(checkpoint);
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["model.safetensors", "1 are missing"]);
}

#[test]
fn headers_that_cannot_be() {
    let line = |dtype: &str, shape: Value, offsets: Value| {
        json!({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).to_string()
    };
    let bad = |header: &str, data: usize, parts: &[&str]| {
        refused(&with_header(header, &vec![0; data]), parts);
    };
    bad(&line("I64", json!([1]), json!([0, 8])), 8, &["t", "I64", "BF16"]);
    bad(&line("F8_E4M3", json!([1]), json!([0, 1])), 1, &["t", "F8_E4M3"]);
    bad(&line("F32", json!([2]), json!([0, 4])), 4, &["t", "8 bytes"]);
    bad(&line("F32", json!([1]), json!([4, 0])), 4, &["t", "4 to 0"]);
    bad(&line("F32", json!([1]), json!([4, 8])), 8, &["t", "starts at byte 4"]);
    bad(&line("F32", json!([1]), json!([0, 4])), 6, &["2 bytes that no tensor owns"]);
    bad(&line("F32", json!([1u64 << 32, 1u64 << 32]), json!([0, 0])), 0, &["t", "overflows"]);
    bad(&line("F32", json!([1u64 << 62]), json!([0, 0])), 0, &["t", "overflows"]);
    bad(&line("F32", json!([1]), json!([u64::MAX - 3, u64::MAX])), 0, &["t"]);
    bad(&line("F32", json!([-1]), json!([0, 4])), 4, &["header"]);
    bad(&line("F32", json!([1]), json!([0])), 4, &["header"]);
    bad("{", 0, &["header", "JSON"]);
    bad("[]", 0, &["header", "an object of tensors"]);
    bad("", 0, &["header"]);
    bad(r#"{"__metadata__": {"a": 1}}"#, 0, &["header"]);
    bad(r#"{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "x": 1}}"#, 4, &["`x`"]);
    let one = r#"{"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}"#;
    bad(&format!(r#"{{"t": {one}, "t": {one}}}"#), 4, &["t is given twice"]);
    bad(&format!(r#"{{"t": {one}, "u": {one}}}"#), 4, &["u", "starts at byte 0"]);
    refused(&100_000_001u64.to_le_bytes(), &["header length", "100000001"]);
    refused(&u64::MAX.to_le_bytes(), &["header length"]);
    refused(&100_000_000u64.to_le_bytes(), &["header", "100000000 are missing"]);
    bad(&"[".repeat(100_000), 0, &["header"]);
}

/// A drafter of one layer.
fn drafter() -> Value {
    with(
        config("DFlashDraftModel"),
        json!({
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 16,
            "tie_word_embeddings": false,
            "dflash_config": {"mask_token_id": 3, "target_layer_ids": [1, 2]},
        }),
    )
}

#[test]
fn a_drafter_opens_as_a_drafter_only() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &drafter(), &[tensor("fc.weight", &[8, 16], 1.0)]);
    let checkpoint = Checkpoint::open_drafter(dir.path()).unwrap();
    assert_eq!(checkpoint.config().architecture, "DFlashDraftModel");
    assert_eq!(checkpoint.config().windows, [Some(16), None]);
    assert!(checkpoint.config().qk_norm);
    assert_eq!(checkpoint.config_json().unwrap()["dflash_config"]["mask_token_id"], 3);
    checkpoint.tensor("fc.weight", &[8, 16]).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["architectures", "a drafter"]);
    write(dir.path(), &config("Qwen3ForCausalLM"), &[embedding()]);
    let error = refusal(Checkpoint::open_drafter(dir.path()));
    says(&error, &["architectures", "Qwen3ForCausalLM", "DFlashDraftModel"]);
    let bytes = build(&[tensor("fc.weight", &[8, 16], 1.0)]);
    let text = drafter().to_string();
    let path = Path::new("drafter");
    let made = Checkpoint::drafter_from_safetensors(path, text.as_bytes(), bytes).unwrap();
    assert_eq!(made.unused(), ["fc.weight"]);
}

#[test]
fn a_folder_without_one_of_its_files_says_which() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), untied().to_string()).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["model.safetensors", "missing"]);
    std::fs::write(dir.path().join("config.json"), "{").unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["config.json", "JSON"]);
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), build(&[embedding()])).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["config.json"]);
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["config.json", "not a JSON file"]);
}
