//! Progress for people, on standard error: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not at all.
    Silent,
    /// A line at each quarter.
    Lines,
    /// A bar that redraws itself.
    Bar,
}

impl Progress {
    /// A bar when standard error is a terminal, lines otherwise.
    pub fn for_stderr() -> Progress {
        if std::io::stderr().is_terminal() { Progress::Bar } else { Progress::Lines }
    }

    /// A sentence.
    pub(crate) fn note(self, text: &str) {
        if self != Progress::Silent {
            // Progress that cannot be shown must not stop the work.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// A meter over `total` bytes of `what`.
    pub(crate) fn meter(self, what: &str, total: u64) -> Meter {
        let face = match self {
            Progress::Silent => Face::Silent,
            Progress::Lines => Face::Lines { quarter: 0 },
            Progress::Bar => Face::Bar(bar(total)),
        };
        if let Face::Bar(bar) = &face {
            bar.set_message(what.to_owned());
        }
        Meter { what: what.to_owned(), total, position: 0, face }
    }
}

fn bar(total: u64) -> ProgressBar {
    const TEMPLATE: &str =
        "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}";
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
    ProgressBar::new(total).with_style(style.progress_chars("=> "))
}

/// Progress of one transfer.
pub(crate) struct Meter {
    what: String,
    total: u64,
    position: u64,
    face: Face,
}

enum Face {
    Silent,
    Lines { quarter: u64 },
    Bar(ProgressBar),
}

impl Meter {
    /// `bytes` of the total are done. Going back is ignored.
    pub(crate) fn set(&mut self, bytes: u64) {
        self.position = bytes.clamp(self.position, self.total.max(self.position));
        match &mut self.face {
            Face::Silent => {}
            Face::Lines { quarter } => {
                let now = self.position * 4 / self.total.max(1);
                if now > *quarter {
                    *quarter = now;
                    let (done, total) = (megabytes(self.position), megabytes(self.total));
                    Progress::Lines.note(&format!(
                        "{}: {} % ({done} of {total} MB)",
                        self.what,
                        now * 25
                    ));
                }
            }
            Face::Bar(bar) => bar.set_position(self.position),
        }
    }

    /// Leaves the bar where it is and ends its line.
    pub(crate) fn end(&mut self) {
        if let Face::Bar(bar) = &self.face {
            bar.abandon();
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// How hf-hub reports: the total, then increments, the bytes already there first.
impl hf_hub::api::Progress for Meter {
    fn init(&mut self, size: usize, _filename: &str) {
        self.total = size as u64;
        if let Face::Bar(bar) = &self.face {
            bar.set_length(self.total);
        }
    }

    fn update(&mut self, size: usize) {
        self.set(self.position + size as u64);
    }

    fn finish(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hf_hub::api::Progress as _;

    #[test]
    fn a_meter_never_goes_back_nor_past_its_total() {
        let mut meter = Progress::Silent.meter("x", 100);
        for (set, shown) in [(10, 10), (5, 10), (100, 100), (130, 100)] {
            meter.set(set);
            assert_eq!(meter.position, shown);
        }
    }

    #[test]
    fn hub_increments_add_up() {
        let mut meter = Progress::Silent.meter("x", 0);
        meter.init(50, "x");
        meter.update(20);
        meter.update(30);
        assert_eq!((meter.position, meter.total), (50, 50));
    }
}
