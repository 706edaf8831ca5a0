//! What people read: the line of figures after an answer, colours, sizes.

use engine::{FinishReason, Segment, Stats};
use std::env;
use std::fmt::Write;
use std::time::Duration;

/// One line: tokens, speed, time to first token, τ, and how many passes accepted 0, 1, 2, …
/// drafts.
pub(crate) fn stats_line(stats: &Stats, reason: FinishReason) -> String {
    let mut line = format!(
        "{} · {} tok/s · first token {}",
        counted(stats.output_tokens, "token"),
        rate(stats.decode_rate()),
        seconds(stats.first_token)
    );
    line += " · ";
    line += &drafting(stats.tau(), stats.steps, stats.drafted, &stats.accepted);
    match reason {
        FinishReason::Stop => {}
        FinishReason::Length => line += " · cut at the length cap (--max-tokens)",
        FinishReason::Cancelled => line += " · stopped",
        FinishReason::TimedOut => line += " · cut when its time was up (--timeout)",
        FinishReason::Stuck => line += " · stuck, the constraint left no way on",
    }
    line
}

/// τ and the histogram of accepted lengths.
fn drafting(tau: f64, steps: usize, drafted: usize, accepted: &[usize]) -> String {
    if drafted == 0 {
        return "no drafts".to_owned();
    }
    let last = accepted.iter().rposition(|&passes| passes > 0).map_or(0, |last| last + 1);
    let mut text = format!("τ {tau:.2} in {} · accepted", counted(steps, "pass"));
    for (length, passes) in accepted[..last].iter().enumerate() {
        let _ = write!(text, " {length}:{passes}");
    }
    text
}

/// The figures of a whole conversation.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Totals {
    answers: usize,
    tokens: usize,
    steps: usize,
    committed: usize,
    drafted: usize,
    accepted: Vec<usize>,
    /// Tokens after the first of each answer, and the time they took.
    decoded: usize,
    decoding: Duration,
}

impl Totals {
    pub(crate) fn add(&mut self, stats: &Stats) {
        self.answers += 1;
        self.tokens += stats.output_tokens;
        self.steps += stats.steps;
        self.committed += stats.committed;
        self.drafted += stats.drafted;
        if self.accepted.len() < stats.accepted.len() {
            self.accepted.resize(stats.accepted.len(), 0);
        }
        for (sum, passes) in self.accepted.iter_mut().zip(&stats.accepted) {
            *sum += passes;
        }
        self.decoded += stats.output_tokens.saturating_sub(1);
        self.decoding += stats.total.saturating_sub(stats.first_token);
    }

    pub(crate) fn line(&self) -> String {
        let tau = if self.steps == 0 { 0.0 } else { self.committed as f64 / self.steps as f64 };
        let seconds = self.decoding.as_secs_f64();
        let speed = if seconds > 0.0 { self.decoded as f64 / seconds } else { 0.0 };
        format!(
            "{} · {} · {} tok/s · {}",
            counted(self.answers, "answer"),
            counted(self.tokens, "token"),
            rate(speed),
            drafting(tau, self.steps, self.drafted, &self.accepted)
        )
    }
}

fn rate(tokens_per_second: f64) -> String {
    // Fewer than two tokens have no rate.
    if tokens_per_second > 0.0 { format!("{tokens_per_second:.1}") } else { "–".to_owned() }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn counted(number: usize, what: &str) -> String {
    let plural = match what {
        _ if number == 1 => "",
        "pass" => "es",
        _ => "s",
    };
    format!("{number} {what}{plural}")
}

/// Bytes with three digits or so.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = UNITS.iter().find(|(_, unit)| bytes as f64 >= *unit);
    match unit {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit),
        None => format!("{bytes} B"),
    }
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Whether output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    On,
    Off,
}

/// What a stream is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Terminal,
    Other,
}

impl Stream {
    pub(crate) fn of(stream: &impl std::io::IsTerminal) -> Stream {
        if stream.is_terminal() { Stream::Terminal } else { Stream::Other }
    }
}

impl Colour {
    /// By the conventions of <https://no-color.org> and `CLICOLOR_FORCE`.
    pub(crate) fn for_stream(stream: Stream) -> Colour {
        Colour::decide(stream, |name| env::var(name).ok())
    }

    fn decide(stream: Stream, var: impl Fn(&str) -> Option<String>) -> Colour {
        let set = |name| var(name).filter(|value| !value.is_empty());
        if set("NO_COLOR").is_some() {
            Colour::Off
        } else if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
            Colour::On
        } else if stream == Stream::Other || var("TERM").is_some_and(|term| term == "dumb") {
            Colour::Off
        } else {
            Colour::On
        }
    }
}

const DRAFTED: &str = "\x1b[32m";
const OWN: &str = "\x1b[33m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// A segment in the colour of its origin.
pub(crate) fn paint(segment: &Segment, colour: Colour) -> String {
    match (colour, segment.drafted) {
        (Colour::Off, _) => segment.text.clone(),
        (Colour::On, true) => format!("{DRAFTED}{}{RESET}", segment.text),
        (Colour::On, false) => format!("{OWN}{}{RESET}", segment.text),
    }
}

/// What the colours of [`paint`] mean.
pub(crate) fn legend(colour: Colour) -> String {
    match colour {
        Colour::On => format!("{DRAFTED}accepted drafts{RESET} · {OWN}the target's own{RESET}"),
        Colour::Off => "note: drafts are not coloured: standard output is no terminal, or \
                        NO_COLOR is set"
            .to_owned(),
    }
}

/// A remark beside the text.
pub(crate) fn dim(text: &str, colour: Colour) -> String {
    match colour {
        Colour::On => format!("{DIM}{text}{RESET}"),
        Colour::Off => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Stats {
        Stats {
            prompt_tokens: 20,
            output_tokens: 101,
            steps: 40,
            committed: 100,
            drafted: 280,
            accepted: vec![10, 15, 0, 5, 10, 0, 0, 0],
            first_token: Duration::from_millis(250),
            total: Duration::from_millis(2250),
            ..Stats::default()
        }
    }

    #[test]
    fn the_line_of_figures() {
        assert_eq!(
            stats_line(&stats(), FinishReason::Stop),
            "101 tokens · 50.0 tok/s · first token 0.25 s · τ 2.50 in 40 passes · accepted 0:10 \
             1:15 2:0 3:5 4:10"
        );
        assert!(stats_line(&stats(), FinishReason::Length).ends_with("length cap (--max-tokens)"));
        assert!(stats_line(&stats(), FinishReason::Cancelled).ends_with("stopped"));
        assert!(stats_line(&stats(), FinishReason::TimedOut).ends_with("time was up (--timeout)"));
        let plain = Stats { drafted: 0, accepted: vec![100], ..stats() };
        assert_eq!(
            stats_line(&plain, FinishReason::Stop),
            "101 tokens · 50.0 tok/s · first token 0.25 s · no drafts"
        );
        let one = Stats { output_tokens: 1, ..Stats::default() };
        assert_eq!(
            stats_line(&one, FinishReason::Stop),
            "1 token · – tok/s · first token 0.00 s · no drafts"
        );
    }

    #[test]
    fn totals_add_up() {
        let mut totals = Totals::default();
        assert_eq!(totals.line(), "0 answers · 0 tokens · – tok/s · no drafts");
        totals.add(&Stats { accepted: vec![40], ..stats() });
        totals.add(&stats());
        assert_eq!(
            totals.line(),
            "2 answers · 202 tokens · 50.0 tok/s · τ 2.50 in 80 passes · accepted 0:50 1:15 2:0 \
             3:5 4:10"
        );
    }

    #[test]
    fn colours_follow_the_conventions() {
        let with = |pairs: &'static [(&str, &str)]| {
            move |name: &str| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
            }
        };
        use Colour::{Off, On};
        use Stream::{Other, Terminal};
        assert_eq!(Colour::decide(Terminal, with(&[])), On);
        assert_eq!(Colour::decide(Other, with(&[])), Off);
        assert_eq!(Colour::decide(Terminal, with(&[("NO_COLOR", "1")])), Off);
        assert_eq!(Colour::decide(Terminal, with(&[("NO_COLOR", "")])), On);
        assert_eq!(Colour::decide(Terminal, with(&[("TERM", "dumb")])), Off);
        assert_eq!(Colour::decide(Other, with(&[("CLICOLOR_FORCE", "1")])), On);
        let segment = Segment { text: "a".into(), drafted: true };
        assert_eq!(paint(&segment, Off), "a");
        assert_eq!(paint(&segment, On), "\x1b[32ma\x1b[0m");
    }

    #[test]
    fn numbers_for_people() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1_043, "1.0 kB"), (98_362_432, "98.4 MB")]
        {
            assert_eq!(size(bytes), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
