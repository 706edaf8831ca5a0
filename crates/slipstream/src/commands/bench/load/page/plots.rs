//! What the page plots of a report.

use super::super::figures::{Figures, Percentiles, Point};
use super::super::report::{Group, Report};
use super::chart::{Axis, Marks, Row, Series, bars, curves, figure, ranges};
use super::markup::Element;
use super::scale::Kind;

/// Every plot that the report has figures for.
pub(super) fn plots(report: &Report) -> Vec<Element> {
    let groups = report.groups();
    let mut plots = vec![throughput(report, &groups)];
    plots.extend([
        latency(report, &groups, "Time to first token", "Arrival to first token.", |f| f.ttft_ms),
        latency(
            report,
            &groups,
            "Time between tokens",
            "The time between two updates, shared evenly by the tokens of the later one.",
            |f| f.itl_ms,
        ),
    ]);
    let last = last_load(&groups);
    plots.push(histogram(report, &last));
    plots.extend(acceptance(report, &groups));
    plots.extend(blocked(report, &groups));
    plots.extend(timelines(report, &last));
    plots
}

/// The groups of the last load, which is the most crowded one when they were given in that order.
fn last_load<'g, 'r>(groups: &'g [Group<'r>]) -> Vec<&'g Group<'r>> {
    let pacing = |group: &Group<'_>| group.median().pacing;
    let last = groups.last().map(pacing);
    groups.iter().filter(|group| Some(pacing(group)) == last).collect()
}

fn row_name(report: &Report, group: &Group<'_>) -> String {
    let run = group.median();
    match run.concurrency {
        Some(open) => format!("{open} · {}", report.setting_name(run)),
        None => report.setting_name(run),
    }
}

fn setting_name(report: &Report, group: &Group<'_>) -> String {
    report.setting_name(group.median())
}

/// Output tokens a second by concurrency; a bar a setting for loads that have none.
fn throughput(report: &Report, groups: &[Group<'_>]) -> Element {
    let title = "Throughput";
    let rate = |group: &Group<'_>| group.median().figures.output_tokens_per_second;
    let mut series: Vec<Series> = Vec::new();
    for group in groups {
        let Some(open) = group.median().concurrency else { continue };
        let (name, point) = (setting_name(report, group), (open as f64, rate(group)));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, points: vec![point], marks: Marks::Points }),
        }
    }
    if series.iter().all(|series| series.points.len() < 2) {
        let row =
            |group: &Group<'_>| Row { name: row_name(report, group), values: vec![rate(group)] };
        let rows: Vec<Row> = groups.iter().map(row).collect();
        let drawing = bars("output tokens a second", &["output tokens a second"], &rows);
        return figure(title, "All requests together.", &["output tokens a second"], drawing);
    }
    let mut at: Vec<f64> = series[0].points.iter().map(|point| point.0).collect();
    at.sort_by(f64::total_cmp);
    series.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let x = Axis { label: "concurrency", kind: Kind::Log, at: Some(at) };
    let y = Axis { label: "output tokens a second", kind: Kind::Linear, at: None };
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    figure(title, "All requests together.", &names, curves(&x, &y, &series))
}

const PERCENTILES: [&str; 3] = ["50 %", "90 %", "99 %"];

/// Percentiles of a latency, a row for each load and setting.
fn latency(
    report: &Report,
    groups: &[Group<'_>],
    title: &str,
    note: &str,
    of: fn(&Figures) -> Option<Percentiles>,
) -> Element {
    let row = |group: &Group<'_>| {
        let p = of(&group.median().figures)?;
        Some(Row { name: row_name(report, group), values: vec![p.p50, p.p90, p.p99] })
    };
    let rows: Vec<Row> = groups.iter().filter_map(row).collect();
    figure(title, note, &PERCENTILES, ranges("milliseconds", &PERCENTILES, &rows))
}

/// Shares of the tokens by the time they took, a staircase a setting.
fn histogram(report: &Report, groups: &[&Group<'_>]) -> Element {
    let one = |group: &&Group<'_>| {
        let bins = &group.median().figures.itl_histogram;
        let all: usize = bins.iter().map(|bin| bin.tokens).sum();
        let share = |tokens: usize| 100.0 * tokens as f64 / all.max(1) as f64;
        let mut points = Vec::new();
        points.extend(bins.first().map(|bin| (bin.from_ms, 0.0)));
        for bin in bins {
            points.extend([bin.from_ms, bin.to_ms].map(|edge| (edge, share(bin.tokens))));
        }
        points.extend(bins.last().map(|bin| (bin.to_ms, 0.0)));
        Series { name: setting_name(report, group), points, marks: Marks::None }
    };
    let series: Vec<Series> = groups.iter().map(one).collect();
    let x = Axis { label: "milliseconds between tokens", kind: Kind::Log, at: None };
    let y = Axis { label: "% of the tokens", kind: Kind::Linear, at: None };
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let load = groups.first().map_or("", |group| &group.median().load);
    let note = format!("Load: {load}.");
    figure("Distribution of the time between tokens", &note, &names, curves(&x, &y, &series))
}

/// τ, and how often at least so many drafts were accepted; nothing when nobody drafted.
fn acceptance(report: &Report, groups: &[Group<'_>]) -> Vec<Element> {
    let drafted: Vec<&Group<'_>> =
        groups.iter().filter(|group| group.median().figures.drafting.drafted > 0).collect();
    if drafted.is_empty() {
        return Vec::new();
    }
    let one = |group: &&Group<'_>| {
        let reached = group.median().figures.drafting.reached.iter().enumerate();
        let points = reached.map(|(k, &share)| ((k + 1) as f64, share)).collect();
        Series { name: row_name(report, group), points, marks: Marks::Points }
    };
    let series: Vec<Series> = drafted.iter().map(one).collect();
    let longest = series.iter().map(|series| series.points.len()).max().unwrap_or(0);
    let at = Some((0..=longest).map(|k| k as f64).collect());
    let x = Axis { label: "drafts accepted, at least", kind: Kind::Linear, at };
    let y = Axis { label: "share of the verify passes", kind: Kind::Linear, at: None };
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let row = |group: &&Group<'_>| Row {
        name: row_name(report, group),
        values: vec![group.median().figures.drafting.tau],
    };
    let taus: Vec<Row> = drafted.iter().map(row).collect();
    let simulated = match report.simulated_acceptance {
        Some(_) => " Simulated acceptance.",
        None => "",
    };
    let of = "Tokens that a verify pass commits, the bonus token included";
    let tau = figure(
        "Acceptance length τ",
        &format!("{of}.{simulated}"),
        &["τ"],
        bars("tokens a verify pass", &["τ"], &taus),
    );
    let note = format!("Passes of narrower blocks count too.{simulated}");
    vec![tau, figure("Accepted by position", &note, &names, curves(&x, &y, &series))]
}

/// Where the host waited, and how long the device had nothing to do.
fn blocked(report: &Report, groups: &[Group<'_>]) -> Vec<Element> {
    let rows = |values: fn(&Figures) -> Vec<f64>| -> Vec<Row> {
        let row = |group: &Group<'_>| Row {
            name: row_name(report, group),
            values: values(&group.median().figures),
        };
        groups.iter().map(row).collect()
    };
    let waits = rows(|f| vec![f.steps.blocked_ms.land, f.steps.blocked_ms.fence]);
    let idle = rows(|f| vec![100.0 * f.steps.device_idle_share]);
    let (places, lane) = (["landing", "at the fence"], ["no step runs"]);
    vec![
        figure(
            "Host blocked",
            "How long the host waited a step. Landing is the one wait there is unless a fence asks \
             for more.",
            &places,
            bars("milliseconds a step", &places, &waits),
        ),
        figure(
            "Device idle",
            "Share of the time in which no step ran although a request was open.",
            &lane,
            bars("% of the time", &lane, &idle),
        ),
    ]
}

/// Requests and memory over the run, for each setting.
fn timelines(report: &Report, groups: &[&Group<'_>]) -> Vec<Element> {
    let over = |group: &Group<'_>, name: &str, of: fn(&Point) -> f64| Series {
        name: name.to_owned(),
        points: group.median().figures.timeline.iter().map(|p| (p.seconds, of(p))).collect(),
        marks: Marks::None,
    };
    let x = || Axis { label: "seconds", kind: Kind::Linear, at: None };
    let requests = Axis { label: "requests", kind: Kind::Linear, at: None };
    let mut plots = Vec::new();
    for group in groups {
        let series = [
            over(group, "running", |p| p.running as f64),
            over(group, "waiting", |p| p.waiting as f64),
        ];
        let note = format!("{}, {}.", group.median().load, setting_name(report, group));
        let drawing = curves(&x(), &requests, &series);
        plots.push(figure("Requests over time", &note, &["running", "waiting"], drawing));
    }
    let names: Vec<String> = groups.iter().map(|group| setting_name(report, group)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let one = |(group, name): (&&Group<'_>, &&str)| over(group, name, |p| 100.0 * p.kv_share);
    let series: Vec<Series> = groups.iter().zip(&names).map(one).collect();
    let share = Axis { label: "% of the KV pages", kind: Kind::Linear, at: None };
    let note = "Pages that running requests hold, the prefixes they share included.";
    plots.push(figure("KV memory over time", note, &names, curves(&x(), &share, &series)));
    plots
}
