//! A [`Grammar`] as the grammars that llguidance reads: one Lark text for the shape, in which the
//! JSON schemas and the grammars of the description are named as grammars of their own.

use crate::compile::GrammarError;
use crate::ebnf;
use crate::grammar::{Grammar, Prose, ProseEnd};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::regex_to_lark;
use serde_json::{Value, json};

/// Most bytes of all texts of a description: the time that a schema takes grows with the square of
/// its properties.
const LONGEST: usize = 64 * 1024;

/// Deepest nesting of brackets in a regular expression or a Lark grammar: their parsers descend on
/// the stack.
const DEEPEST: usize = 100;

/// Writes a description.
struct Writer {
    /// The rules of the shape.
    rules: String,
    count: usize,
    parts: Vec<GrammarWithLexer>,
    room: usize,
}

/// What llguidance compiles for `grammar`.
///
/// # Errors
/// A description that is too long, too deep, or holds a schema that is not JSON.
pub(crate) fn write(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let mut writer = Writer { rules: String::new(), count: 0, parts: Vec::new(), room: LONGEST };
    let grammars = match grammar {
        // Alone they need no shape around them.
        Grammar::Json(_) | Grammar::Lark(_) | Grammar::Ebnf(_) => {
            writer.part(grammar)?;
            writer.parts
        }
        shaped => {
            let root = writer.expression(shaped)?;
            let shape = format!("start: {root}\n{}", writer.rules);
            let mut grammars = vec![GrammarWithLexer::from_lark(shape)];
            grammars.extend(writer.parts);
            grammars
        }
    };
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}

impl Writer {
    /// An expression of the Lark text.
    fn expression(&mut self, grammar: &Grammar) -> Result<String, GrammarError> {
        match grammar {
            Grammar::Text(text) => self.text(text),
            Grammar::Regex(regex) => {
                self.take(regex.len())?;
                shallow(regex)?;
                Ok(format!("/{}/", regex_to_lark(regex, "")))
            }
            Grammar::Json(_) | Grammar::Lark(_) | Grammar::Ebnf(_) => self.part(grammar),
            Grammar::Through(end) => {
                let end = self.text(end)?;
                let name = self.name("through");
                self.rules.push_str(&format!("{name}[suffix={end}]: /(?s:.*)/\n"));
                Ok(name)
            }
            Grammar::Prose(prose) => self.prose(prose),
            Grammar::Sequence(items) => self.joined(items, " "),
            Grammar::Choice(items) => self.choice(items),
            Grammar::Optional(item) => Ok(format!("({})?", self.expression(item)?)),
            Grammar::Repeat { item, between } => {
                let (item, between) = (self.expression(item)?, self.expression(between)?);
                let name = self.name("item");
                self.rules.push_str(&format!("{name}: {item}\n"));
                Ok(format!("{name} ({between} {name})*"))
            }
        }
    }

    /// One terminal: the lexer has to see the marks and what else the text may be at once.
    fn prose(&mut self, prose: &Prose) -> Result<String, GrammarError> {
        let mark = self.text(&prose.mark)?;
        let mut all = match prose.end {
            ProseEnd::Mark => format!("(/(?s:.*)/ {mark}) & ~(/(?s:.*)/ {mark} /(?s:.+)/)"),
            ProseEnd::NoMark => format!("/(?s:.+)/ & ~(/(?s:.*)/ {mark} /(?s:.*)/)"),
        };
        if let Some(head) = &prose.head {
            all.push_str(&format!(" & ~({} /(?s:.*)/)", self.text(head)?));
        }
        let name = self.name("PROSE");
        self.rules.push_str(&format!("{name}: {all}\n"));
        Ok(match prose.end {
            ProseEnd::Mark => name,
            ProseEnd::NoMark => format!("{name}?"),
        })
    }

    fn joined(&mut self, items: &[Grammar], with: &str) -> Result<String, GrammarError> {
        let items: Vec<String> =
            items.iter().map(|item| self.expression(item)).collect::<Result<_, _>>()?;
        if items.is_empty() { Ok("\"\"".to_owned()) } else { Ok(items.join(with)) }
    }

    /// A rule of its own. Texts alone are one terminal: the lexer tells them apart, however many
    /// there are.
    fn choice(&mut self, items: &[Grammar]) -> Result<String, GrammarError> {
        if items.is_empty() {
            return Err(GrammarError::new("has nothing to choose from"));
        }
        let texts =
            items.iter().all(|item| matches!(item, Grammar::Text(text) if !text.is_empty()));
        let name = self.name(if texts { "TEXTS" } else { "choice" });
        let choices = self.joined(items, "\n  | ")?;
        self.rules.push_str(&format!("{name}: {choices}\n"));
        Ok(name)
    }

    /// A grammar of its own, by its name.
    fn part(&mut self, grammar: &Grammar) -> Result<String, GrammarError> {
        let name = self.name("part");
        let part = match grammar {
            Grammar::Json(schema) => {
                self.take(schema.len())?;
                GrammarWithLexer::from_json_schema(schema_of(schema)?)
            }
            Grammar::Lark(lark) => {
                self.take(lark.len())?;
                shallow(lark)?;
                GrammarWithLexer::from_lark(lark.clone())
            }
            Grammar::Ebnf(text) => {
                self.take(text.len())?;
                GrammarWithLexer::from_lark(ebnf::to_lark(text)?)
            }
            other => panic!("expected a grammar of its own, not {other:?}"),
        };
        self.parts.push(GrammarWithLexer { name: Some(name.clone()), ..part });
        Ok(format!("@{name}"))
    }

    /// A text as a literal.
    fn text(&mut self, text: &str) -> Result<String, GrammarError> {
        self.take(text.len())?;
        Ok(Value::from(text).to_string())
    }

    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}_{}", self.count)
    }

    fn take(&mut self, bytes: usize) -> Result<(), GrammarError> {
        let Some(room) = self.room.checked_sub(bytes) else {
            return Err(GrammarError::new(format!("is longer than {LONGEST} bytes; shorten it")));
        };
        self.room = room;
        Ok(())
    }
}

/// A schema with our rules for whitespace in place of its own.
fn schema_of(text: &str) -> Result<Value, GrammarError> {
    let schema = serde_json::from_str(text)
        .map_err(|error| GrammarError::new(format!("is not JSON: {error}")))?;
    let mut schema = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) => serde_json::Map::new(),
        Value::Bool(false) => {
            return Err(GrammarError::new("is `false`, by which nothing is valid"));
        }
        _ => return Err(GrammarError::new("is not a JSON schema, which is an object")),
    };
    let gap = format!("\\x20{{1,2}}|\\x0D?\\x0A[\\x20\\x09]{{0,{}}}", Grammar::LONGEST_GAP - 2);
    schema.insert("x-guidance".into(), json!({ "whitespace_pattern": gap }));
    Ok(Value::Object(schema))
}

/// Refuses texts whose brackets nest deeper than [`DEEPEST`]. Those in literals are counted too.
fn shallow(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            let problem = format!("nests brackets deeper than {DEEPEST}; flatten it");
            return Err(GrammarError::new(problem));
        }
    }
    Ok(())
}
