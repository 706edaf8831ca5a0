//! The report as tables for people.

use super::figures::Percentiles;
use super::report::{Group, Report};
use crate::render::grouped;
use std::fmt::Write;

/// The whole report.
pub(super) fn text(report: &Report) -> String {
    let mut text = header(report).join("\n") + "\n";
    for Sheet { title, note, rows } in sheets(report) {
        let _ = writeln!(text, "\n{title}{note}");
        text += &aligned(&rows);
    }
    text
}

/// A table: its heading, and rows of as many cells, the first with the columns' names. The first
/// two columns say what the row is of.
pub(super) struct Sheet {
    pub(super) title: &'static str,
    pub(super) note: &'static str,
    pub(super) rows: Vec<Vec<String>>,
}

/// Every table of the report, a row for each load and setting.
pub(super) fn sheets(report: &Report) -> Vec<Sheet> {
    let groups = report.groups();
    let sheet = |&(title, note, heads, cells): &Kind| {
        let heads = ["load", "setting"].iter().chain(heads).map(|head| (*head).to_owned());
        let mut rows: Vec<Vec<String>> = vec![heads.collect()];
        for group in &groups {
            let run = group.median();
            let mut row = vec![run.load.clone(), report.setting_name(run)];
            row.extend(cells(group));
            rows.push(row);
        }
        Sheet { title, note, rows }
    };
    KINDS.iter().map(sheet).collect()
}

/// A table's title, what its figures are, columns, and a group's cells.
type Kind = (&'static str, &'static str, &'static [&'static str], fn(&Group<'_>) -> Vec<String>);

const KINDS: &[Kind] = &[
    ("Throughput", "", &["output tok/s", "requests/s", "seconds", "output tokens"], throughput),
    (
        "Latency",
        " (ms: 50 % / 90 % / 99 %)",
        &["first token", "between tokens", "between updates", "end to end", "queue"],
        latencies,
    ),
    (
        "Drafting",
        " (accepted: share of the verify passes with at least 1, 2, … drafts)",
        &["τ", "passes", "drafted", "accepted"],
        drafting,
    ),
    (
        "Steps",
        " (ms; means where three figures do not say 50 % / 90 % / 99 %)",
        &["steps", "cycle", "rows", "tokens", "draft", "verify", "absorb", "plan", "commit"],
        steps,
    ),
    (
        "Host and device",
        " (blocked: ms a step that the host waited)",
        &["blocked landing", "blocked at the fence", "launched ahead", "device idle", "GPU idle"],
        host,
    ),
    ("Memory", "", &["KV pages", "peak", "mean", "prefix hits", "retractions"], memory),
];

/// What was run, on what; a line each.
pub(super) fn header(report: &Report) -> Vec<String> {
    let (load, model) = (&report.load, &report.model);
    let temperature = match load.temperatures {
        [least, most] if least == most => format!("T {least}"),
        [least, most] => format!("T {least} – {most}"),
    };
    let mut lines = vec![
        format!(
            "{} requests · {} prompt tokens · up to {} output tokens · {temperature} · seed {}",
            load.requests,
            grouped(load.prompt_tokens as u64),
            grouped(load.max_tokens as u64),
            load.seed
        ),
        format!(
            "{} on {} · {} · {} tokens of KV memory",
            model.target,
            model.device,
            drafter(report),
            grouped(model.kv_tokens as u64)
        ),
        format!("{} threads · {}", report.machine.threads, report.machine.cpu),
    ];
    lines.extend(
        report.simulated_acceptance.iter().map(|how| format!("simulated acceptance: {how}")),
    );
    let repeats = report.groups().iter().map(Group::repeats).max().unwrap_or(0);
    if repeats > 1 {
        let which = "the run with the median throughput stands for all";
        lines.push(format!("{repeats} runs of each load and setting (least – most): {which}"));
    }
    let equal = if report.outputs_equal { "equal" } else { "DIFFERENT" };
    lines.push(format!("outputs of all {} runs: {equal}", report.runs.len()));
    lines
}

/// The drafter and its width in a few words.
fn drafter(report: &Report) -> String {
    let model = &report.model;
    let Some(width) = model.width else { return "no drafter".to_owned() };
    let name = model.drafter.as_deref().unwrap_or("no drafter of its own");
    match model.widths {
        "fixed" => format!("{name}, width {width}"),
        _ => format!("{name}, widths adapt up to {width}"),
    }
}

fn throughput(group: &Group<'_>) -> Vec<String> {
    let f = &group.median().figures;
    let rate = number(f.output_tokens_per_second);
    let [least, most] = group.spread().map(number);
    vec![
        if group.repeats() > 1 { format!("{rate} ({least} – {most})") } else { rate },
        number(f.requests_per_second),
        number(f.seconds),
        grouped(f.output_tokens as u64),
    ]
}

fn latencies(group: &Group<'_>) -> Vec<String> {
    let f = &group.median().figures;
    [f.ttft_ms, f.itl_ms, f.update_gap_ms, f.end_to_end_ms, f.queue_ms].map(latency).to_vec()
}

fn drafting(group: &Group<'_>) -> Vec<String> {
    let d = &group.median().figures.drafting;
    let reached: Vec<String> = d.reached.iter().map(|share| format!("{share:.2}")).collect();
    vec![
        format!("{:.2}", d.tau),
        grouped(d.passes as u64),
        grouped(d.drafted as u64),
        if reached.is_empty() { "–".to_owned() } else { reached.join(" ") },
    ]
}

fn steps(group: &Group<'_>) -> Vec<String> {
    let s = &group.median().figures.steps;
    let mut cells = vec![grouped(s.count), latency(s.cycle_ms)];
    cells.extend([s.rows, s.tokens].map(|mean| format!("{mean:.1}")));
    let times = [s.draft_ms, s.verify_ms, s.absorb_ms, s.planning_ms, s.committing_ms];
    cells.extend(times.map(number));
    cells
}

fn host(group: &Group<'_>) -> Vec<String> {
    let s = &group.median().figures.steps;
    vec![
        number(s.blocked_ms.land),
        number(s.blocked_ms.fence),
        percent(s.launched_ahead_share),
        percent(s.device_idle_share),
        s.card_idle_share.map_or("–".to_owned(), percent),
    ]
}

fn memory(group: &Group<'_>) -> Vec<String> {
    let f = &group.median().figures;
    vec![
        grouped(f.kv.pages as u64),
        percent(f.kv.peak_share),
        percent(f.kv.mean_share),
        percent(f.cache.hit_share),
        grouped(f.cache.retractions),
    ]
}

/// A latency's percentiles.
fn latency(percentiles: Option<Percentiles>) -> String {
    let Some(p) = percentiles else { return "–".to_owned() };
    [p.p50, p.p90, p.p99].map(number).join(" / ")
}

/// Three digits or so.
pub(super) fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.0995 || v == 0.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Columns as wide as their widest cell: names to the left, figures to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows[0].len()).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += &format!("  {}", cells.collect::<Vec<_>>().join("  "));
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["load", "setting", "τ"], vec!["offline", "plain", "1.00"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        assert_eq!(aligned(&rows), "  load     setting     τ\n  offline  plain    1.00\n");
    }

    #[test]
    fn numbers_have_three_digits_or_so() {
        for (value, text) in
            [(0.0, "0.00"), (0.0123, "0.012"), (9.994, "9.99"), (9.996, "10.0"), (1234.5, "1234")]
        {
            assert_eq!(number(value), text);
        }
    }
}
