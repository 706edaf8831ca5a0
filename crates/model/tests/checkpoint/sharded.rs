//! Shards and their index: nothing outside the folder is opened, nothing is missing unnoticed.

use crate::common::safetensors::{build, config, tensor, write_index};
use crate::{refusal, says};
use model::checkpoint::{Checkpoint, safetensors};
use serde_json::json;
use std::path::Path;

const EMBEDDING: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm.weight";

/// A folder whose index puts the embedding into `a.safetensors` and the norm into
/// `b.safetensors`, with both files there.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path());
    dir
}

fn fill(folder: &Path) {
    let map = json!({EMBEDDING: "a.safetensors", NORM: "b.safetensors"});
    write_index(folder, &config("LlamaForCausalLM"), map);
    std::fs::write(folder.join("a.safetensors"), build(&[tensor(EMBEDDING, &[4, 8], 1.0)]))
        .unwrap();
    std::fs::write(folder.join("b.safetensors"), build(&[tensor(NORM, &[8], 2.0)])).unwrap();
}

#[test]
fn shards_are_one_checkpoint() {
    let dir = folder();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.tensor(EMBEDDING, &[4, 8]).unwrap().data[..4], 1f32.to_le_bytes());
    assert_eq!(checkpoint.tensor(NORM, &[8]).unwrap().data[..4], 2f32.to_le_bytes());
    assert!(checkpoint.unused().is_empty() && checkpoint.notes().is_empty());
    let error = checkpoint.tensor(NORM, &[4]).unwrap_err();
    says(&error, &["b.safetensors", NORM]);
}

#[test]
fn names_that_lead_out_are_refused() {
    for name in ["../x.safetensors", "/etc/hostname", "..", ".", "", "a/b", "a\\b", "C:x", "a\0b"] {
        let dir = tempfile::tempdir().unwrap();
        let map = json!({ EMBEDDING: name });
        write_index(dir.path(), &config("LlamaForCausalLM"), map);
        let error = refusal(Checkpoint::open(dir.path()));
        says(&error, &["index.json", EMBEDDING, name, "plain file name"]);
    }
}

#[cfg(unix)]
#[test]
fn links_that_lead_out_are_refused_before_anything_is_opened() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("x.safetensors");
    std::fs::write(&target, build(&[tensor(NORM, &[8], 2.0)])).unwrap();
    let dir = folder();
    let link = dir.path().join("b.safetensors");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    // The damage of `a` would be found first if shards were opened as they come.
    std::fs::write(dir.path().join("a.safetensors"), b"damaged").unwrap();
    let error = refusal(Checkpoint::open(dir.path()));
    says(&error, &["b.safetensors", NORM, "link out of the folder"]);
    // A link inside the folder is fine.
    std::fs::remove_file(&link).unwrap();
    fill(dir.path());
    std::fs::rename(dir.path().join("a.safetensors"), dir.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", dir.path().join("a.safetensors")).unwrap();
    Checkpoint::open(dir.path()).unwrap();
}

#[cfg(unix)]
#[test]
fn the_hugging_face_cache_may_link_to_its_blobs() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--a--b/snapshots/0123");
    let blobs = cache.path().join("models--a--b/blobs");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    fill(&snapshot);
    let link = snapshot.join("a.safetensors");
    std::fs::rename(&link, blobs.join("abcd")).unwrap();
    std::os::unix::fs::symlink("../../blobs/abcd", &link).unwrap();
    Checkpoint::open(&snapshot).unwrap();
    std::fs::rename(blobs.join("abcd"), cache.path().join("abcd")).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("../../../abcd", &link).unwrap();
    says(&refusal(Checkpoint::open(&snapshot)), &["link out of the folder"]);
}

#[test]
fn a_missing_shard_is_named_with_a_tensor_of_it() {
    let dir = folder();
    std::fs::remove_file(dir.path().join("b.safetensors")).unwrap();
    says(&refusal(Checkpoint::open(dir.path())), &["b.safetensors", NORM, "missing"]);
}

#[test]
fn a_tensor_its_shard_lacks_is_named_with_the_shard() {
    let dir = folder();
    let map = json!({EMBEDDING: "a.safetensors", NORM: "a.safetensors"});
    write_index(dir.path(), &config("LlamaForCausalLM"), map);
    let error = refusal(Checkpoint::open(dir.path()));
    says(&error, &["a.safetensors", NORM, "lacks"]);
    // Swapped: both are there, each in the other's shard.
    let map = json!({EMBEDDING: "b.safetensors", NORM: "a.safetensors"});
    write_index(dir.path(), &config("LlamaForCausalLM"), map);
    says(&refusal(Checkpoint::open(dir.path())), &["a.safetensors", NORM, "lacks"]);
}

#[test]
fn a_cut_shard_is_named_with_the_missing_bytes() {
    let dir = folder();
    let path = dir.path().join("b.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for missing in [1, 32] {
        std::fs::write(&path, &bytes[..bytes.len() - missing]).unwrap();
        let error = refusal(Checkpoint::open(dir.path()));
        says(&error, &["b.safetensors", &format!("{missing} are missing")]);
    }
}

#[test]
fn tensors_outside_the_index_are_ignored_with_a_note() {
    let dir = folder();
    let tensors = [tensor(NORM, &[8], 2.0), tensor("extra", &[8], 2.0)];
    std::fs::write(dir.path().join("b.safetensors"), build(&tensors)).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(!checkpoint.has("extra"));
    assert_eq!(checkpoint.notes(), ["b.safetensors: extra is not in the index: ignored"]);
}

#[test]
fn an_index_of_another_form_is_refused() {
    let path = Path::new("model.safetensors.index.json");
    for text in ["", "[]", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
        let error = safetensors::parse_index(path, text.as_bytes()).unwrap_err();
        says(&error, &["model.safetensors.index.json", "weight_map"]);
    }
}
