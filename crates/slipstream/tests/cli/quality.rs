//! `bench perplexity` and `bench passes`: that quantized arithmetic costs next to nothing, and what the
//! reports say.

use super::{run, target};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Text that no model was trained on when it was written, and that is free: this project's own book.
fn book() -> Vec<String> {
    fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the book's folder") {
            let path = entry.expect("an entry of the book's folder").path();
            if path.is_dir() {
                pages(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs"), &mut found);
    found.sort();
    found.iter().map(|path| path.to_str().expect("paths of text").to_owned()).collect()
}

#[test]
fn quantized_inputs_leave_the_perplexity_of_20000_tokens_within_half_a_percent() {
    target();
    let book = book();
    let mut arguments = vec!["bench", "perplexity", "--json", "--tokens", "20000"];
    arguments.extend(book.iter().map(String::as_str));
    let report: Value = serde_json::from_str(&run(&arguments).ok().out).expect("one JSON object");
    println!("{report}");
    let number = |field: &str| report[field].as_f64().expect(field);
    assert_eq!(number("tokens"), 20_000.0);
    let (stored, float) = (number("as_stored"), number("f32"));
    // A model that reads the text at all; a vocabulary drawn at random has 49,152.
    assert!(float > 1.0 && float < 100.0, "{report}");
    assert!((stored / float - 1.0).abs() <= 0.005, "{report}");
    assert!((100.0 * (stored / float - 1.0) - number("difference_percent")).abs() < 1e-9);
    assert!(number("same_choice_percent") > 90.0, "{report}");
}

#[test]
fn perplexity_says_what_is_wrong_with_a_text() {
    target();
    let folder = tempfile::tempdir().expect("a folder");
    let short = folder.path().join("short.txt");
    fs::write(&short, "Nine words are hardly enough to judge a model.").expect("a file");
    let short = short.to_str().expect("a path of text");
    let score = |more: &[&str]| run(&[&["bench", "perplexity", short], more].concat());
    assert!(score(&[]).ok().out.contains("windows of 512"));
    assert!(score(&["--window", "4", "--tokens", "5"]).ok().out.starts_with("5 tokens"));
    score(&["--tokens", "500"]).refused(&["tokens to score", "--tokens"]);
    score(&["--window", "100000"]).refused(&["--window 100000", "8192"]);
    run(&["bench", "perplexity", "no such text"]).refused(&["no such text"]);
    let none = run(&["bench", "perplexity"]);
    assert_eq!(none.code, Some(2), "{}", none.err);
}

#[test]
fn passes_tell_each_reading() {
    target();
    let arguments = ["bench", "passes", "--json", "--rows", "1,3", "--readings", "2"];
    let out = run(&arguments).ok().out;
    let lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect();
    assert_eq!(
        lines.iter().map(|line| line["rows"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(3)]
    );
    for kind in ["prompt", "verify"] {
        for line in &lines {
            let readings = line[kind].as_array().expect("a list");
            assert_eq!(readings.len(), 2);
            assert!(readings.iter().all(|reading| reading.as_f64().expect("seconds") > 0.0));
        }
    }
    let text = run(&["bench", "passes", "--rows", "2", "--readings", "1"]).ok().out;
    assert!(text.contains("2 rows after 0"), "{text}");
    run(&["bench", "passes", "--context", "9000"]).refused(&["--context 9000", "8192"]);
}
