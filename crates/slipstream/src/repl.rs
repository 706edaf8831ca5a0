//! The prompt of a conversation: lines in, messages and commands out. Knows no models.

use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead};
use std::path::PathBuf;

/// What a person asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A message to answer.
    Message(String),
    /// Forget the conversation.
    Reset,
    /// Show the figures so far.
    Stats,
    /// Say what there is.
    Help,
    /// End.
    Quit,
    /// No such command.
    Unknown(String),
}

pub(crate) const HELP: &str = "\
/reset   forget the conversation
/stats   figures so far
/help    this
/quit    end (or Ctrl-D)
A line that ends with \\ goes on in the next; \"\"\" starts and ends a text of several lines.
Ctrl-C stops an answer.";

/// Puts messages together from lines.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    lines: Vec<String>,
    quoted: Quoted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Quoted {
    #[default]
    No,
    Yes,
}

const QUOTES: &str = "\"\"\"";

impl Assembler {
    /// Takes a line; returns what it completes.
    pub(crate) fn push(&mut self, line: &str) -> Option<Entry> {
        if self.quoted == Quoted::Yes {
            let Some(last) = line.trim_end().strip_suffix(QUOTES) else {
                self.lines.push(line.to_owned());
                return None;
            };
            self.lines.push(last.to_owned());
            return self.finish();
        }
        if self.lines.is_empty() {
            if let Some(rest) = line.trim_start().strip_prefix(QUOTES) {
                if let Some(whole) = rest.trim_end().strip_suffix(QUOTES) {
                    self.lines.push(whole.to_owned());
                    return self.finish();
                }
                self.quoted = Quoted::Yes;
                self.lines.extend((!rest.is_empty()).then(|| rest.to_owned()));
                return None;
            }
            if let Some(command) = line.trim().strip_prefix('/') {
                return Some(self::command(command));
            }
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                self.lines.push(part.to_owned());
                None
            }
            None => {
                self.lines.push(line.to_owned());
                self.finish()
            }
        }
    }

    /// Whether a message has been begun.
    pub(crate) fn begun(&self) -> bool {
        !self.lines.is_empty() || self.quoted == Quoted::Yes
    }

    /// Drops what has been begun.
    pub(crate) fn clear(&mut self) {
        *self = Assembler::default();
    }

    /// What has been begun, at the end of the input.
    fn finish(&mut self) -> Option<Entry> {
        let text = std::mem::take(self).lines.join("\n");
        let text = text.trim();
        (!text.is_empty()).then(|| Entry::Message(text.to_owned()))
    }
}

fn command(name: &str) -> Entry {
    match name {
        "reset" => Entry::Reset,
        "stats" => Entry::Stats,
        "help" | "?" => Entry::Help,
        "quit" | "exit" => Entry::Quit,
        other => Entry::Unknown(format!("/{other}")),
    }
}

/// Where lines come from.
pub(crate) enum Input {
    /// A terminal with editing and history.
    Terminal { editor: Box<Editor<(), FileHistory>>, history: Option<PathBuf> },
    /// A pipe or file.
    Piped(io::StdinLock<'static>),
}

impl Input {
    /// An editor whose history is kept in the file `history`.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub(crate) fn terminal(history: Option<PathBuf>) -> io::Result<Input> {
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = Editor::with_config(config).map_err(io::Error::other)?;
        if let Some(path) = &history {
            // There is none before the first conversation.
            let _ = editor.load_history(path);
        }
        Ok(Input::Terminal { editor: Box::new(editor), history })
    }

    /// The next message or command; [`Entry::Quit`] at the end of the input.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(crate) fn next(&mut self) -> io::Result<Entry> {
        let mut assembler = Assembler::default();
        loop {
            match self.line(if assembler.begun() { "… " } else { "> " })? {
                Line::Text(line) => {
                    if let Some(entry) = assembler.push(&line) {
                        return Ok(entry);
                    }
                }
                Line::Interrupt => assembler.clear(),
                Line::End => return Ok(assembler.finish().unwrap_or(Entry::Quit)),
            }
        }
    }

    fn line(&mut self, prompt: &str) -> io::Result<Line> {
        match self {
            Input::Terminal { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupt),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(io::Error::other(error)),
            },
            Input::Piped(stdin) => {
                let mut line = String::new();
                if stdin.read_line(&mut line)? == 0 {
                    return Ok(Line::End);
                }
                let line = line.trim_end_matches(['\n', '\r']);
                Ok(Line::Text(line.to_owned()))
            }
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if let Input::Terminal { editor, history: Some(path) } = self {
            // History is a comfort; a cache that cannot be written loses it.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = editor.save_history(path);
        }
    }
}

enum Line {
    Text(String),
    Interrupt,
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(lines: &[&str]) -> Vec<Entry> {
        let mut assembler = Assembler::default();
        lines.iter().filter_map(|line| assembler.push(line)).collect()
    }

    fn message(text: &str) -> Entry {
        Entry::Message(text.into())
    }

    #[test]
    fn lines_become_messages() {
        for (lines, expected) in [
            (vec!["hello"], vec![message("hello")]),
            (vec!["", "   "], vec![]),
            (vec!["one \\", "two\\", "three"], vec![message("one \ntwo\nthree")]),
            (vec!["\"\"\"", "a", "", "b\\", "\"\"\""], vec![message("a\n\nb\\")]),
            (vec!["\"\"\"a", "b\"\"\"", "c"], vec![message("a\nb"), message("c")]),
            (vec!["\"\"\"one\"\"\""], vec![message("one")]),
            (vec!["\"\"\"", "/reset", "\"\"\""], vec![message("/reset")]),
            (vec!["a\\", "/reset"], vec![message("a\n/reset")]),
        ] {
            assert_eq!(entries(&lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn commands() {
        for (line, entry) in [
            ("/reset", Entry::Reset),
            (" /stats ", Entry::Stats),
            ("/help", Entry::Help),
            ("/quit", Entry::Quit),
            ("/exit", Entry::Quit),
            ("/bye now", Entry::Unknown("/bye now".into())),
        ] {
            assert_eq!(entries(&[line]), [entry], "{line}");
        }
    }

    #[test]
    fn an_unfinished_message_counts_at_the_end_of_the_input() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push("a\\"), None);
        assert!(assembler.begun());
        assert_eq!(assembler.finish(), Some(message("a")));
        assert!(!assembler.begun());
    }
}
