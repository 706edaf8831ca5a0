//! Damaged or unfit input: one clear error, exit code 2, no panic, nothing on standard output.

use super::{drafter, run, run_with_input, target};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A copy of the target with `change` made to its bytes.
fn changed_target(temp: &TempDir, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = fs::read(target()).unwrap();
    change(&mut bytes);
    let path = temp.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A copy of the drafter with `change` made to its configuration.
fn changed_drafter(temp: &TempDir, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let (from, to) = (drafter(), temp.path().join("drafter"));
    fs::create_dir(&to).unwrap();
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
    to.to_str().unwrap().to_owned()
}

/// Where `key` stands in a GGUF file's metadata.
fn find(bytes: &[u8], key: &str) -> usize {
    let end = bytes.len().min(4 << 20);
    let key = key.as_bytes();
    bytes[..end].windows(key.len()).position(|window| window == key).expect("the key is there")
}

fn generate(model: &str) -> super::Run {
    run(&["generate", "Hello", "--plain", "--max-tokens", "4", "--model", model])
}

#[test]
fn targets_that_are_damaged() {
    let temp = tempfile::tempdir().unwrap();
    let cut = changed_target(&temp, |bytes| bytes.truncate(50_000_000));
    generate(&cut).refused(&["model.gguf"]);
    run(&["inspect", &cut]).refused(&["model.gguf"]);
    let cut = changed_target(&temp, |bytes| bytes.truncate(1_000_000));
    generate(&cut).refused(&["model.gguf"]);
    let cut = changed_target(&temp, |bytes| bytes.truncate(3));
    generate(&cut).refused(&["model.gguf"]);
    let magic = changed_target(&temp, |bytes| bytes[0] = b'X');
    generate(&magic).refused(&["model.gguf", "magic"]);
    let version = changed_target(&temp, |bytes| bytes[4] = 99);
    generate(&version).refused(&["model.gguf", "version"]);
    // The number of tensors.
    let absurd = changed_target(&temp, |bytes| bytes[8..16].fill(0xff));
    generate(&absurd).refused(&["model.gguf"]);
    let unknown = changed_target(&temp, |bytes| {
        let key = "general.architecture";
        let at = find(bytes, key) + key.len() + 12;
        assert_eq!(&bytes[at..at + 5], b"llama");
        bytes[at..at + 5].copy_from_slice(b"lemma");
    });
    generate(&unknown).refused(&["model.gguf", "lemma"]);
}

#[test]
fn targets_without_a_usable_tokenizer_or_template() {
    let temp = tempfile::tempdir().unwrap();
    // A renamed key is a missing key.
    let tokenizer = changed_target(&temp, |bytes| {
        let at = find(bytes, "tokenizer.ggml.tokens");
        bytes[at] = b'T';
    });
    generate(&tokenizer).refused(&["model.gguf", "tokenizer.ggml.tokens"]);
    let template = changed_target(&temp, |bytes| {
        let key = "tokenizer.chat_template";
        let at = find(bytes, key) + key.len() + 12;
        assert_eq!(&bytes[at..at + 2], b"{%");
        bytes[at..at + 2].copy_from_slice(b"{{");
    });
    let chat = ["chat", "Hello", "--plain", "--max-tokens", "4", "--model"];
    run(&[&chat[..], &[template.as_str()]].concat()).refused(&["model.gguf", "template"]);
    let none = changed_target(&temp, |bytes| {
        let at = find(bytes, "tokenizer.chat_template");
        bytes[at] = b'T';
    });
    run(&[&chat[..], &[none.as_str()]].concat()).refused(&["has no chat template", "generate"]);
}

#[test]
fn drafters_that_are_damaged_or_for_another_target() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 7] = [
        ("hidden_size", |config| config["hidden_size"] = 512.into()),
        ("vocab_size", |config| config["vocab_size"] = 32_000.into()),
        ("num_target_layers", |config| config["num_target_layers"] = 24.into()),
        ("target_layer_ids", |config| {
            config["dflash_config"]["target_layer_ids"] = vec![1, 8, 14, 20, 30].into();
        }),
        ("mask_token_id", |config| config["dflash_config"]["mask_token_id"] = 49_152.into()),
        ("block_size", |config| config["block_size"] = 1.into()),
        ("architectures", |config| config["architectures"] = vec!["LlamaForCausalLM"].into()),
    ];
    let target = target();
    for (field, change) in changes {
        let temp = tempfile::tempdir().unwrap();
        let path = changed_drafter(&temp, change);
        let model = target.to_str().unwrap();
        run(&["generate", "Hello", "--max-tokens", "4", "--model", model, "--draft", &path])
            .refused(&["drafter", field]);
    }
    let temp = tempfile::tempdir().unwrap();
    let path = changed_drafter(&temp, |_| {});
    let weights = Path::new(&path).join("model.safetensors");
    fs::File::options().write(true).open(&weights).unwrap().set_len(1_000_000).unwrap();
    run(&["generate", "Hello", "--max-tokens", "4", "--draft", &path])
        .refused(&["model.safetensors"]);
}

#[test]
fn folders_that_are_no_model() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().to_str().unwrap();
    generate(folder).refused(&[folder]);
    fs::write(temp.path().join("config.json"), "{").unwrap();
    fs::write(temp.path().join("model.safetensors"), [0xff; 64]).unwrap();
    generate(folder).refused(&[folder]);
    generate("no-such-model").refused(&["no-such-model", "smollm2-135m-instruct"]);
}

#[test]
fn requests_that_cannot_run() {
    let plain = ["--plain", "--max-tokens", "4"];
    let refused = |arguments: &[&str], parts: &[&str]| {
        run(&[arguments, &plain].concat()).refused(parts);
    };
    refused(&["generate", ""], &["prompt", "empty"]);
    refused(&["chat", ""], &["empty"]);
    target();
    refused(&["generate", "--ids", "49152"], &["prompt", "49152"]);
    let temp = tempfile::tempdir().unwrap();
    let long = temp.path().join("long.txt");
    fs::write(&long, "one two three four five ".repeat(2_000)).unwrap();
    refused(&["generate", "--file", long.to_str().unwrap()], &["prompt", "8192"]);
    run_with_input(&["generate", "-", "--plain"], "").refused(&["prompt", "empty"]);
    run(&["generate", "Hello", "--width", "17"]).refused(&["width", "16"]);
    run(&["generate", "--batch", "/no/such/file", "--json"]).refused(&["/no/such/file"]);
}
