//! The dashboard in the book asks for what the server exports, and leaves nothing out.

use crate::site::{Script, Setup, Site};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const DASHBOARD: &str = include_str!("../../../../docs/guide/grafana.json");

/// Labels that the one who collects adds, and the bucket's own.
const FOREIGN: [&str; 2] = ["instance", "le"];

/// Every text under the key `expr`, and every legend beside one.
fn queries(value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            if let Some(expr) = fields.get("expr") {
                let text = |value: &Value| value.as_str().expect("a text").to_owned();
                found.push((text(expr), text(&fields["legendFormat"])));
            }
            fields.values().for_each(|inner| queries(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| queries(inner, found)),
        _ => {}
    }
}

/// The names in a query that begin with our prefix.
fn names(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("slipstream_"))
}

/// Labels that a query groups by and a legend shows.
fn labels<'q>(query: &'q str, legend: &'q str) -> BTreeSet<&'q str> {
    let grouped = query.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    grouped.flat_map(|list| list.split(", ")).chain(shown).collect()
}

/// What the server exports after some traffic: labels by name of the sample.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let site = Site::scripted(Script::letters().in_blocks(4), Setup::default());
    let body = json!({
        "text": "abc", "speculation": {"max_width": 4},
        "sampling_params": {"max_new_tokens": 30},
    });
    site.ask("/generate", &body);
    let text = site.get("/metrics").text;
    let mut exported = BTreeMap::<String, BTreeSet<String>>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().expect("a name");
        let own = exported.entry(name.to_owned()).or_default();
        let labels = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        let labels = labels.map_or("", |(labels, _)| labels);
        own.extend(labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())));
    }
    exported
}

#[test]
fn every_panel_asks_for_metrics_and_labels_that_are_exported() {
    let exported = exported();
    let mut found = Vec::new();
    queries(&serde_json::from_str(DASHBOARD).expect("JSON"), &mut found);
    assert!(found.len() > 20, "{} queries", found.len());
    for (query, legend) in &found {
        let used: Vec<&str> = names(query).collect();
        assert!(!used.is_empty(), "{query}");
        for name in &used {
            assert!(exported.contains_key(*name), "no {name} is exported: {query}");
        }
        for label in labels(query, legend).into_iter().filter(|label| !FOREIGN.contains(label)) {
            let known = used.iter().any(|name| exported[*name].contains(label));
            assert!(known, "no metric has the label {label}: {query}");
        }
    }
}

#[test]
fn every_metric_has_its_place() {
    let used: BTreeSet<&str> = names(DASHBOARD).collect();
    for name in exported().keys() {
        // A histogram's quantiles come from its buckets.
        let base = name.strip_suffix("_count").or_else(|| name.strip_suffix("_sum"));
        let name = base.map_or(name.clone(), |base| format!("{base}_bucket"));
        assert!(used.contains(name.as_str()), "{name} is in no panel");
    }
}
