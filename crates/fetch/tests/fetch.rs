//! Fetching against a hub on the loopback interface and made-up pips: order of sources, resuming,
//! checksums, locking, and what the final error says.

mod support;

use fetch::{
    Effort, FetchError, Hub, HubSource, Known, KnownFile, Network, PipSource, Progress, Role,
    Sources,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{FakeHub, sha256};
use tempfile::TempDir;

/// The one file of the model `tiny`.
const CONTENT: &[u8] = b"a small model";
const SHA256: &str = "a50fd29b7e23f0572fc34e254545cdc67c13a8bc3265cd133cb69a4a2bb629e6";

static TINY: &[Known] = &[Known {
    name: "tiny",
    role: Role::Target,
    about: "a test",
    licence: "MIT",
    files: &[KnownFile { name: "tiny.gguf", size: 13, sha256: SHA256 }],
    hub: Some(HubSource { repo: "org/model", revision: "main" }),
    pip: Some(PipSource { requirement: "tiny==1", folder: "tiny", wheel_size: 10 }),
}];

/// Nothing listens there: the connection is refused at once.
const NOWHERE: &str = "http://127.0.0.1:1";

fn sources(temp: &TempDir, endpoint: &str, network: Network) -> Sources {
    let hub =
        Hub { endpoint: endpoint.to_owned(), cache: temp.path().join("hub"), token: None, network };
    Sources {
        known: TINY,
        cache: temp.path().join("cache"),
        shipped: vec![temp.path().join("shipped")],
        hub,
        pip: Vec::new(),
    }
}

fn resolve(sources: &Sources, name: &str) -> Result<PathBuf, FetchError> {
    sources.resolve(name, Effort::UseLocal, Progress::Silent)
}

/// A `pip` that counts its installs and does `install` with the folder `$target`.
#[cfg(unix)]
fn pip(folder: &Path, name: &str, install: &str) -> Vec<std::ffi::OsString> {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo \"pip of {name}\"; exit 0; fi\n\
         echo \"$@\" >> '{}.log'\n\
         while [ \"$1\" != --target ]; do shift; done\ntarget=\"$2\"\n{install}\n",
        path.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    vec![path.into_os_string()]
}

#[cfg(unix)]
const GOOD: &str =
    "mkdir -p \"$target/tiny\" && printf 'a small model' > \"$target/tiny/tiny.gguf\"";

#[test]
fn the_known_checksum_is_that_of_the_content() {
    assert_eq!(sha256(CONTENT), SHA256);
}

#[test]
fn a_local_path_is_taken_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("any.gguf");
    fs::write(&path, "x").unwrap();
    let found = resolve(&sources(&temp, NOWHERE, Network::Online), path.to_str().unwrap());
    assert_eq!(found.unwrap(), path);
}

#[test]
fn an_unknown_name_lists_what_is_known() {
    let temp = tempfile::tempdir().unwrap();
    for name in ["nothing", "./missing.gguf", "models/missing.gguf"] {
        let error = resolve(&sources(&temp, NOWHERE, Network::Online), name).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, FetchError::Unknown { .. }), "{name}: {text}");
        assert!(text.starts_with(name) && text.contains("tiny"), "{text}");
    }
}

#[test]
fn shipped_models_need_no_network_and_damaged_ones_are_not_used() {
    let temp = tempfile::tempdir().unwrap();
    let sources = sources(&temp, NOWHERE, Network::Offline);
    let file = temp.path().join("shipped/tiny/tiny.gguf");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, CONTENT).unwrap();
    assert_eq!(resolve(&sources, "TINY").unwrap(), file);
    fs::write(&file, "a smell model").unwrap();
    let error = resolve(&sources, "tiny").unwrap_err().to_string();
    assert!(error.contains("damaged: sha256 "), "{error}");
}

#[test]
fn the_hub_comes_before_pip_and_a_second_time_nothing_is_asked() {
    let temp = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(&[("tiny.gguf", CONTENT)]);
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    let path = resolve(&sources, "tiny").unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert!(path.starts_with(temp.path().join("hub")), "{}", path.display());
    let asked = hub.requests().len();
    assert_eq!(resolve(&sources, "tiny").unwrap(), path);
    assert_eq!(sources.find(&TINY[0]), Some(path));
    assert_eq!(hub.requests().len(), asked);
}

#[test]
fn a_damaged_copy_in_the_hubs_cache_is_fetched_again() {
    let temp = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(&[("tiny.gguf", CONTENT)]);
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    let path = resolve(&sources, "tiny").unwrap();
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "a smell model").unwrap();
    // Damage that changes neither length nor time is for a full check to find.
    fs::File::options().write(true).open(&path).unwrap().set_modified(changed).unwrap();
    assert_eq!(fs::read(resolve(&sources, "tiny").unwrap()).unwrap(), b"a smell model");
    let again = sources.resolve("tiny", Effort::Verify, Progress::Silent).unwrap();
    assert_eq!(fs::read(again).unwrap(), CONTENT);
}

#[test]
fn a_repository_folder_is_fetched_whole_and_resumed_where_it_broke_off() {
    let temp = tempfile::tempdir().unwrap();
    let weights = vec![7u8; 100_000];
    let index = br#"{"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}"#;
    let hub = FakeHub::with_faults(
        &[
            ("config.json", b"{}"),
            ("tokenizer.json", b"{\"t\": 1}"),
            ("model.safetensors.index.json", index),
            ("x-1.safetensors", &weights),
            ("x-2.safetensors", b"second"),
            ("README.md", b"not needed"),
        ],
        // The three small files whole, then the first shard in three pieces.
        &[1_000_000, 1_000_000, 1_000_000, 40_000, 30_000],
        &[],
    );
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    let folder = resolve(&sources, "org/model").unwrap();
    for name in ["config.json", "tokenizer.json", "x-2.safetensors"] {
        assert!(folder.join(name).exists(), "{name}");
    }
    assert!(!folder.join("README.md").exists());
    assert_eq!(fs::read(folder.join("x-1.safetensors")).unwrap(), weights);
    let shard = "GET /org/model/resolve/main/x-1.safetensors";
    let ranges: Vec<String> =
        hub.requests().iter().filter_map(|r| r.strip_prefix(shard).map(str::to_owned)).collect();
    let contents: Vec<&str> = ranges.iter().map(|r| r.trim()).filter(|r| *r != "0-0").collect();
    assert_eq!(contents, ["0-", "40000-", "70000-"], "each try goes on where the last one stopped");

    // Offline, the whole model is found again; a missing shard is noticed.
    let offline =
        Sources { hub: Hub { network: Network::Offline, ..sources.hub.clone() }, ..sources };
    assert_eq!(resolve(&offline, "org/model").unwrap(), folder);
    fs::remove_file(folder.join("x-2.safetensors")).unwrap();
    let error = resolve(&offline, "org/model").unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn a_partial_file_that_is_complete_already_does_not_block() {
    let temp = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(&[("m.gguf", CONTENT)]);
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    let blobs = temp.path().join("hub/models--org--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{SHA256}.part")), CONTENT).unwrap();
    assert_eq!(fs::read(resolve(&sources, "org/model").unwrap()).unwrap(), CONTENT);
}

#[test]
fn a_file_that_arrives_damaged_is_refused_and_not_kept() {
    let temp = tempfile::tempdir().unwrap();
    let hub = FakeHub::with_faults(&[("m.gguf", CONTENT)], &[], &[("m.gguf", &"0".repeat(64))]);
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    let error = resolve(&sources, "org/model:m.gguf").unwrap_err().to_string();
    assert!(error.contains("arrived damaged: sha256 a50f"), "{error}");
    let snapshot = temp.path().join("hub/models--org--model/snapshots/c0ffee/m.gguf");
    assert!(!snapshot.exists());
}

#[test]
fn missing_repositories_and_files_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(&[("a.gguf", b"a"), ("b.gguf", b"b")]);
    let sources = sources(&temp, &hub.endpoint, Network::Online);
    for (name, says) in [
        ("org/other", "no repository org/other with revision main"),
        ("org/model", "name one as org/model:FILE"),
        ("org/model:c.gguf", "org/model has no file c.gguf"),
    ] {
        let error = resolve(&sources, name).unwrap_err().to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
    assert_eq!(fs::read(resolve(&sources, "org/model:b.gguf").unwrap()).unwrap(), b"b");
}

#[test]
fn a_hub_that_does_not_answer_fails_within_seconds() {
    let temp = tempfile::tempdir().unwrap();
    let start = Instant::now();
    // An address set aside for documentation: connections to it hang or are refused.
    let error = resolve(&sources(&temp, "http://192.0.2.1", Network::Online), "org/model");
    let text = error.unwrap_err().to_string();
    assert!(text.contains("http://192.0.2.1 is not reachable"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[cfg(unix)]
#[test]
fn pip_delivers_when_the_hub_cannot() {
    let temp = tempfile::tempdir().unwrap();
    let mut sources = sources(&temp, NOWHERE, Network::Online);
    sources.pip = vec![
        vec![temp.path().join("no-such-pip").into_os_string()],
        pip(temp.path(), "broken", "echo 'ERROR: no such package' >&2; exit 1"),
        pip(
            temp.path(),
            "lying",
            "mkdir -p \"$target/tiny\" && printf 'a smell model' > \"$target/tiny/tiny.gguf\"",
        ),
    ];
    let error = resolve(&sources, "tiny").unwrap_err().to_string();
    for part in [
        "tiny.gguf: not there",
        "hub, org/model: http://127.0.0.1:1 is not reachable",
        "no-such-pip: No such file",
        "exit status: 1: ERROR: no such package",
        "damaged: sha256 ",
        &format!("tiny.gguf (13 bytes, sha256 {SHA256})"),
        &format!("into {}", temp.path().join("cache/models/tiny").display()),
        "Python package tiny==1",
    ] {
        assert!(error.contains(part), "no {part:?} in\n{error}");
    }
    assert!(!temp.path().join("cache/models/tiny/tiny.gguf").exists());

    sources.pip.insert(2, pip(temp.path(), "good", GOOD));
    let path = resolve(&sources, "tiny").unwrap();
    assert_eq!(path, temp.path().join("cache/models/tiny/tiny.gguf"));
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    let log = fs::read_to_string(temp.path().join("good.log")).unwrap();
    assert!(log.contains("--no-deps") && log.trim().ends_with("tiny==1"), "{log}");
    assert!(!temp.path().join("cache/scratch/tiny").exists(), "nothing is left over");

    // A file cut short is noticed by its length and fetched again.
    fs::write(&path, "a sm").unwrap();
    assert_eq!(fs::read(resolve(&sources, "tiny").unwrap()).unwrap(), CONTENT);
}

#[cfg(unix)]
#[test]
fn two_fetches_at_once_install_once() {
    let temp = tempfile::tempdir().unwrap();
    let mut sources = sources(&temp, NOWHERE, Network::Offline);
    sources.pip = vec![pip(temp.path(), "slow", &format!("sleep 0.5; {GOOD}"))];
    std::thread::scope(|scope| {
        let fetches = [(); 3].map(|()| scope.spawn(|| resolve(&sources, "tiny").unwrap()));
        for fetch in fetches {
            assert_eq!(fs::read(fetch.join().unwrap()).unwrap(), CONTENT);
        }
    });
    let log = fs::read_to_string(temp.path().join("slow.log")).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
}
