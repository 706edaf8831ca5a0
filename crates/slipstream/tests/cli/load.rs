//! `bench load`: figures that agree with each other, outputs that no setting changes, traces that
//! replay, and options that are refused with the remedy.

use super::{run, target};
use serde_json::Value;
use std::path::Path;

fn report(arguments: &[&str]) -> Value {
    target();
    let run = run(&[&["bench", "load", "--json", "-"], arguments].concat()).ok();
    serde_json::from_str(&run.out).expect("standard output is one JSON object")
}

fn list<'v>(value: &'v Value, field: &str) -> &'v Vec<Value> {
    value[field].as_array().unwrap_or_else(|| panic!("no list {field} in {value}"))
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {value}"))
}

fn sum(values: &[Value], field: &str) -> f64 {
    values.iter().map(|value| number(value, field)).sum()
}

/// The digests of a run's outputs.
fn digests(run: &Value) -> Vec<&str> {
    list(run, "requests").iter().map(|r| r["output_digest"].as_str().expect("text")).collect()
}

/// What one run says must agree with itself.
fn consistent(run: &Value, requests: usize) {
    let (figures, answers) = (&run["figures"], list(run, "requests"));
    assert_eq!(answers.len(), requests);
    for (field, of) in
        [("requests", requests as f64), ("output_tokens", sum(answers, "output_tokens"))]
    {
        assert_eq!(number(figures, field), of, "{field}");
    }
    assert_eq!(number(figures, "prompt_tokens"), sum(answers, "prompt_tokens"));
    let (tokens, samples) =
        (number(figures, "output_tokens"), |what: &str| number(&figures[what], "samples"));
    // Every request has a first token here, and each later token one sample.
    assert_eq!(samples("ttft_ms"), requests as f64);
    assert_eq!(samples("itl_ms"), tokens - requests as f64);
    assert_eq!(sum(list(figures, "itl_histogram"), "tokens"), samples("itl_ms"));
    assert_eq!(samples("end_to_end_ms"), requests as f64);
    assert_eq!(samples("queue_ms"), requests as f64);
    let rate = tokens / number(figures, "seconds");
    assert!((number(figures, "output_tokens_per_second") / rate - 1.0).abs() < 1e-9);
    let drafting = &figures["drafting"];
    let accepted: Vec<f64> =
        list(drafting, "accepted").iter().map(|n| n.as_f64().expect("a number")).collect();
    assert_eq!(accepted.iter().sum::<f64>(), number(drafting, "passes"));
    // A pass commits what it accepted and the bonus token, unless a stop or the cap cuts it.
    let most: f64 = accepted.iter().enumerate().map(|(k, n)| (k + 1) as f64 * n).sum();
    assert!(number(drafting, "committed") <= most);
    assert_eq!(number(drafting, "committed"), tokens - requests as f64);
    for percentiles in ["ttft_ms", "itl_ms", "update_gap_ms", "end_to_end_ms", "queue_ms"] {
        let p = &figures[percentiles];
        let ascending = ["p50", "p90", "p99", "max"].map(|name| number(p, name));
        assert!(ascending.is_sorted(), "{percentiles}: {p}");
    }
    let (kv, steps) = (&figures["kv"], &figures["steps"]);
    assert!(number(kv, "peak_share") <= 1.0);
    assert!(number(kv, "mean_share") <= number(kv, "peak_share"));
    assert!(number(steps, "launched_ahead_share") <= 1.0);
    assert!(number(steps, "rows") >= 1.0 && number(steps, "tokens") >= number(steps, "rows"));
}

#[test]
fn figures_agree_and_no_setting_changes_an_output() {
    let report = report(&[
        "--concurrency",
        "1,3",
        "--requests",
        "4",
        "--output-tokens",
        "uniform:6..14",
        "--temperature",
        "0.7",
        "--compare",
        "plain,drafted",
        "--width",
        "4",
        "--fence",
        "self,fine",
        "--repeats",
        "2",
        "--warmup",
        "1",
    ]);
    assert_eq!((&report["schema_version"], &report["outputs_equal"]), (&1.into(), &true.into()));
    let runs = list(&report, "runs");
    assert_eq!(runs.len(), 2 * 2 * 2 * 2);
    for run in runs {
        consistent(run, 4);
        assert_eq!(digests(run), digests(&runs[0]));
        assert_eq!(run["mode"] == "plain", run["figures"]["drafting"]["drafted"] == 0, "{run}");
        let fence = number(&run["figures"]["steps"]["blocked_ms"], "fence");
        assert_eq!(run["fence"] == "self", fence > 0.0, "only one fence blocks the host");
    }
    // Settings take turns, forth and back: A B C D D C B A, load after load.
    let turn = |run: &Value| format!("{} {} {}", run["concurrency"], run["mode"], run["fence"]);
    let turns: Vec<String> = runs.iter().map(turn).collect();
    for load in turns.chunks(8) {
        assert!(load[..4].iter().eq(load[4..].iter().rev()), "{load:?}");
    }
    assert_eq!(turns[..2], ["1 \"plain\" \"self\"", "1 \"drafted\" \"self\""]);
}

#[test]
fn a_saved_trace_replays_to_the_same_outputs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("load.jsonl");
    let path = path.to_str().expect("a plain path");
    let arguments = [
        "--offline",
        "--requests",
        "6",
        "--input-tokens",
        "uniform:4..40",
        "--output-tokens",
        "lognormal:8,0.5",
        "--shared-prefix",
        "0.5",
        "--prefix-tokens",
        "32",
        "--prefixes",
        "1",
        "--temperature",
        "0.9",
        "--running",
        "1",
        "--warmup",
        "0",
    ];
    let first = report(&[&arguments[..], &["--seed", "7", "--save-trace", path]].concat());
    let again = report(&["--trace", path, "--trace-speed", "1000", "--warmup", "0"]);
    let closed = report(&["--trace", path, "--concurrency", "2", "--plain"]);
    for other in [&again, &closed] {
        assert_eq!(digests(&other["runs"][0]), digests(&first["runs"][0]));
        consistent(&other["runs"][0], 6);
    }
    assert_eq!(again["runs"][0]["load"], "trace at 1000 ×");
    assert_eq!(closed["runs"][0]["concurrency"], 2);
    // One at a time, two of the three that share a prefix of two pages find it.
    let cache = &first["runs"][0]["figures"]["cache"];
    assert_eq!(cache["cached_tokens"], 64, "{cache}");
    let unlike = report(&[&arguments[..], &["--seed", "8"]].concat());
    assert_ne!(digests(&unlike["runs"][0]), digests(&first["runs"][0]));
}

/// However many are submitted at once, none is refused because the others wait.
#[test]
fn an_offline_load_may_be_longer_than_any_queue() {
    let lengths = ["--input-tokens", "fixed:1", "--output-tokens", "fixed:1"];
    let report = report(&[&["--offline", "--requests", "1200", "--plain"], &lengths[..]].concat());
    let figures = &report["runs"][0]["figures"];
    assert_eq!((number(figures, "requests"), number(figures, "output_tokens")), (1200.0, 1200.0));
    assert_eq!(figures["itl_ms"], Value::Null, "one token has no other to be apart from");
}

#[test]
fn simulated_acceptance_changes_tau_alone_and_is_always_labelled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("a plain path").to_owned();
    let (json, html) = (file("report.json"), file("report.html"));
    let load = ["bench", "load", "--concurrency", "2", "--requests", "4", "--output-tokens"];
    let settings = ["fixed:25", "--simulate-acceptance", "position:1,1,0", "--width", "4"];
    let out = ["--compare", "plain,drafted", "--json", &json, "--html", &html];
    target();
    let text = run(&[&load[..], &settings, &out].concat()).ok().out;
    let page = std::fs::read_to_string(Path::new(&html)).expect("a page");
    for said in [&text, &page] {
        assert!(said.contains("simulated acceptance"), "{said}");
    }
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("a report")).expect("JSON");
    assert_eq!(report["simulated_acceptance"], "by position: [1.0, 1.0, 0.0]");
    let [plain, drafted] = &list(&report, "runs")[..] else { panic!("two runs") };
    assert_eq!(digests(plain), digests(drafted));
    // 24 tokens after the first, three a pass.
    assert_eq!(drafted["figures"]["drafting"]["tau"], 3.0);
    assert_eq!(drafted["figures"]["drafting"]["accepted"], serde_json::json!([0, 0, 32]));
    assert_eq!(plain["figures"]["drafting"]["tau"], 1.0);
}

/// Several simulations take turns, and each load may have requests of its own number.
#[test]
fn simulations_and_numbers_of_requests_come_in_lists() {
    let load = ["--concurrency", "1,3", "--requests", "2,5", "--output-tokens", "fixed:25"];
    let settings = ["--simulate-acceptance", "1,4", "--width", "4", "--compare", "plain,drafted"];
    let report = report(&[&load[..], &settings].concat());
    assert_eq!(report["outputs_equal"], true);
    assert_eq!(report["load"]["requests"], 5);
    assert_eq!(report["simulated_acceptance"], "τ 1, τ 4 at the full verify width");
    let runs = list(&report, "runs");
    let settings = [
        ("plain", Value::Null, 1.0),
        ("drafted", "τ 1".into(), 1.0),
        ("drafted", "τ 4".into(), 4.0),
    ];
    assert_eq!(runs.len(), 2 * settings.len());
    for (i, run) in runs.iter().enumerate() {
        let requests = [2, 5][i / settings.len()];
        let (mode, simulated, tau) = &settings[i % settings.len()];
        consistent(run, requests);
        assert_eq!(digests(run), digests(&runs[3])[..requests]);
        assert_eq!(&run["mode"], mode);
        assert_eq!(&run["simulated_acceptance"], simulated);
        // 24 tokens after the first: all blocks are whole.
        assert_eq!(number(&run["figures"]["drafting"], "tau"), *tau, "{run}");
    }
}

/// Confidences that tell something change neither outputs nor τ, and the report says how much they tell.
#[test]
fn simulated_confidences_change_no_output_and_are_labelled() {
    let load = ["--concurrency", "2", "--requests", "4", "--output-tokens", "fixed:25"];
    let settings = ["--simulate-acceptance", "2.5", "--simulate-told", "0.6", "--width", "4"];
    let report = report(&[&load[..], &settings, &["--compare", "plain,drafted"]].concat());
    assert_eq!(report["outputs_equal"], true);
    let told = "confidences of r 0.6";
    let all = format!("τ 2.5 at the full verify width, {told}");
    assert_eq!(report["simulated_acceptance"], all);
    let [plain, drafted] = &list(&report, "runs")[..] else { panic!("two runs") };
    assert_eq!(plain["simulated_acceptance"], Value::Null);
    assert_eq!(drafted["simulated_acceptance"], format!("τ 2.5, {told}"));
    consistent(drafted, 4);
    let tau = number(&drafted["figures"]["drafting"], "tau");
    assert!(tau > 1.5 && tau < 3.5, "{tau}");
}

#[test]
fn options_that_cannot_work_are_refused_with_the_remedy() {
    target();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace.jsonl");
    std::fs::write(&trace, "{\"at\": 0, \"ids\": [1]}\n").expect("it is written");
    let trace = trace.to_str().expect("a plain path");
    let missing = folder.path().join("no/report.html");
    let missing = missing.to_str().expect("a plain path");
    for (arguments, parts) in [
        (vec!["--concurrency", "8", "--requests", "4"], ["--concurrency 8", "--requests"]),
        (vec!["--concurrency", "1,8", "--requests", "4,7"], ["--concurrency 8", "7 requests"]),
        (vec!["--concurrency", "1,2", "--requests", "4,4,4"], ["3 numbers", "one for each"]),
        (vec!["--save-trace", trace], ["--save-trace", "one --concurrency"]),
        (vec!["--trace", missing], ["--trace", "report.html"]),
        (vec!["--trace", trace], ["line 1", "max_tokens"]),
        (vec!["--html", missing], ["--html", "report.html"]),
        (vec!["--input-tokens", "fixed:100000"], ["--input-tokens", "shorter"]),
        (vec!["--output-tokens", "fixed:100000"], ["--output-tokens", "shorter"]),
        (
            vec!["--simulate-acceptance", "5", "--width", "4"],
            ["--simulate-acceptance 5", "--width"],
        ),
        (vec!["--simulate-told", "0.6"], ["--simulate-told", "--simulate-acceptance"]),
        (vec!["--width", "99"], ["width", "16"]),
        (vec!["--kv-tokens", "16"], ["--kv-tokens 16", "at least"]),
    ] {
        run(&[&["bench", "load"], &arguments[..]].concat()).refused(&parts);
    }
}
