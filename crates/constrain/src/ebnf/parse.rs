//! From text to rules.

use super::{Expr, ROOT, Rules, Sense, Set};
use crate::compile::GrammarError;
use std::collections::HashMap;

/// Deepest nesting of groups: the reader descends on the stack.
const DEEPEST: usize = 100;

/// Most repetitions that a grammar may name.
const MOST_REPEATS: u32 = 10_000;

/// Whether a rule's name may have this character.
pub(super) fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.')
}

/// Whether it may begin with it.
fn begins_name(character: char) -> bool {
    is_name(character) && character != '.'
}

/// The rules of `text`.
///
/// # Errors
/// The first thing that is wrong, and on which line.
pub(super) fn rules(text: &str) -> Result<Rules, GrammarError> {
    let mut reader =
        Reader { rest: text, line: 1, depth: 0, rules: Vec::new(), names: HashMap::new() };
    reader.number(ROOT, 1);
    reader.blank();
    while !reader.rest.is_empty() {
        reader.rule()?;
    }
    let Reader { rules, .. } = reader;
    let missing = |rule: &Named| match rule.name.as_str() {
        ROOT => GrammarError::new(format!(
            "has no rule `{ROOT}`; give this name to the one that is the whole text"
        )),
        name => at(rule.line, format!("there is no rule `{name}`; add it, or correct the name")),
    };
    let named: Vec<(String, usize)> =
        rules.iter().map(|rule| (rule.name.clone(), rule.line)).collect();
    let bodies = rules.into_iter().map(|mut rule| rule.body.take().ok_or_else(|| missing(&rule)));
    let bodies = bodies.collect::<Result<Vec<Expr>, _>>()?;
    match endless(&bodies) {
        None => Ok(Rules { bodies }),
        Some(rule) => {
            let (name, line) = &named[rule];
            let problem = "leads back to itself and never ends; give it a way out";
            Err(at(*line, format!("the rule `{name}` {problem}")))
        }
    }
}

/// A rule that the first one leads to and that no text ends.
fn endless(bodies: &[Expr]) -> Option<usize> {
    let mut ends = vec![false; bodies.len()];
    loop {
        let before = ends.iter().filter(|&&ends| ends).count();
        // Rules mostly mention later ones.
        for rule in (0..bodies.len()).rev() {
            ends[rule] = ends[rule] || can_end(&bodies[rule], &ends);
        }
        if ends.iter().filter(|&&ends| ends).count() == before {
            break;
        }
    }
    let (mut seen, mut left) = (vec![false; bodies.len()], vec![0]);
    while let Some(rule) = left.pop() {
        if !ends[rule] {
            return Some(rule);
        }
        if !std::mem::replace(&mut seen[rule], true) {
            bodies[rule].references(&mut |other| left.push(other));
        }
    }
    None
}

/// Whether a text can end with `expr`, where rules can as `ends` says.
fn can_end(expr: &Expr, ends: &[bool]) -> bool {
    match expr {
        Expr::Text(_) | Expr::Set(_) => true,
        Expr::Rule(rule) => ends[*rule],
        Expr::Sequence(items) => items.iter().all(|item| can_end(item, ends)),
        Expr::Choice(ways) => ways.iter().any(|way| can_end(way, ends)),
        Expr::Repeat { item, least, .. } => *least == 0 || can_end(item, ends),
    }
}

fn at(line: usize, problem: impl std::fmt::Display) -> GrammarError {
    GrammarError::new(format!("line {line}: {problem}"))
}

/// A rule that was named.
struct Named {
    name: String,
    /// Where it was named first.
    line: usize,
    /// `None` until it is found.
    body: Option<Expr>,
}

/// Reads a grammar from its beginning.
struct Reader<'t> {
    rest: &'t str,
    line: usize,
    depth: usize,
    rules: Vec<Named>,
    names: HashMap<&'t str, usize>,
}

impl<'t> Reader<'t> {
    /// The number of a rule that is named on `line`: the next one for a name that is new.
    fn number(&mut self, name: &'t str, line: usize) -> usize {
        let rules = &mut self.rules;
        *self.names.entry(name).or_insert_with(|| {
            rules.push(Named { name: name.to_owned(), line, body: None });
            rules.len() - 1
        })
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.rest = &self.rest[character.len_utf8()..];
        self.line += usize::from(character == '\n');
        Some(character)
    }

    /// Takes `text` if it is what follows.
    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        rest.inspect(|rest| self.rest = rest).is_some()
    }

    /// Passes over whitespace and comments.
    fn blank(&mut self) {
        while let Some(character) = self.peek() {
            if character == '#' {
                self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
            } else if character.is_whitespace() {
                self.next();
            } else {
                return;
            }
        }
    }

    /// The refusal of what follows.
    fn expected(&self, what: &str) -> GrammarError {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some('\n') => "the end of the line".to_owned(),
            Some(character) => format!("{character:?}"),
        };
        at(self.line, format!("expected {what}, found {found}"))
    }

    /// The name that follows; empty when none does.
    fn name(&mut self) -> &'t str {
        let end = match self.peek() {
            Some(first) if begins_name(first) => {
                self.rest.find(|character| !is_name(character)).unwrap_or(self.rest.len())
            }
            _ => 0,
        };
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let (line, name) = (self.line, self.name());
        if name.is_empty() {
            return Err(self.expected("a rule, `name ::= …`"));
        }
        self.blank();
        if !self.take("::=") {
            return Err(self.expected(&format!("`::=` behind `{name}`")));
        }
        let rule = self.number(name, line);
        let body = self.choice()?;
        if !self.rest.is_empty() && self.peek().is_none_or(|next| !begins_name(next)) {
            return Err(self.expected("a literal, a set of characters, a group, `|` or a rule"));
        }
        match self.rules[rule].body.replace(body) {
            None => Ok(()),
            Some(_) => {
                Err(at(line, format!("there is a rule `{name}` already; rename one of them")))
            }
        }
    }

    /// Alternatives, and the blank space behind them.
    fn choice(&mut self) -> Result<Expr, GrammarError> {
        let mut choices = vec![self.sequence()?];
        while self.take("|") {
            choices.push(self.sequence()?);
        }
        Ok(single(choices, Expr::Choice))
    }

    /// Items up to something that is none, and the blank space behind them.
    fn sequence(&mut self) -> Result<Expr, GrammarError> {
        let mut items = Vec::new();
        self.blank();
        while let Some(item) = self.item()? {
            self.blank();
            items.push(self.repeated(item)?);
        }
        Ok(single(items, Expr::Sequence))
    }

    /// What an operator may stand behind; `None` where the sequence ends.
    fn item(&mut self) -> Result<Option<Expr>, GrammarError> {
        let item = match self.peek() {
            Some('"') => Expr::Text(self.literal()?),
            Some('[') => Expr::Set(self.set()?),
            Some('(') => self.group()?,
            Some('.') => {
                self.next();
                Expr::Set(Set { ranges: Vec::new(), sense: Sense::AllOthers })
            }
            Some(first) if begins_name(first) => {
                let (before, line) = (self.rest, self.line);
                let name = self.name();
                self.blank();
                if self.rest.starts_with("::=") {
                    // The next rule.
                    (self.rest, self.line) = (before, line);
                    return Ok(None);
                }
                Expr::Rule(self.number(name, line))
            }
            _ => return Ok(None),
        };
        Ok(Some(item))
    }

    fn group(&mut self) -> Result<Expr, GrammarError> {
        self.next();
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(at(self.line, format!("groups nest deeper than {DEEPEST}; flatten them")));
        }
        let inner = self.choice()?;
        if !self.take(")") {
            return Err(self.expected("`)`"));
        }
        self.depth -= 1;
        Ok(inner)
    }

    /// `item` and the operator behind it. There may be one: to read a tower of them, or to walk what it
    /// means, would take as much stack as it is high.
    fn repeated(&mut self, item: Expr) -> Result<Expr, GrammarError> {
        let (least, most) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => self.bounds()?,
            _ => return Ok(item),
        };
        // The operator, or the closing brace.
        self.next();
        self.blank();
        Ok(Expr::Repeat { item: Box::new(item), least, most })
    }

    /// `{m`, `{m,` or `{m,n`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        self.next();
        let least = self.count()?;
        let most = if self.take(",") {
            self.blank();
            if self.peek() == Some('}') { None } else { Some(self.count()?) }
        } else {
            Some(least)
        };
        if self.peek() != Some('}') {
            return Err(self.expected("`}`"));
        }
        if most.is_some_and(|most| most < least) {
            return Err(at(
                self.line,
                "a repetition ends below where it begins; write the lower count first",
            ));
        }
        Ok((least, most))
    }

    /// A number, and the blank space around it.
    fn count(&mut self) -> Result<u32, GrammarError> {
        self.blank();
        let digits = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        if digits == 0 {
            return Err(self.expected("a count"));
        }
        let (number, rest) = self.rest.split_at(digits);
        let count = number.parse().ok().filter(|count| *count <= MOST_REPEATS);
        let problem = || {
            at(
                self.line,
                format!("nothing can be had more than {MOST_REPEATS} times; ask for less"),
            )
        };
        let count = count.ok_or_else(problem)?;
        self.rest = rest;
        self.blank();
        Ok(count)
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.expected("`\"` at the end of a literal")),
                Some('"') => break,
                Some(_) => text.push(self.character()?),
            }
        }
        self.next();
        Ok(text)
    }

    fn set(&mut self) -> Result<Set, GrammarError> {
        self.next();
        let sense = if self.take("^") { Sense::AllOthers } else { Sense::These };
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.expected("`]` at the end of a set")),
                Some(']') => break,
                Some(_) => {}
            }
            let first = self.character()?;
            // A hyphen at the end is one of the set.
            let last = if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.next();
                if matches!(self.peek(), None | Some('\n')) {
                    return Err(self.expected("the end of a range"));
                }
                self.character()?
            } else {
                first
            };
            if last < first {
                let problem =
                    format!("the range {first:?} to {last:?} runs backwards; turn it round");
                return Err(at(self.line, problem));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() && sense == Sense::These {
            return Err(self.expected("a character of the set"));
        }
        self.next();
        Ok(Set { ranges, sense })
    }

    /// A character of a literal or a set, or what an escape stands for.
    fn character(&mut self) -> Result<char, GrammarError> {
        let character = self.next().expect("looked at before");
        if character != '\\' {
            return Ok(character);
        }
        let digits = match self.peek() {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('n') => return self.escape('\n'),
            Some('r') => return self.escape('\r'),
            Some('t') => return self.escape('\t'),
            Some(other) if other.is_ascii_punctuation() => return self.escape(other),
            _ => {
                return Err(self.expected(
                    "an escape: `\\n`, `\\r`, `\\t`, `\\x`, `\\u`, `\\U` or punctuation",
                ));
            }
        };
        self.next();
        let code =
            self.rest.get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = code.ok_or_else(|| self.expected(&format!("{digits} hexadecimal digits")))?;
        let number = u32::from_str_radix(code, 16).expect("at most eight digits");
        let named = char::from_u32(number);
        let named = named
            .ok_or_else(|| at(self.line, format!("there is no character {code}; write another")))?;
        self.rest = &self.rest[digits..];
        Ok(named)
    }

    fn escape(&mut self, stands_for: char) -> Result<char, GrammarError> {
        self.next();
        Ok(stands_for)
    }
}

/// The one there is, or what `all` makes of them.
fn single(mut items: Vec<Expr>, all: impl FnOnce(Vec<Expr>) -> Expr) -> Expr {
    if items.len() == 1 { items.remove(0) } else { all(items) }
}
