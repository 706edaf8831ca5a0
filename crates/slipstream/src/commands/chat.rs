//! `slipstream chat`: one question, or a conversation.

use crate::args::ChatArgs;
use crate::failure::Failure;
use crate::render::{self, Colour, Stream, Totals};
use crate::repl::{Entry, HELP, Input};
use crate::session::{Session, Sink, uninterrupted};
use engine::{FinishReason, Limits, Output, Request, Sampling, Speculation, Update};
use fetch::Sources;
use model::chat::Message;
use std::io::{self, IsTerminal, Write, stderr, stdin, stdout};

/// Part of the context that is kept free for an answer (one in `ROOM`), when the conversation has
/// to be shortened.
const ROOM: usize = 4;

pub(crate) fn run(args: ChatArgs) -> Result<(), Failure> {
    let mut chat = Chat::open(&args)?;
    match &args.prompt {
        Some(prompt) => {
            let answer = chat.ask(prompt)?;
            uninterrupted(answer.reason)
        }
        None => chat.converse(),
    }
}

/// A conversation and how its answers are made and shown.
struct Chat<'a> {
    session: Session,
    args: &'a ChatArgs,
    sampling: Sampling,
    messages: Vec<Message>,
    totals: Totals,
    /// Of the text and of the remarks beside it.
    colours: (Colour, Colour),
}

impl<'a> Chat<'a> {
    fn open(args: &'a ChatArgs) -> Result<Chat<'a>, Failure> {
        let session = Session::open(&args.model)?;
        if args.compare && !session.drafts() {
            return Err(Failure::input("--compare: there is no drafter; name one with --draft"));
        }
        let sampling = args.sampling.sampling();
        let colours =
            (Colour::for_stream(Stream::of(&stdout())), Colour::for_stream(Stream::of(&stderr())));
        if args.show_drafts {
            eprintln!("{}", render::legend(colours.0));
        }
        let mut chat = Chat {
            session,
            args,
            sampling,
            messages: Vec::new(),
            totals: Totals::default(),
            colours,
        };
        chat.reset();
        Ok(chat)
    }

    fn reset(&mut self) {
        self.messages = self.args.system.iter().map(|text| Message::new("system", text)).collect();
    }

    fn converse(&mut self) -> Result<(), Failure> {
        let mut input = if stdin().is_terminal() {
            let info = self.session.engine.info();
            eprintln!("{} · context {} tokens · /help", self.args.model.model, info.context);
            let history = Sources::from_env()?.cache.join("chat-history");
            Input::terminal(Some(history)).map_err(Failure::input)?
        } else {
            Input::Piped(stdin().lock())
        };
        loop {
            match input.next().map_err(Failure::input)? {
                Entry::Message(text) => match self.ask(&text) {
                    Ok(_) => {}
                    // The next message may fit.
                    Err(Failure::Input(problem)) => eprintln!("error: {problem}"),
                    Err(other) => return Err(other),
                },
                Entry::Reset => self.reset(),
                Entry::Stats => eprintln!("{}", self.totals.line()),
                Entry::Help => eprintln!("{HELP}"),
                Entry::Unknown(name) => eprintln!("{name}: no such command; /help lists them"),
                Entry::Quit => return Ok(()),
            }
        }
    }

    /// Answers a message and, if it could be answered, keeps both.
    fn ask(&mut self, text: &str) -> Result<Output, Failure> {
        let mut messages = self.messages.clone();
        messages.push(Message::new("user", text));
        let context = self.session.engine.info().context;
        let room = self.args.sampling.max_tokens.min(context / ROOM);
        let encode = |messages: &[Message]| self.session.encode_chat(messages);
        let (prompt, dropped) = fit(&mut messages, context - room, encode)?;
        if dropped > 0 {
            eprintln!("note: the context is full: the {dropped} oldest messages are forgotten");
        }
        let request = self.session.request(prompt, &self.args.sampling, self.sampling);
        let answer = self.answer(request)?;
        self.totals.add(&answer.stats);
        messages.push(Message::new("assistant", &answer.text));
        self.messages = messages;
        Ok(answer)
    }

    /// Streams the answer, then the line of figures, then, with `--compare`, the same undrafted.
    fn answer(&mut self, request: Request) -> Result<Output, Failure> {
        let (text, remarks) = self.colours;
        let paint = if self.args.show_drafts { text } else { Colour::Off };
        let mut write = |update: &Update| show(update, paint);
        let sink: Sink<'_> = &mut write;
        let answer = self.session.run(request.clone(), sink)?;
        writeln!(stdout())?;
        let line = render::stats_line(&answer.stats, answer.reason);
        eprintln!("{}", render::dim(&(line + &seed(&request.sampling)), remarks));
        // What was cut short would differ by where it was cut.
        let whole = matches!(answer.reason, FinishReason::Stop | FinishReason::Length);
        if self.args.compare && whole {
            self.compare(request, &answer)?;
        }
        Ok(answer)
    }

    fn compare(&mut self, request: Request, drafted: &Output) -> Result<(), Failure> {
        let limits = Limits { timeout: None, ..request.limits };
        let request = Request { speculation: Speculation::Off, limits, ..request };
        let plain = self.session.run(request, &mut |_| Ok(()))?;
        uninterrupted(plain.reason)?;
        let remarks = self.colours.1;
        let line = render::stats_line(&plain.stats, plain.reason);
        eprintln!("{}", render::dim(&format!("plain: {line}"), remarks));
        let same = Same::of(drafted, &plain);
        let speed_up = match plain.stats.decode_rate() {
            rate if rate > 0.0 => format!("{:.2} ×", drafted.stats.decode_rate() / rate),
            _ => "too short to say".to_owned(),
        };
        eprintln!("drafting: speed-up {speed_up} · {}", same.describe());
        if same == (Same { ids: true, bytes: true }) { Ok(()) } else { Err(Failure::Different) }
    }
}

/// What two outputs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Same {
    ids: bool,
    bytes: bool,
}

impl Same {
    fn of(a: &Output, b: &Output) -> Same {
        Same { ids: a.ids() == b.ids(), bytes: a.text.as_bytes() == b.text.as_bytes() }
    }

    fn describe(self) -> String {
        let word = |same| if same { "equal" } else { "DIFFERENT" };
        format!("ids {} · bytes {}", word(self.ids), word(self.bytes))
    }
}

/// Writes what an update brought, at once.
fn show(update: &Update, paint: Colour) -> io::Result<()> {
    let mut out = stdout().lock();
    for segment in &update.text {
        out.write_all(render::paint(segment, paint).as_bytes())?;
    }
    out.flush()
}

/// The seed, where it decides anything.
pub(crate) fn seed(sampling: &Sampling) -> String {
    if sampling.temperature > 0.0 { format!(" · seed {}", sampling.seed) } else { String::new() }
}

/// The conversation as ids, its oldest exchanges dropped until at most `most` ids are left; and how
/// many messages were dropped. The last message always stays: one that is too long by itself is
/// refused by the engine.
fn fit(
    messages: &mut Vec<Message>,
    most: usize,
    encode: impl Fn(&[Message]) -> Result<Vec<u32>, Failure>,
) -> Result<(Vec<u32>, usize), Failure> {
    let mut dropped = 0;
    loop {
        let ids = encode(messages)?;
        if ids.len() <= most {
            return Ok((ids, dropped));
        }
        match drop_oldest(messages) {
            0 => return Ok((ids, dropped)),
            count => dropped += count,
        }
    }
}

/// Drops the oldest question and its answer, the system message aside; returns how many messages
/// went: none when only the last question is left.
fn drop_oldest(messages: &mut Vec<Message>) -> usize {
    let first = messages.iter().position(|message| message.role != "system");
    match first {
        Some(first) if messages.len() - first > 2 => messages.drain(first..first + 2).count(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Stats, TokenOut};

    #[test]
    fn the_oldest_exchanges_go_until_it_fits_and_the_last_question_stays() {
        let roles = ["system", "user", "assistant", "user", "assistant", "user"];
        // A message costs ten ids; the first of them is its number.
        let encode = |messages: &[Message]| {
            let numbers = messages.iter().flat_map(|message| &message.content);
            Ok(numbers.flat_map(|number| vec![number.parse().unwrap(); 10]).collect())
        };
        for (most, left, dropped) in [
            (100, vec![0, 1, 2, 3, 4, 5], 0),
            (60, vec![0, 1, 2, 3, 4, 5], 0),
            (59, vec![0, 3, 4, 5], 2),
            (39, vec![0, 5], 4),
            (5, vec![0, 5], 4),
        ] {
            let numbered = roles.iter().enumerate();
            let mut messages: Vec<Message> =
                numbered.map(|(at, role)| Message::new(*role, at.to_string())).collect();
            let (mut ids, count) = fit(&mut messages, most, encode).unwrap();
            ids.dedup();
            assert_eq!((ids, count), (left, dropped), "at most {most}");
        }
    }

    #[test]
    fn outputs_are_compared_by_ids_and_bytes() {
        let output = |id, text: &str| Output {
            prompt: vec![],
            tokens: vec![TokenOut { id, drafted: false, logprobs: None }],
            text: text.into(),
            reason: FinishReason::Stop,
            stats: Stats::default(),
        };
        let same = Same::of(&output(1, "a"), &output(1, "a"));
        assert_eq!(same, Same { ids: true, bytes: true });
        assert_eq!(same.describe(), "ids equal · bytes equal");
        let other = Same::of(&output(1, "a"), &output(2, "a"));
        assert_eq!(other.describe(), "ids DIFFERENT · bytes equal");
    }

    #[test]
    fn a_seed_is_reported_where_it_matters() {
        let sampling = Sampling { seed: 7, ..Sampling::default() };
        assert_eq!(seed(&sampling), "");
        assert_eq!(seed(&Sampling { temperature: 0.7, ..sampling }), " · seed 7");
    }
}
