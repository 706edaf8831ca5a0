//! Values printed as Python prints them, because templates are written for Jinja in Python:
//! `str()`, `repr()` and `json.dumps()`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// The arguments of `json.dumps`.
#[derive(Clone, Debug)]
pub(super) struct JsonStyle {
    pub(super) indent: Option<usize>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) characters: Characters,
    pub(super) keys: KeyOrder,
}

/// `ensure_ascii`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Characters {
    All,
    Ascii,
}

/// `sort_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrder {
    AsGiven,
    Sorted,
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => repr(value),
    }
}

/// `repr(value)`; the text of values that Python does not have.
fn repr(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| repr(&item)).collect::<Result<Vec<_>, _>>()?;
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let items = value
                .try_iter()?
                .map(|key| Ok(format!("{}: {}", repr(&key)?, repr(&value.get_item(&key)?)?)))
                .collect::<Result<Vec<_>, Error>>()?;
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    })
}

/// A string literal: single quotes, unless only those occur inside.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 0x100 && c.is_control() => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("strings take everything");
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => self::float(float),
        _ => value.to_string(),
    }
}

/// The shortest digits that give the number back, with an exponent below 1e-4 and from 1e16 on.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes a number");
    match exponent {
        -4..16 => format!("{value:?}"),
        _ if exponent < 0 => format!("{digits}e-{:02}", -exponent),
        _ => format!("{digits}e+{exponent:02}"),
    }
}

/// `json.dumps(value)`.
///
/// # Errors
/// A value that JSON does not have.
pub(super) fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out)
}

fn write_json(
    value: &Value,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(match number(value).as_str() {
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            finite => finite,
        }),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_items(&items, style, depth, ['[', ']'], out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.keys == KeyOrder::Sorted {
                keys.sort();
            }
            write_items(&keys, style, depth, ['{', '}'], out, |key, out| {
                write_string(&key_text(key)?, style, out);
                out.push_str(&style.key_separator);
                write_json(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => {
            let problem = format!("a value of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
    }
    Ok(())
}

fn write_items(
    items: &[Value],
    style: &JsonStyle,
    depth: usize,
    [open, close]: [char; 2],
    out: &mut String,
    mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

/// JSON's keys are strings; Python turns the others into their JSON text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        _ => str(key),
    }
}

fn write_string(text: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.characters == Characters::Ascii && c >= '\u{7f}') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("strings take everything");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        let cases = [
            (0.1, "0.1"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
        ];
        for (value, expected) in cases {
            assert_eq!(float(value), expected);
        }
    }

    #[test]
    fn literals_choose_their_quotes() {
        assert_eq!(quoted("a"), "'a'");
        assert_eq!(quoted("it's"), "\"it's\"");
        assert_eq!(quoted("'\"\n\\\u{1b}é"), "'\\'\"\\n\\\\\\x1bé'");
    }
}
