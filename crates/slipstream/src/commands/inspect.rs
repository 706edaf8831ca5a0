//! `slipstream inspect`: what a checkpoint holds, for people and as JSON.

mod report;

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::render::{grouped, size};
use fetch::{Effort, Progress, Sources};
use report::{Report, Section};
use std::io::{self, Write, stdout};

/// Lines of a chat template that are shown.
const TEMPLATE_LINES: usize = 6;

pub(crate) fn run(args: InspectArgs) -> Result<(), Failure> {
    let sources = Sources::from_env()?;
    let path = sources.resolve(&args.path, Effort::UseLocal, Progress::for_stderr())?;
    let report = Report::read(&path)?;
    let mut out = stdout().lock();
    if args.json {
        let json = serde_json::to_string_pretty(&report).expect("a report has text keys only");
        writeln!(out, "{json}")?;
    } else {
        describe(&mut out, &report)?;
        if args.tensors {
            tensors(&mut out, &report)?;
        }
    }
    match report.problems() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failure::Input(problems.join("\nerror: "))),
    }
}

fn describe(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{}", report.path)?;
    writeln!(out, "  kind          {}", report.kind)?;
    writeln!(out, "  architecture  {}", report.architecture)?;
    writeln!(out, "  parameters    {}", grouped(report.parameters))?;
    writeln!(
        out,
        "  weights       {} ({} bytes)",
        size(report.file_bytes),
        grouped(report.file_bytes)
    )?;
    writeln!(out, "\nconfiguration")?;
    pairs(out, &report.config)?;
    if let Some(drafter) = &report.drafter {
        writeln!(out, "\ndrafter")?;
        pairs(out, drafter)?;
    }
    writeln!(out, "\ntensors")?;
    for group in &report.formats {
        writeln!(
            out,
            "  {:<6} {:>5} tensors {:>15} elements {:>10}",
            group.format,
            group.tensors,
            grouped(group.elements),
            size(group.bytes)
        )?;
    }
    for shape in &report.shapes {
        let count = if shape.count > 1 { format!(" × {}", shape.count) } else { String::new() };
        writeln!(out, "  {:<48} {:<6} {:?}{count}", shape.name, shape.format, shape.shape)?;
    }
    section(out, "tokenizer", &report.tokenizer, |out, tokenizer| pairs(out, tokenizer))?;
    section(out, "chat template", &report.template, |out, text| {
        for line in text.lines().take(TEMPLATE_LINES) {
            writeln!(out, "  {}", cut(line))?;
        }
        match text.lines().count().saturating_sub(TEMPLATE_LINES) {
            0 => Ok(()),
            more => writeln!(out, "  … {more} more lines"),
        }
    })?;
    if !report.notes.is_empty() {
        writeln!(out, "\nnotes")?;
        for note in &report.notes {
            writeln!(out, "  {note}")?;
        }
    }
    Ok(())
}

fn section<T, W: Write>(
    out: &mut W,
    title: &str,
    section: &Section<T>,
    show: impl FnOnce(&mut W, &T) -> io::Result<()>,
) -> io::Result<()> {
    match section {
        Section::NotExpected => Ok(()),
        Section::Absent => writeln!(out, "\n{title}\n  none"),
        Section::Broken(problem) => writeln!(out, "\n{title}\n  unusable: {problem}"),
        Section::Present(content) => {
            writeln!(out, "\n{title}")?;
            show(out, content)
        }
    }
}

fn pairs(out: &mut impl Write, pairs: &report::Pairs) -> io::Result<()> {
    for (key, value) in pairs {
        match value {
            serde_json::Value::String(text) => writeln!(out, "  {key:<20} {text}")?,
            value => writeln!(out, "  {key:<20} {value}")?,
        }
    }
    Ok(())
}

fn tensors(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "\nevery tensor")?;
    for tensor in &report.tensors {
        writeln!(
            out,
            "  {:<56} {:<6} {:?} {} bytes",
            tensor.name,
            tensor.format,
            tensor.shape,
            grouped(tensor.bytes)
        )?;
    }
    Ok(())
}

/// A line that fits a terminal.
fn cut(line: &str) -> String {
    const WIDTH: usize = 96;
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        let long = "é".repeat(200);
        assert_eq!(cut(&long), format!("{}…", "é".repeat(96)));
    }
}
