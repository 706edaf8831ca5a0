//! Where a JSON value ends, found character by character, without reading what is in it.

/// Inside a value whose first character was seen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// `{…}` or `[…]`, this many brackets deep. Which bracket closes which is not looked at: a model
    /// that mixes them up has ended its value all the same.
    Nested { depth: usize, text: Text },
    /// `"…"`.
    Text(Text),
    /// A number, `true`, `false`, `null`, or a word that is none of them.
    Word,
}

/// Where in a string, if in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Outside,
    Inside,
    /// Behind a backslash.
    Escaped,
}

/// What a character was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Part of the value, which goes on.
    Part,
    /// Its last character.
    Last,
    /// The first one behind it.
    Behind,
}

impl Value {
    /// The value that `first` begins; `None` when none begins so.
    pub(super) fn begin(first: char) -> Option<Value> {
        match first {
            '{' | '[' => Some(Value::Nested { depth: 1, text: Text::Outside }),
            '"' => Some(Value::Text(Text::Inside)),
            '-' => Some(Value::Word),
            _ if first.is_ascii_alphanumeric() => Some(Value::Word),
            _ => None,
        }
    }

    /// Reads the next character.
    pub(super) fn step(&mut self, c: char) -> Seen {
        match self {
            Value::Nested { depth, text } => {
                match (*text, c) {
                    (Text::Outside, '{' | '[') => *depth += 1,
                    (Text::Outside, '}' | ']') => *depth -= 1,
                    _ => {}
                }
                *text = text.after(c);
                if *depth == 0 { Seen::Last } else { Seen::Part }
            }
            Value::Text(text) => {
                *text = text.after(c);
                if *text == Text::Outside { Seen::Last } else { Seen::Part }
            }
            Value::Word if c.is_ascii_alphanumeric() || "+-.".contains(c) => Seen::Part,
            Value::Word => Seen::Behind,
        }
    }

    /// Whether the next character belongs to a string.
    pub(super) fn in_text(&self) -> bool {
        match self {
            Value::Nested { text, .. } | Value::Text(text) => *text != Text::Outside,
            Value::Word => false,
        }
    }
}

impl Text {
    fn after(self, c: char) -> Text {
        match (self, c) {
            (Text::Outside, '"') => Text::Inside,
            (Text::Inside, '\\') => Text::Escaped,
            (Text::Inside, '"') => Text::Outside,
            (Text::Escaped, _) => Text::Inside,
            (state, _) => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many characters of `text` its first value takes.
    fn length(text: &str) -> Option<usize> {
        let mut chars = text.chars();
        let mut value = Value::begin(chars.next()?)?;
        for (index, c) in chars.enumerate() {
            match value.step(c) {
                Seen::Part => {}
                Seen::Last => return Some(index + 2),
                Seen::Behind => return Some(index + 1),
            }
        }
        None
    }

    #[test]
    fn values_end_where_they_end() {
        for value in [
            "{}",
            "[]",
            r#"{"a": [1, {"b": "}]"}], "c\"}": "\\"}"#,
            r#""text""#,
            r#""a \" b""#,
            r#""\\""#,
            "-1.5e+7",
            "null",
            "true",
        ] {
            assert_eq!(length(&format!("{value} ,{{}}")), Some(value.chars().count()), "{value}");
        }
        for open in ["{", r#"{"a": "}"#, r#""abc\""#, "[[]", "", "]", "é"] {
            assert_eq!(length(open), None, "{open}");
        }
    }
}
