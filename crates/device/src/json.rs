//! A recording as a Chrome trace (the JSON of `about:tracing`, which Perfetto opens): a row for
//! each lane, for the host and for each request, and arrows for launches and events.

use crate::device::{LANES, LaneId};
use crate::record::{Entry, Span, Trace, Track};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::time::Duration;

/// Rows: the host first, then the lanes, then requests.
const HOST: u64 = 0;
const FIRST_REQUEST: u64 = 1 + LANES as u64;

fn row(lane: LaneId) -> u64 {
    1 + lane.index() as u64
}

fn row_of(track: Track) -> u64 {
    match track {
        Track::Host => HOST,
        Track::Request(id) => FIRST_REQUEST + id,
    }
}

impl Trace {
    /// Writes the recording as a Chrome trace.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        write!(
            out,
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped\":{}}},",
            self.dropped
        )?;
        write!(out, "\"traceEvents\":[")?;
        let mut events = Events { out, first: true, arrows: 0 };
        self.rows(&mut events)?;
        // Where the arrow of each event begins: in the job before it.
        let (mut last, mut begins) = ([None; LANES], HashMap::new());
        let launches = self.launches();
        for entry in &self.entries {
            match entry {
                Entry::Launched { job, span, .. } => events.slice(HOST, "launch", job, *span)?,
                Entry::Ran { launch, lane, job, span, .. } => {
                    events.slice(row(*lane), "job", job, *span)?;
                    last[lane.index()] = Some(span.start);
                    if let Some(from) = launches.get(launch) {
                        events.arrow("launch", (HOST, from.start), (row(*lane), span.start))?;
                    }
                }
                Entry::Recorded { lane, event } => {
                    if let Some(start) = last[lane.index()] {
                        begins.insert(*event, (row(*lane), start));
                    }
                }
                Entry::Waited { lane, event, span } => {
                    events.slice(row(*lane), "wait", "wait", *span)?;
                    if let Some(&from) = begins.get(event) {
                        events.arrow("event", from, (row(*lane), last_inside(span)))?;
                    }
                }
                Entry::HostWaited { event, reason, span } => {
                    events.slice(HOST, "host wait", reason.name(), *span)?;
                    if let Some(&from) = begins.get(event) {
                        events.arrow("event", from, (HOST, last_inside(span)))?;
                    }
                }
                Entry::Owner { track, what, span } => {
                    events.slice(row_of(*track), "span", what, *span)?;
                }
                Entry::HostSaw { .. } | Entry::HostTouched { .. } => {}
            }
        }
        write!(events.out, "]}}")
    }

    /// Names the rows.
    fn rows(&self, events: &mut Events<'_, impl Write>) -> io::Result<()> {
        events.name(HOST, "host")?;
        for lane in LaneId::ALL {
            events.name(row(lane), &format!("lane {}", lane.name()))?;
        }
        let request = |entry: &Entry| match entry {
            Entry::Owner { track: Track::Request(id), .. } => Some(*id),
            _ => None,
        };
        for id in self.entries.iter().filter_map(request).collect::<BTreeSet<u64>>() {
            events.name(FIRST_REQUEST + id, &format!("request {id}"))?;
        }
        Ok(())
    }
}

/// The array of events. Times are in microseconds.
struct Events<'o, W: Write> {
    out: &'o mut W,
    first: bool,
    arrows: u64,
}

impl<W: Write> Events<'_, W> {
    fn begin(&mut self) -> io::Result<()> {
        let separator = if std::mem::take(&mut self.first) { "" } else { "," };
        write!(self.out, "{separator}\n{{\"pid\":1,")
    }

    fn name(&mut self, row: u64, name: &str) -> io::Result<()> {
        self.begin()?;
        write!(self.out, "\"tid\":{row},\"ph\":\"M\",\"name\":\"thread_name\",")?;
        write!(self.out, "\"args\":{{\"name\":{}}}}}", quoted(name))
    }

    fn slice(&mut self, row: u64, kind: &str, name: &str, span: Span) -> io::Result<()> {
        let (at, long) = (micros(span.start), micros(span.end.saturating_sub(span.start)));
        self.begin()?;
        write!(self.out, "\"tid\":{row},\"ph\":\"X\",\"ts\":{at},\"dur\":{long},")?;
        write!(self.out, "\"cat\":{},\"name\":{}}}", quoted(kind), quoted(name))
    }

    /// An arrow between two points, each a row and a time inside one of its slices.
    fn arrow(&mut self, kind: &str, from: (u64, Duration), to: (u64, Duration)) -> io::Result<()> {
        self.arrows += 1;
        let id = self.arrows;
        for (phase, (row, at)) in [("\"s\"", from), ("\"f\",\"bp\":\"e\"", to)] {
            self.begin()?;
            write!(self.out, "\"tid\":{row},\"ph\":{phase},\"ts\":{},", micros(at))?;
            write!(self.out, "\"id\":{id},\"cat\":\"{kind}\",\"name\":\"{kind}\"}}")?;
        }
        Ok(())
    }
}

/// The last moment inside a slice: a wait ends after what it waited for began.
fn last_inside(span: &Span) -> Duration {
    span.end.saturating_sub(Duration::from_nanos(1)).max(span.start)
}

fn micros(time: Duration) -> String {
    format!("{}.{:03}", time.as_nanos() / 1_000, time.as_nanos() % 1_000)
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
