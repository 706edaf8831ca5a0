//! Inside a call: its head, whose text is held until a name and arguments are seen, and its
//! arguments, which are given out as they come.

use super::json::{Seen, Value};
use super::text::{Match, Place, compare};
use super::{Allowed, Count, Delta, Splitter, State};
use crate::chat::dialect::{Shape, ToolFormat};
use serde_json::Map;

/// A call, or the text in front of one in a list or behind a separator.
#[derive(Debug)]
pub(super) struct Call {
    opening: Opening,
    within: Within,
    head: Head,
    step: Step,
    /// Bytes of the closing marker that were read where no JSON may have them.
    closing: usize,
}

/// What began the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// A marker.
    Marker,
    /// The brace of its object.
    Bare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Nothing,
    List,
}

/// What is known of the call.
#[derive(Debug)]
enum Head {
    /// Nothing was given out: the text may turn out to be no call.
    Open { name: Option<String>, arguments: Option<String> },
    /// The call's beginning was given out, and perhaps all of its arguments.
    Given,
}

/// What a key of the call's object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Name,
    Arguments,
    Other,
}

/// What stands around arguments that are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Around {
    Object,
    Nothing,
}

/// What may come next. `from` is where in the held text something begins.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// What the format has behind its marker.
    Opened,
    /// An object.
    Object,
    /// A key, or the end of the object.
    FirstKey,
    Key,
    InKey {
        from: usize,
        value: Value,
    },
    Colon(Member),
    BeforeValue(Member),
    InValue {
        member: Member,
        from: usize,
        value: Value,
    },
    Arguments {
        value: Value,
        around: Around,
    },
    /// A comma, or the end of the object.
    AfterValue,
    /// A comma, or the end of the list.
    AfterItem,
    Name {
        from: usize,
    },
    /// A marker, or the arguments.
    AfterName,
    Mark {
        from: usize,
    },
    /// An id, and then what may come behind a name.
    CallId,
    BeforeArguments,
}

/// What a character leads to.
enum Next {
    Step(Step),
    /// The call is over.
    Over(Place),
    /// The text since the last delta is content.
    NoCall,
}

impl Call {
    /// Behind the marker or the brace that begins a call.
    pub(super) fn opened(opening: Opening) -> Call {
        let step = match opening {
            Opening::Marker => Step::Opened,
            Opening::Bare => Step::FirstKey,
        };
        let head = Head::Open { name: None, arguments: None };
        Call { opening, within: Within::Nothing, head, step, closing: 0 }
    }

    /// Behind the separator that follows a call.
    pub(super) fn separated() -> Call {
        Call { head: Head::Given, step: Step::Object, ..Call::opened(Opening::Bare) }
    }
}

impl Splitter {
    pub(super) fn format(&self) -> &'static ToolFormat {
        self.rules.calls.as_ref().expect("calls are read by their rules").format
    }

    pub(super) fn step_call(&mut self, mut call: Call, c: char) {
        let next = match call.step {
            Step::Arguments { value, around } => self.in_arguments(&mut call, value, around, c),
            _ => {
                self.held.push(c);
                self.in_head(&mut call, c)
            }
        };
        match next {
            Next::Step(step) => {
                call.step = step;
                self.state = State::Call(call);
            }
            Next::Over(place) => {
                self.held.clear();
                self.state = State::Text(place);
            }
            Next::NoCall => {
                self.held.pop();
                let text = std::mem::take(&mut self.held);
                self.content(&text);
                self.state = State::Text(Place::Inside);
                self.step(c);
            }
        }
        let one = self.rules.calls.as_ref().is_some_and(|rules| rules.count == Count::One);
        if one && self.calls > 0 && !self.is_in_call() {
            self.state = State::Done;
        }
    }

    /// Whether a call was begun and is not over.
    fn is_in_call(&self) -> bool {
        match &self.state {
            State::Call(call) => !matches!(call.step, Step::AfterItem),
            _ => false,
        }
    }

    pub(super) fn finish_call(&mut self, call: &Call) {
        match (&call.head, call.step) {
            (Head::Open { .. }, _) => {
                let text = std::mem::take(&mut self.held);
                self.content(&text);
            }
            (Head::Given, Step::Arguments { .. }) => {
                let close = self.format().close.unwrap_or_default();
                self.arguments(&close[..call.closing]);
            }
            // The JSON around a call is in no delta, and so is the beginning of it.
            (Head::Given, _) => {}
        }
    }

    /// One character outside of arguments. `held` ends with it.
    fn in_head(&mut self, call: &mut Call, c: char) -> Next {
        let blank = c.is_ascii_whitespace();
        let at = self.held.len() - c.len_utf8();
        match (call.step, c) {
            (Step::InKey { from, value }, _) => self.in_key(from, value, c),
            (Step::InValue { member, from, value }, _) => {
                self.in_value(call, member, from, value, c)
            }
            (Step::Mark { from }, _) => self.in_mark(from),
            (Step::Name { from }, _) => self.in_name(call, from, c),
            (Step::AfterValue, _) => self.after_value(call, c),
            (step, _) if blank => Next::Step(step),
            (Step::Opened, _) => self.behind_marker(call, c),
            (Step::Object, '{') => {
                call.head = Head::Open { name: None, arguments: None };
                Next::Step(Step::FirstKey)
            }
            (Step::FirstKey, '}') => self.end_object(call),
            (Step::FirstKey | Step::Key, '"') => {
                let value = Value::begin(c).expect("a quote begins a string");
                Next::Step(Step::InKey { from: at, value })
            }
            (Step::Colon(member), ':') => Next::Step(Step::BeforeValue(member)),
            (Step::BeforeValue(member), _) => self.begin_value(call, member, c),
            (Step::AfterItem, ',') => Next::Step(Step::Object),
            (Step::AfterItem, ']') => Next::Over(Place::AfterCall),
            (Step::AfterName | Step::CallId | Step::BeforeArguments, '{') => {
                self.begin_arguments(call, Around::Nothing)
            }
            (Step::AfterName | Step::CallId, _) if self.begins_mark(c) => {
                Next::Step(Step::Mark { from: at })
            }
            (Step::CallId, _) if in_names(c) => Next::Step(Step::CallId),
            _ => Next::NoCall,
        }
    }

    fn behind_marker(&mut self, call: &mut Call, c: char) -> Next {
        let takes = |shape| self.format().shapes.contains(&shape);
        match c {
            '{' if takes(Shape::Object) => Next::Step(Step::FirstKey),
            '[' if takes(Shape::List) => {
                call.within = Within::List;
                Next::Step(Step::Object)
            }
            _ if in_names(c) && takes(Shape::Named) => {
                Next::Step(Step::Name { from: self.held.len() - c.len_utf8() })
            }
            _ => Next::NoCall,
        }
    }

    fn in_key(&mut self, from: usize, mut value: Value, c: char) -> Next {
        // JSON has no line breaks in strings; a key that is never closed ends with its line.
        if c.is_control() {
            return Next::NoCall;
        }
        match value.step(c) {
            Seen::Last => match serde_json::from_str::<String>(&self.held[from..]) {
                Ok(key) => Next::Step(Step::Colon(match key.as_str() {
                    "name" => Member::Name,
                    "arguments" | "parameters" => Member::Arguments,
                    _ => Member::Other,
                })),
                Err(_) => Next::NoCall,
            },
            Seen::Part | Seen::Behind => Next::Step(Step::InKey { from, value }),
        }
    }

    fn begin_value(&mut self, call: &mut Call, member: Member, c: char) -> Next {
        let named = matches!(call.head, Head::Open { name: Some(_), arguments: None });
        if member == Member::Arguments && c == '{' && named {
            return self.begin_arguments(call, Around::Object);
        }
        let from = self.held.len() - c.len_utf8();
        match Value::begin(c) {
            Some(value) => Next::Step(Step::InValue { member, from, value }),
            None => Next::NoCall,
        }
    }

    fn in_value(
        &mut self,
        call: &mut Call,
        member: Member,
        from: usize,
        mut value: Value,
        c: char,
    ) -> Next {
        if matches!(value, Value::Text(_)) && c.is_control() {
            return Next::NoCall;
        }
        match value.step(c) {
            Seen::Part => Next::Step(Step::InValue { member, from, value }),
            Seen::Last => {
                if self.end_value(call, member, from, self.held.len()) {
                    Next::Step(Step::AfterValue)
                } else {
                    Next::NoCall
                }
            }
            Seen::Behind => {
                if self.end_value(call, member, from, self.held.len() - c.len_utf8()) {
                    self.after_value(call, c)
                } else {
                    Next::NoCall
                }
            }
        }
    }

    /// Takes note of a value that was held, `held[from..to]`. Whether it may stand there.
    fn end_value(&mut self, call: &mut Call, member: Member, from: usize, to: usize) -> bool {
        let Head::Open { name, arguments } = &mut call.head else { return true };
        let text = &self.held[from..to];
        match member {
            Member::Other => return true,
            Member::Name => {
                *name = serde_json::from_str(text).ok().filter(|n: &String| !n.is_empty())
            }
            Member::Arguments => *arguments = object(text),
        }
        let missing = match member {
            Member::Name => name.is_none(),
            _ => arguments.is_none(),
        };
        if missing {
            return false;
        }
        match (&name, arguments.take()) {
            (Some(_), Some(whole)) => self.give_whole(call, &whole),
            (_, kept) => {
                *arguments = kept;
                true
            }
        }
    }

    fn after_value(&mut self, call: &mut Call, c: char) -> Next {
        let close = match call.head {
            Head::Given => self.format().close.unwrap_or_default(),
            Head::Open { .. } => "",
        };
        match c {
            _ if close[call.closing..].starts_with(c) => {
                call.closing += c.len_utf8();
                if call.closing == close.len() {
                    return Next::Over(Place::AfterCall);
                }
                Next::Step(Step::AfterValue)
            }
            _ if call.closing > 0 => Next::NoCall,
            ',' => Next::Step(Step::Key),
            '}' => self.end_object(call),
            _ if c.is_ascii_whitespace() => Next::Step(Step::AfterValue),
            _ => Next::NoCall,
        }
    }

    /// Behind the closing brace of a call's object.
    fn end_object(&mut self, call: &mut Call) -> Next {
        let given = match &call.head {
            Head::Given => true,
            Head::Open { name: Some(_), .. } if call.opening == Opening::Marker => {
                self.give_whole(call, "{}")
            }
            Head::Open { .. } => false,
        };
        match (given, call.within) {
            (false, _) => Next::NoCall,
            (true, Within::Nothing) => Next::Over(Place::AfterObject),
            (true, Within::List) => {
                self.held.clear();
                Next::Step(Step::AfterItem)
            }
        }
    }

    fn in_name(&mut self, call: &mut Call, from: usize, c: char) -> Next {
        if in_names(c) {
            return Next::Step(Step::Name { from });
        }
        let name = &self.held[from..self.held.len() - c.len_utf8()];
        call.head = Head::Open { name: Some(name.to_owned()), arguments: None };
        call.step = Step::AfterName;
        self.in_head(call, c)
    }

    fn begins_mark(&self, c: char) -> bool {
        let marks = self.format().named.as_ref();
        marks.is_some_and(|marks| marks.id.starts_with(c) || marks.arguments.starts_with(c))
    }

    fn in_mark(&self, from: usize) -> Next {
        let marks = self.format().named.as_ref().expect("a mark was begun");
        let steps = [(marks.id, Step::CallId), (marks.arguments, Step::BeforeArguments)];
        match compare(&self.held[from..], steps) {
            Match::Part => Next::Step(Step::Mark { from }),
            Match::Whole(step) => Next::Step(step),
            Match::None => Next::NoCall,
        }
    }

    /// At the brace that begins the arguments of a call whose name is known.
    fn begin_arguments(&mut self, call: &mut Call, around: Around) -> Next {
        if !self.give_head(call) {
            return Next::NoCall;
        }
        self.arguments("{");
        let value = Value::begin('{').expect("a brace begins an object");
        Next::Step(Step::Arguments { value, around })
    }

    fn in_arguments(&mut self, call: &mut Call, mut value: Value, around: Around, c: char) -> Next {
        let same = |value| Next::Step(Step::Arguments { value, around });
        let close = self.format().close.filter(|_| !value.in_text()).unwrap_or_default();
        if call.closing > 0 && !close[call.closing..].starts_with(c) {
            self.arguments(&close[..std::mem::take(&mut call.closing)]);
        }
        // Outside of strings no JSON has the marker: the model ended a call that it left unfinished.
        if close[call.closing..].starts_with(c) {
            call.closing += c.len_utf8();
            return if call.closing == close.len() {
                Next::Over(Place::AfterCall)
            } else {
                same(value)
            };
        }
        self.arguments(c.encode_utf8(&mut [0; 4]));
        match (value.step(c), around) {
            (Seen::Part | Seen::Behind, _) => same(value),
            (Seen::Last, Around::Object) => Next::Step(Step::AfterValue),
            (Seen::Last, Around::Nothing) => Next::Over(Place::AfterObject),
        }
    }

    /// Gives out a call whose arguments were held until its name was known.
    fn give_whole(&mut self, call: &mut Call, arguments: &str) -> bool {
        let given = self.give_head(call);
        if given {
            self.arguments(arguments);
        }
        given
    }

    /// Gives out the beginning of a call whose name is known. Whether such calls count.
    fn give_head(&mut self, call: &mut Call) -> bool {
        let Head::Open { name: Some(name), .. } = &mut call.head else {
            panic!("a call begins when its name is known, and once");
        };
        let rules = self.rules.calls.as_ref().expect("calls are read by their rules");
        if let Allowed::Only(names) = &rules.allowed
            && !names.contains(name)
        {
            return false;
        }
        let (index, name) = (self.calls, std::mem::take(name));
        self.deltas.push(Delta::ToolCall { index, id: self.ids.id(index), name });
        self.calls += 1;
        self.held.clear();
        call.head = Head::Given;
        true
    }
}

/// Characters of a function's name where nothing but its end tells it from what follows.
fn in_names(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.".contains(c)
}

/// Arguments as the source text of an object: as they are, out of the string that some models write
/// around them, or none for null.
fn object(text: &str) -> Option<String> {
    match text.chars().next() {
        Some('{') => Some(text.to_owned()),
        Some('"') => {
            let inner: String = serde_json::from_str(text).ok()?;
            serde_json::from_str::<Map<_, _>>(&inner).ok()?;
            Some(inner)
        }
        _ => (text == "null").then(|| "{}".to_owned()),
    }
}
