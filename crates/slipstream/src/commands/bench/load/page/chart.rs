//! Charts as SVG: curves, ranges and bars. What they show is plots.rs.

use super::super::text::number;
use super::markup::Element;
use super::scale::{Kind, Scale};

/// Pixels of a chart; it scales with the page.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Room for ticks and labels.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// The height of a row, and the width of a character of its name, rather more than less.
const ROW: f64 = 24.0;
const CHARACTER: f64 = 7.0;

/// Colours that the style sheet has; more series take them in turns.
const COLOURS: usize = 8;

/// An axis of a chart.
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) kind: Kind,
    /// Ticks at these values only.
    pub(super) at: Option<Vec<f64>>,
}

/// A curve.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) marks: Marks,
}

/// Whether a curve shows its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marks {
    /// Each, with its values for whoever points at it.
    Points,
    /// None: there are many.
    None,
}

/// A row of figures: its name, and one figure for each name of the chart.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
}

/// A figure of the page: heading, explanation, what the colours mean, and a drawing.
pub(super) fn figure(title: &str, note: &str, names: &[&str], drawing: Element) -> Element {
    let caption = Element::new("figcaption")
        .child(Element::new("h3").text(title))
        .child(Element::new("p").text(note));
    let entry = |(i, name): (usize, &&str)| {
        let swatch = Element::new("span").with("class", format!("swatch {}", colour(i)));
        Element::new("li").child(swatch).text(*name)
    };
    let legend = Element::new("ul").with("class", "legend");
    let legend = legend.children(names.iter().enumerate().map(entry));
    let drawing = drawing.with("role", "img").with("aria-label", title);
    Element::new("figure").child(caption).child(legend).child(drawing)
}

/// Curves over two axes.
pub(super) fn curves(x: &Axis, y: &Axis, series: &[Series]) -> Element {
    let points = || series.iter().flat_map(|series| &series.points);
    let across = Scale::new(x.kind, points().map(|point| point.0), [LEFT, WIDTH - RIGHT]);
    let up = Scale::new(y.kind, points().map(|point| point.1), [HEIGHT - BOTTOM, TOP]).rounded();
    let across = if x.at.is_none() && x.kind == Kind::Linear { across.rounded() } else { across };
    let mut svg = canvas(HEIGHT);
    for tick in y.at.clone().unwrap_or_else(|| up.ticks()) {
        let at = up.at(tick);
        svg = svg.child(line([LEFT, at], [WIDTH - RIGHT, at]).with("class", "grid")).child(label(
            [LEFT - 8.0, at + 4.0],
            "end",
            &short(tick),
        ));
    }
    for tick in x.at.clone().unwrap_or_else(|| across.ticks()) {
        let at = across.at(tick);
        svg = svg
            .child(line([at, HEIGHT - BOTTOM], [at, HEIGHT - BOTTOM + 5.0]).with("class", "axis"))
            .child(label([at, HEIGHT - BOTTOM + 19.0], "middle", &short(tick)));
    }
    svg = svg
        .child(
            line([LEFT, HEIGHT - BOTTOM], [WIDTH - RIGHT, HEIGHT - BOTTOM]).with("class", "axis"),
        )
        .child(label([(LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0], "middle", x.label))
        .child(upright(y.label));
    let drawn = series.iter().enumerate().map(|(i, series)| curve(series, i, &across, &up));
    svg.children(drawn)
}

fn curve(series: &Series, i: usize, across: &Scale, up: &Scale) -> Element {
    let place = |&(x, y): &(f64, f64)| [across.at(x), up.at(y)];
    let path: Vec<String> =
        series.points.iter().map(place).map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
    let group = Element::new("g").with("class", colour(i));
    let group = group.child(Element::new("polyline").with("points", path.join(" ")));
    if series.marks == Marks::None {
        return group;
    }
    let dot = |point: &(f64, f64)| {
        let said = format!("{}: {} at {}", series.name, number(point.1), short(point.0));
        circle(place(point), &said)
    };
    group.children(series.points.iter().map(dot))
}

/// A line a row from its least figure to its greatest, with a dot a figure, over a logarithmic
/// axis. Dots have the colours of their place in the row.
pub(super) fn ranges(what: &str, names: &[&str], rows: &[Row]) -> Element {
    let all = rows.iter().flat_map(|row| row.values.iter().copied());
    let left = beside_names(rows);
    let scale = Scale::new(Kind::Log, all, [left, WIDTH - RIGHT]).rounded();
    let rows_svg = rows.iter().enumerate().map(|(i, row)| {
        let y = middle(i);
        let ends = row.values.iter().map(|&value| scale.at(value));
        let (least, most) = (ends.clone().fold(f64::INFINITY, f64::min), ends.fold(0.0, f64::max));
        let dot = |(k, (&value, name)): (usize, (&f64, &&str))| {
            let said = format!("{}, {name}: {} ms", row.name, number(value));
            let dot = circle([scale.at(value), y], &said);
            Element::new("g").with("class", colour(k)).child(dot)
        };
        let span = line([least, y], [most, y]).with("class", "span");
        let group = Element::new("g").child(label([left - 10.0, y + 4.0], "end", &row.name));
        // The dots of lower percentiles lie on top.
        let dots: Vec<_> = row.values.iter().zip(names).enumerate().map(dot).collect();
        group.child(span).children(dots.into_iter().rev())
    });
    below_rows(what, &scale, left, rows.len()).children(rows_svg)
}

/// A bar a row, its figures one after another.
pub(super) fn bars(what: &str, names: &[&str], rows: &[Row]) -> Element {
    let sums = rows.iter().map(|row| row.values.iter().sum());
    let left = beside_names(rows);
    let scale = Scale::new(Kind::Linear, sums, [left, WIDTH - RIGHT]).rounded();
    let rows_svg = rows.iter().enumerate().map(|(i, row)| {
        let y = middle(i);
        let mut from = 0.0;
        let mut group = Element::new("g").child(label([left - 10.0, y + 4.0], "end", &row.name));
        for (k, (&value, name)) in row.values.iter().zip(names).enumerate() {
            let (start, end) = (scale.at(from), scale.at(from + value));
            from += value;
            let said = format!("{}, {name}: {}", row.name, number(value));
            let bar = Element::new("rect")
                .with("class", colour(k))
                .with("x", format!("{start:.1}"))
                .with("y", format!("{:.1}", y - ROW / 3.0))
                .with("width", format!("{:.1}", end - start))
                .with("height", format!("{:.1}", ROW / 1.5))
                .child(Element::new("title").text(said));
            group = group.child(bar);
        }
        group
    });
    below_rows(what, &scale, left, rows.len()).children(rows_svg)
}

/// The canvas of a chart of `rows` rows, with its axis below them.
fn below_rows(what: &str, scale: &Scale, left: f64, rows: usize) -> Element {
    let foot = TOP + ROW * rows as f64 + 4.0;
    let mut svg = canvas(foot + BOTTOM);
    let mut last = f64::NEG_INFINITY;
    for tick in scale.ticks() {
        let at = scale.at(tick);
        svg = svg.child(line([at, TOP], [at, foot]).with("class", "grid"));
        // Labels of close ticks would run into each other.
        if at - last >= 34.0 {
            svg = svg.child(label([at, foot + 16.0], "middle", &short(tick)));
            last = at;
        }
    }
    svg.child(line([left, foot], [WIDTH - RIGHT, foot]).with("class", "axis")).child(label(
        [(left + WIDTH - RIGHT) / 2.0, foot + BOTTOM - 10.0],
        "middle",
        what,
    ))
}

/// Where a chart begins to the right of its rows' names.
fn beside_names(rows: &[Row]) -> f64 {
    let longest = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    (20.0 + CHARACTER * longest as f64).min(WIDTH / 2.0)
}

fn middle(row: usize) -> f64 {
    TOP + ROW * (row as f64 + 0.5)
}

fn canvas(height: f64) -> Element {
    Element::new("svg")
        .with("xmlns", "http://www.w3.org/2000/svg")
        .with("viewBox", format!("0 0 {WIDTH} {height}"))
}

fn line(from: [f64; 2], to: [f64; 2]) -> Element {
    Element::new("line")
        .with("x1", format!("{:.1}", from[0]))
        .with("y1", format!("{:.1}", from[1]))
        .with("x2", format!("{:.1}", to[0]))
        .with("y2", format!("{:.1}", to[1]))
}

fn circle(at: [f64; 2], said: &str) -> Element {
    Element::new("circle")
        .with("cx", format!("{:.1}", at[0]))
        .with("cy", format!("{:.1}", at[1]))
        .with("r", "4")
        .child(Element::new("title").text(said))
}

fn label(at: [f64; 2], anchor: &str, text: &str) -> Element {
    Element::new("text")
        .with("x", format!("{:.1}", at[0]))
        .with("y", format!("{:.1}", at[1]))
        .with("text-anchor", anchor)
        .text(text)
}

/// The label of the axis that goes up.
fn upright(text: &str) -> Element {
    let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
    label([14.0, middle], "middle", text).with("transform", format!("rotate(-90 14 {middle})"))
}

fn colour(i: usize) -> String {
    format!("c{}", i % COLOURS)
}

/// A tick's value without digits that say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    match value {
        v if v >= 10_000.0 => format!("{}k", short(v / 1000.0)),
        _ => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}
