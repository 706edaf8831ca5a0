//! The report as one page that needs nothing else: style and drawings are in it, and no script.

mod chart;
mod markup;
mod plots;
mod scale;

use super::report::Report;
use super::text::{Sheet, header, sheets};
use markup::Element;

const STYLE: &str = include_str!("style.css");

/// The page.
pub(super) fn page(report: &Report) -> String {
    let title = format!("Slipstream {}: bench load", report.version);
    let head = Element::new("head")
        .child(Element::new("meta").with("charset", "utf-8"))
        .child(
            Element::new("meta")
                .with("name", "viewport")
                .with("content", "width=device-width, initial-scale=1"),
        )
        .child(Element::new("title").text(&title))
        .child(Element::new("style").text(STYLE));
    let mut body = Element::new("body").child(Element::new("h1").text(&title));
    if let Some(how) = &report.simulated_acceptance {
        let warning = format!(
            "Simulated acceptance ({how}): drafts were accepted at a given rate, not as a drafter \
             proposed. Drafted figures show what such a drafter would give."
        );
        body = body.child(Element::new("p").with("class", "banner").text(warning));
    }
    body = body
        .child(Element::new("pre").text(&report.command))
        .child(
            Element::new("ul")
                .with("class", "facts")
                .children(header(report).into_iter().map(|line| Element::new("li").text(line))),
        )
        .child(Element::new("div").with("class", "plots").children(plots::plots(report)))
        .children(sheets(report).iter().map(sheet));
    let html = Element::new("html").with("lang", "en").child(head).child(body);
    format!("<!DOCTYPE html>\n{html}\n")
}

fn sheet(sheet: &Sheet) -> Element {
    let cells = |row: &Vec<String>, tag| {
        Element::new("tr").children(row.iter().map(|cell| Element::new(tag).text(cell)))
    };
    let rows = sheet.rows.iter().skip(1).map(|row| cells(row, "td"));
    let head = Element::new("thead").children(sheet.rows.first().map(|row| cells(row, "th")));
    let table = Element::new("table").child(head).child(Element::new("tbody").children(rows));
    Element::new("section")
        .child(Element::new("h2").text(sheet.title).child(Element::new("small").text(sheet.note)))
        .child(Element::new("div").with("class", "wide").child(table))
}

#[cfg(test)]
mod tests;
