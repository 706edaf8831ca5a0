//! Outside of calls: content and reasoning, and the markers that open something else.

use super::call::{Call, Opening};
use super::{Splitter, State};
use crate::chat::dialect::Bare;

/// Where in the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At the start of the answer.
    Start,
    /// Right behind reasoning.
    AfterReasoning,
    /// Right behind the object of a call, whose closing marker or separator may follow.
    AfterObject,
    /// Right behind a call.
    AfterCall,
    /// Anywhere else.
    Inside,
}

/// Where in the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// Nothing but line breaks was read.
    Opening,
    /// Anywhere else.
    Inside,
}

/// What a text may be the beginning of.
pub(super) enum Match<T> {
    /// Of a marker, which is not complete.
    Part,
    /// It is this marker.
    Whole(T),
    /// Of none.
    None,
}

/// What the markers in content mean.
#[derive(Clone, Copy)]
enum Mark {
    Reasoning,
    Call(Opening),
    /// The end of the call before.
    Close,
    /// An object follows that belongs to the call before.
    Separator,
}

/// `text`, not empty, against markers of which none begins with another.
pub(super) fn compare<'m, T>(
    text: &str,
    markers: impl IntoIterator<Item = (&'m str, T)>,
) -> Match<T> {
    let mut part = false;
    for (marker, mark) in markers {
        if marker == text {
            return Match::Whole(mark);
        }
        part |= marker.starts_with(text);
    }
    if part { Match::Part } else { Match::None }
}

impl Splitter {
    /// Line breaks are held in `blank` until it is known that no closing marker follows.
    pub(super) fn step_reasoning(&mut self, edge: Edge, c: char) {
        let kind = self.rules.reasoning.expect("the state is reached by a kind of reasoning");
        self.state = State::Reasoning(edge);
        if self.held.is_empty() && c == '\n' {
            if edge == Edge::Inside {
                self.blank.push(c);
            }
            return;
        }
        self.held.push(c);
        match compare(&self.held, [(kind.close, ())]) {
            Match::Part => {}
            Match::Whole(()) => {
                self.blank.clear();
                self.held.clear();
                self.state = State::Text(Place::AfterReasoning);
            }
            Match::None => {
                let (blank, held) =
                    (std::mem::take(&mut self.blank), std::mem::take(&mut self.held));
                self.reasoning(&blank);
                self.state = State::Reasoning(Edge::Inside);
                self.release(&held, Splitter::reasoning);
            }
        }
    }

    pub(super) fn finish_reasoning(&mut self) {
        let text = std::mem::take(&mut self.blank) + &self.held;
        self.reasoning(&text);
    }

    /// Whitespace next to calls is held in `blank` until it is known what follows.
    pub(super) fn step_text(&mut self, place: Place, c: char) {
        self.state = State::Text(place);
        if self.held.is_empty() && place != Place::Inside && c.is_whitespace() {
            let dropped = place == Place::AfterReasoning && self.blank.is_empty() && c == '\n';
            if !dropped {
                self.blank.push(c);
            }
            return;
        }
        self.held.push(c);
        match self.marker(place) {
            Match::Part => {}
            Match::Whole(mark) => self.enter(mark),
            Match::None => {
                let (blank, held) =
                    (std::mem::take(&mut self.blank), std::mem::take(&mut self.held));
                self.content(&blank);
                self.state = State::Text(Place::Inside);
                self.release(&held, Splitter::content);
            }
        }
    }

    pub(super) fn finish_text(&mut self, place: Place) {
        let cut = place == Place::AfterObject
            && self.format().close.is_some_and(|close| close.starts_with(&self.held));
        let behind = matches!(place, Place::AfterObject | Place::AfterCall);
        if cut || behind && self.held.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.blank) + &self.held;
        self.content(&text);
    }

    /// Gives the first character of `held` out and reads the others again: one of them may begin a
    /// marker.
    fn release(&mut self, held: &str, give: impl Fn(&mut Splitter, &str)) {
        let first = held.chars().next().map_or(0, char::len_utf8);
        let (first, rest) = held.split_at(first);
        give(self, first);
        rest.chars().for_each(|c| self.step(c));
    }

    /// `held` against the markers that count at `place`.
    fn marker(&self, place: Place) -> Match<Mark> {
        let reasoning = self.rules.reasoning.filter(|_| place == Place::Start);
        let mut markers = [None; 4];
        markers[0] = reasoning.map(|kind| (kind.open, Mark::Reasoning));
        if let Some(calls) = &self.rules.calls {
            let format = calls.format;
            markers[1] = Some((format.open, Mark::Call(Opening::Marker)));
            let leads = matches!(place, Place::Start | Place::AfterReasoning);
            if leads && format.bare == Bare::Leading {
                markers[2] = Some(("{", Mark::Call(Opening::Bare)));
            }
            if place == Place::AfterObject {
                markers[2] = format.separator.map(|text| (text, Mark::Separator));
                markers[3] = format.close.map(|close| (close, Mark::Close));
            }
        }
        compare(&self.held, markers.into_iter().flatten())
    }

    fn enter(&mut self, mark: Mark) {
        let blank = std::mem::take(&mut self.blank);
        match mark {
            Mark::Reasoning => {
                self.held.clear();
                self.state = State::Reasoning(Edge::Opening);
            }
            Mark::Close => {
                self.held.clear();
                self.state = State::Text(Place::AfterCall);
            }
            Mark::Call(opening) => {
                self.held.insert_str(0, &blank);
                self.state = State::Call(Call::opened(opening));
            }
            Mark::Separator => {
                self.held.insert_str(0, &blank);
                self.state = State::Call(Call::separated());
            }
        }
    }
}
