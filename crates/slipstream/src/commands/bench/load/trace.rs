//! Traces: JSON lines, one a request in the order of arrival. What is written is read back as the
//! same requests.

use super::items::{End, Item};
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A line as it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Seconds from the start of the trace.
    at: f64,
    /// One of these three: prompt ids; a user's question, for the chat template; a number of
    /// tokens to draw.
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tokens: Option<usize>,
    /// Output tokens at most.
    max_tokens: usize,
    /// `--seed` plus the line's place otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// Greedy otherwise.
    #[serde(default)]
    temperature: f32,
    /// Whether the output goes on past end-of-text; it ends there otherwise.
    #[serde(default)]
    ignore_eos: bool,
}

/// A line as a load takes it.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) at: Duration,
    pub(super) prompt: Prompt,
    pub(super) max_tokens: usize,
    pub(super) seed: Option<u64>,
    pub(super) temperature: f32,
    pub(super) end: End,
}

/// What a trace says of a prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    /// Its ids.
    Ids(Vec<u32>),
    /// The question that becomes one by the chat template.
    Text(String),
    /// Its length.
    Length(usize),
}

/// Reads a trace; it has at least one line, and arrivals never go back in time.
///
/// # Errors
/// A file that cannot be read, or a line that is none, by its number.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::input(format!("--trace {}: {error}", path.display())))?;
    parse(&text).map_err(|problem| Failure::input(format!("--trace {}: {problem}", path.display())))
}

fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line = serde_json::from_str(line).map_err(|error| error.to_string());
        let entry = line.and_then(entry).map_err(|problem| format!("line {}: {problem}", i + 1))?;
        if entries.last().is_some_and(|before| before.at > entry.at) {
            return Err(format!("line {}: comes before the line above it; sort by \"at\"", i + 1));
        }
        entries.push(entry);
    }
    if entries.is_empty() { Err("holds no request".to_owned()) } else { Ok(entries) }
}

fn entry(line: Line) -> Result<Entry, String> {
    let prompt = match (line.ids, line.prompt, line.input_tokens) {
        (Some(ids), None, None) => Prompt::Ids(ids),
        (None, Some(text), None) => Prompt::Text(text),
        (None, None, Some(length @ 1..)) => Prompt::Length(length),
        _ => return Err("give one of \"ids\", \"prompt\" and \"input_tokens\" (from 1)".into()),
    };
    let at = Duration::try_from_secs_f64(line.at)
        .map_err(|_| "\"at\" is seconds from the start, from 0".to_owned())?;
    let end = if line.ignore_eos { End::Length } else { End::Eos };
    let Line { max_tokens, seed, temperature, .. } = line;
    Ok(Entry { at, prompt, max_tokens, seed, temperature, end })
}

/// `items` as a trace in which request `i` arrives at `arrivals[i]`.
pub(super) fn lines(items: &[Item], arrivals: &[Duration]) -> String {
    let mut order: Vec<(&Duration, &Item)> = arrivals.iter().zip(items).collect();
    order.sort_by_key(|(at, _)| **at);
    let line = |(at, item): (&Duration, &Item)| {
        let line = Line {
            at: at.as_secs_f64(),
            ids: Some(item.prompt.clone()),
            prompt: None,
            input_tokens: None,
            max_tokens: item.max_tokens,
            seed: Some(item.seed),
            temperature: item.temperature,
            ignore_eos: item.end == End::Length,
        };
        serde_json::to_string(&line).expect("plain numbers become JSON") + "\n"
    };
    order.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let item = |i: u64, temperature, end| Item {
            at: Duration::ZERO,
            prompt: vec![i as u32, 7, u32::MAX],
            max_tokens: 3 + i as usize,
            seed: u64::MAX - i,
            temperature,
            end,
        };
        let items = [item(0, 0.0, End::Eos), item(1, 0.7, End::Length), item(2, 1.3, End::Eos)];
        let arrivals = [0, 1_234_567_891, 98_765_432_100].map(Duration::from_nanos);
        let read = parse(&lines(&items, &arrivals)).expect("a trace");
        let same = |(item, at): (&Item, &Duration)| Entry {
            at: *at,
            prompt: Prompt::Ids(item.prompt.clone()),
            max_tokens: item.max_tokens,
            seed: Some(item.seed),
            temperature: item.temperature,
            end: item.end,
        };
        assert_eq!(read, items.iter().zip(&arrivals).map(same).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_may_be_short() {
        let text = "{\"at\": 0, \"prompt\": \"Hi\", \"max_tokens\": 5}\n\n\
                    {\"at\": 0.5, \"input_tokens\": 9, \"max_tokens\": 6, \"ignore_eos\": true}\n";
        let entries = parse(text).expect("a trace");
        assert_eq!(entries[0].prompt, Prompt::Text("Hi".into()));
        assert_eq!(
            (entries[0].seed, entries[0].temperature, entries[0].end),
            (None, 0.0, End::Eos)
        );
        assert_eq!((&entries[1].prompt, entries[1].end), (&Prompt::Length(9), End::Length));
        assert_eq!(entries[1].at, Duration::from_millis(500));
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = "{\"at\": 1, \"ids\": [1], \"max_tokens\": 5}\n";
        for (line, part) in [
            ("nonsense", "line 2: "),
            ("{\"at\": 2, \"max_tokens\": 5}", "line 2: give one of"),
            ("{\"at\": 2, \"ids\": [1], \"prompt\": \"a\", \"max_tokens\": 5}", "give one of"),
            ("{\"at\": 2, \"input_tokens\": 0, \"max_tokens\": 5}", "give one of"),
            ("{\"at\": -1, \"ids\": [1], \"max_tokens\": 5}", "from 0"),
            ("{\"at\": 0.5, \"ids\": [1], \"max_tokens\": 5}", "sort by \"at\""),
            ("{\"at\": 2, \"ids\": [1]}", "`max_tokens`"),
            ("{\"at\": 2, \"ids\": [1], \"max_tokens\": 5, \"tmp\": 1}", "unknown field `tmp`"),
        ] {
            let problem = parse(&format!("{good}{line}\n")).expect_err(line);
            assert!(problem.contains(part), "{line}: {problem}");
        }
        assert!(parse("\n").expect_err("nothing").contains("no request"));
    }
}
