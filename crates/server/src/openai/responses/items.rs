//! The items of a response, made of what an answer says, thinks and calls, and the events that tell of
//! them while they grow. Whole and streamed responses have the same items.

use crate::chat::Delta;
use crate::openai::logprobs::Entry;
use serde_json::{Map, Value, json};
use std::mem::discriminant;

/// What happened, by the name that clients know it by.
pub(super) struct Event {
    pub(super) kind: &'static str,
    pub(super) fields: Map<String, Value>,
}

impl Event {
    /// `fields` is an object.
    pub(super) fn new(kind: &'static str, fields: Value) -> Event {
        let Value::Object(fields) = fields else { panic!("expected an object, got {fields}") };
        Event { kind, fields }
    }
}

/// The items of one response.
pub(super) struct Items {
    /// The part of the response's id that no other has: with its place it makes an item's id.
    key: String,
    done: Vec<Value>,
    open: Option<Item>,
    /// Log-probabilities of all tokens, if they are asked for.
    entries: Option<Vec<Entry>>,
    /// How many of them have been told, or are not of the text.
    told: usize,
}

/// The item that grows.
struct Item {
    kind: Kind,
    id: String,
    text: String,
    /// Where its log-probabilities begin.
    from: usize,
}

#[derive(Clone)]
enum Kind {
    Message,
    Reasoning,
    Call { id: String, name: String },
}

/// How an item ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The answer's length ran out inside it.
    Incomplete,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

/// Whether log-probabilities are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    Omit,
    Include,
}

impl Items {
    /// Of the response called `id`.
    pub(super) fn new(id: &str, entries: Entries) -> Items {
        let key = id.rsplit('_').next().unwrap_or(id).to_owned();
        let entries = (entries == Entries::Include).then(Vec::new);
        Items { key, done: Vec::new(), open: None, entries, told: 0 }
    }

    /// What a step added: its text, and the log-probabilities of its tokens. `before` tokens of the
    /// answer were reasoning.
    pub(super) fn hear(
        &mut self,
        deltas: Vec<Delta>,
        entries: Vec<Entry>,
        before: usize,
    ) -> Vec<Event> {
        if let Some(all) = &mut self.entries {
            all.extend(entries);
        }
        let mut events = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.said(text, before, &mut events),
                Delta::Reasoning(text) => {
                    self.enter(&Kind::Reasoning, before, &mut events);
                    self.grow(text, "response.reasoning_text.delta", &mut events);
                }
                Delta::ToolCall { id, name, .. } => {
                    self.end(Status::Completed, &mut events);
                    self.begin(Kind::Call { id, name }, before, &mut events);
                }
                Delta::Arguments { text, .. } => {
                    self.grow(text, "response.function_call_arguments.delta", &mut events);
                }
            }
        }
        events
    }

    /// The answer has ended, and its last item as `status` says.
    pub(super) fn close(&mut self, status: Status, before: usize) -> Vec<Event> {
        let mut events = Vec::new();
        if self.open.is_none() && self.done.is_empty() {
            // An answer without a word is a message without a word.
            self.begin(Kind::Message, before, &mut events);
        }
        let untold = self.entries.as_ref().is_some_and(|entries| self.told < entries.len());
        if untold && matches!(&self.open, Some(Item { kind: Kind::Message, .. })) {
            // Tokens whose text was held back, or have none.
            self.said(String::new(), before, &mut events);
        }
        self.end(status, &mut events);
        events
    }

    /// The items that are complete.
    pub(super) fn done(&self) -> &[Value] {
        &self.done
    }

    fn said(&mut self, text: String, before: usize, events: &mut Vec<Event>) {
        self.enter(&Kind::Message, before, events);
        let entries = self.entries.as_deref().unwrap_or_default();
        let more = json!(entries.get(self.told..).unwrap_or_default());
        self.told = self.told.max(entries.len());
        self.grow(text, "response.output_text.delta", events);
        if let Some(event) = events.last_mut() {
            event.fields.insert("logprobs".into(), more);
        }
    }

    /// Goes on in an item of `kind`, or begins one.
    fn enter(&mut self, kind: &Kind, before: usize, events: &mut Vec<Event>) {
        let same = |item: &Item| discriminant(&item.kind) == discriminant(kind);
        let goes_on = self.open.as_ref().is_some_and(same);
        if !goes_on {
            self.end(Status::Completed, events);
            self.begin(kind.clone(), before, events);
        }
    }

    fn begin(&mut self, kind: Kind, before: usize, events: &mut Vec<Event>) {
        self.told = self.told.max(before);
        let prefix = match kind {
            Kind::Message => "msg",
            Kind::Reasoning => "rs",
            Kind::Call { .. } => "fc",
        };
        let id = format!("{prefix}_{}{:02x}", self.key, self.done.len());
        let item = Item { kind, id, text: String::new(), from: self.told };
        let output_index = self.done.len();
        let added =
            json!({"output_index": output_index, "item": item.json(Status::InProgress, &[])});
        events.push(Event::new("response.output_item.added", added));
        if let Some(part) = item.part(&[]) {
            let part = json!({
                "item_id": item.id, "output_index": output_index, "content_index": 0, "part": part,
            });
            events.push(Event::new("response.content_part.added", part));
        }
        self.open = Some(item);
    }

    fn grow(&mut self, text: String, kind: &'static str, events: &mut Vec<Event>) {
        let item = self.open.as_mut().expect("an item begins before it grows");
        item.text.push_str(&text);
        let mut fields = item.place(self.done.len());
        fields.insert("delta".into(), text.into());
        events.push(Event { kind, fields });
    }

    fn end(&mut self, status: Status, events: &mut Vec<Event>) {
        let Some(item) = self.open.take() else { return };
        let entries = self.entries.as_deref().unwrap_or_default();
        let entries = match &item.kind {
            Kind::Message => entries.get(item.from..).unwrap_or_default(),
            Kind::Reasoning | Kind::Call { .. } => &[],
        };
        let output_index = self.done.len();
        let mut fields = item.place(output_index);
        let kind = match &item.kind {
            Kind::Message => {
                fields.insert("text".into(), item.text.clone().into());
                fields.insert("logprobs".into(), json!(entries));
                "response.output_text.done"
            }
            Kind::Reasoning => {
                fields.insert("text".into(), item.text.clone().into());
                "response.reasoning_text.done"
            }
            Kind::Call { name, .. } => {
                fields.insert("name".into(), name.clone().into());
                fields.insert("arguments".into(), item.text.clone().into());
                "response.function_call_arguments.done"
            }
        };
        events.push(Event { kind, fields });
        if let Some(part) = item.part(entries) {
            let mut fields = item.place(output_index);
            fields.insert("part".into(), part);
            events.push(Event { kind: "response.content_part.done", fields });
        }
        let done = item.json(status, entries);
        let fields = json!({"output_index": output_index, "item": done});
        events.push(Event::new("response.output_item.done", fields));
        self.done.push(done);
    }
}

impl Item {
    /// Where in the response it is, and where in it what is told belongs.
    fn place(&self, output_index: usize) -> Map<String, Value> {
        let mut place = Map::new();
        place.insert("item_id".into(), self.id.clone().into());
        place.insert("output_index".into(), output_index.into());
        if !matches!(self.kind, Kind::Call { .. }) {
            place.insert("content_index".into(), 0.into());
        }
        place
    }

    /// Its one part of content; calls have none.
    fn part(&self, entries: &[Entry]) -> Option<Value> {
        match self.kind {
            Kind::Message => Some(json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": entries,
            })),
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Call { .. } => None,
        }
    }

    fn json(&self, status: Status, entries: &[Entry]) -> Value {
        let (id, state) = (&self.id, status.name());
        // An item that begins has no parts yet.
        let begins = status == Status::InProgress;
        let content: Vec<Value> = self.part(entries).filter(|_| !begins).into_iter().collect();
        match &self.kind {
            Kind::Message => json!({
                "id": id, "type": "message", "status": state, "role": "assistant",
                "content": content,
            }),
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": state, "summary": [], "content": content,
            }),
            Kind::Call { id: call, name } => json!({
                "id": id, "type": "function_call", "status": state, "call_id": call, "name": name,
                "arguments": self.text,
            }),
        }
    }
}
