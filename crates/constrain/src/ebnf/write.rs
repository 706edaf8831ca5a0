//! From rules to Lark.
//!
//! An EBNF grammar speaks of characters; a Lark grammar has terminals, which are regular expressions that
//! a lexer reads as far as they go, and rules over these. What comes back to itself has to be a rule. All
//! else is written as terminals, as large as can be: inside of one every way of reading a text counts, so
//! a grammar without recursion is one terminal and means exactly what its author wrote. Rules that come
//! back to themselves at their ends only are repetitions, and no recursion.

use super::{Expr, Rules, Sense};
use std::fmt::Write;

/// The Lark text of `rules`.
pub(super) fn lark(mut rules: Rules) -> String {
    for (rule, body) in rules.bodies.iter_mut().enumerate() {
        if let Some(looped) = looped(rule, body) {
            *body = looped;
        }
    }
    let kinds = kinds(&rules.bodies);
    let mut writer = Writer { bodies: &rules.bodies, kinds, out: String::new(), terminals: 0 };
    writer.rules();
    writer.out
}

/// What a rule is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It leads to no recursion.
    Terminal(Empty),
    /// It leads to some.
    Rule,
}

/// Whether a terminal may be the empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Empty {
    May,
    MayNot,
}

/// The body of rule `own` as a repetition, when all its references to itself end it.
fn looped(own: usize, body: &Expr) -> Option<Expr> {
    let (mut again, mut done) = (Vec::new(), Vec::new());
    if !mentions(own, body) || !split(own, body, &mut again, &mut done) {
        return None;
    }
    // To go on without a character is to do nothing.
    again.retain(|way| *way != Expr::Sequence(Vec::new()));
    let done = (!done.is_empty()).then_some(Expr::Choice(done))?;
    if again.is_empty() {
        return Some(done);
    }
    let item = Box::new(Expr::Choice(again));
    Some(Expr::Sequence(vec![Expr::Repeat { item, least: 0, most: None }, done]))
}

fn mentions(own: usize, expr: &Expr) -> bool {
    let mut found = false;
    expr.references(&mut |rule| found |= rule == own);
    found
}

/// Sorts the ways through `expr` into those that end with rule `own` (without it) and those that do not
/// mention it; false when it is mentioned elsewhere.
fn split(own: usize, expr: &Expr, again: &mut Vec<Expr>, done: &mut Vec<Expr>) -> bool {
    if !mentions(own, expr) {
        done.push(expr.clone());
        return true;
    }
    match expr {
        Expr::Rule(_) => {
            again.push(Expr::Sequence(Vec::new()));
            true
        }
        Expr::Choice(ways) => ways.iter().all(|way| split(own, way, again, done)),
        Expr::Repeat { item, least: 0, most: Some(1) } => {
            done.push(Expr::Sequence(Vec::new()));
            split(own, item, again, done)
        }
        Expr::Sequence(items) => {
            let (last, before) = items.split_last().expect("it mentions a rule");
            let (mut last_again, mut last_done) = (Vec::new(), Vec::new());
            let ends = !before.iter().any(|item| mentions(own, item))
                && split(own, last, &mut last_again, &mut last_done);
            for (ways, all) in [(last_again, again), (last_done, done)] {
                if !ways.is_empty() {
                    all.push(Expr::Sequence([before, &[Expr::Choice(ways)]].concat()));
                }
            }
            ends
        }
        Expr::Text(_) | Expr::Set(_) | Expr::Repeat { .. } => false,
    }
}

/// What each rule is written as: a terminal once everything that it mentions is one. Not by descending
/// from rule to rule, of which there may be a long chain.
fn kinds(bodies: &[Expr]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Rule; bodies.len()];
    let mut open = vec![0usize; bodies.len()];
    let mut mentioned_by = vec![Vec::new(); bodies.len()];
    for (rule, body) in bodies.iter().enumerate() {
        body.references(&mut |other| {
            open[rule] += 1;
            mentioned_by[other].push(rule);
        });
    }
    let mut ready: Vec<usize> = (0..bodies.len()).filter(|&rule| open[rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        kinds[rule] = Kind::Terminal(empty(&bodies[rule], &kinds));
        for &other in &mentioned_by[rule] {
            open[other] -= 1;
            if open[other] == 0 {
                ready.push(other);
            }
        }
    }
    kinds
}

/// Whether an expression that leads to no recursion may be the empty text.
fn empty(expr: &Expr, kinds: &[Kind]) -> Empty {
    let may = |expr: &Expr| empty(expr, kinds) == Empty::May;
    let is = match expr {
        Expr::Text(text) => text.is_empty(),
        Expr::Set(_) => false,
        Expr::Rule(rule) => kinds[*rule] == Kind::Terminal(Empty::May),
        Expr::Sequence(items) => items.iter().all(may),
        Expr::Choice(ways) => ways.iter().any(may),
        Expr::Repeat { item, least, .. } => *least == 0 || may(item),
    };
    if is { Empty::May } else { Empty::MayNot }
}

struct Writer<'r> {
    bodies: &'r [Expr],
    kinds: Vec<Kind>,
    out: String,
    /// Terminals that are parts of rules.
    terminals: usize,
}

impl Writer<'_> {
    /// Everything that the first rule leads to.
    fn rules(&mut self) {
        let start = self.within(&Expr::Rule(0));
        self.line("start", &start);
        let mut seen = vec![false; self.bodies.len()];
        let mut left = vec![0];
        while let Some(rule) = left.pop() {
            if std::mem::replace(&mut seen[rule], true) {
                continue;
            }
            let body = &self.bodies[rule];
            body.references(&mut |other| left.push(other));
            let written = match self.kinds[rule] {
                Kind::Terminal(_) => terminal(body),
                Kind::Rule => self.within(body),
            };
            self.line(&self.name(rule), &written);
        }
    }

    fn line(&mut self, name: &str, body: &str) {
        writeln!(self.out, "{name}: {body}").expect("a text takes what is written");
    }

    fn name(&self, rule: usize) -> String {
        match self.kinds[rule] {
            Kind::Terminal(_) => terminal_name(rule),
            Kind::Rule => format!("r{rule}"),
        }
    }

    fn is_terminal(&self, expr: &Expr) -> bool {
        let mut is = true;
        expr.references(&mut |rule| is &= self.kinds[rule] != Kind::Rule);
        is
    }

    /// `expr` as a part of a rule.
    fn within(&mut self, expr: &Expr) -> String {
        if self.is_terminal(expr) {
            return self.part(expr);
        }
        match expr {
            Expr::Rule(rule) => self.name(*rule),
            Expr::Sequence(items) => {
                let runs = items.chunk_by(|a, b| self.is_terminal(a) && self.is_terminal(b));
                let runs: Vec<&[Expr]> = runs.collect();
                let write = |run: &[Expr]| match run {
                    [one] => self.within(one),
                    several => self.part(&Expr::Sequence(several.to_vec())),
                };
                runs.into_iter().map(write).collect::<Vec<_>>().join(" ")
            }
            Expr::Choice(ways) => {
                let (plain, others): (Vec<Expr>, Vec<Expr>) =
                    ways.iter().cloned().partition(|way| self.is_terminal(way));
                let plain = (!plain.is_empty()).then(|| self.part(&Expr::Choice(plain)));
                let others: Vec<String> = others.iter().map(|way| self.within(way)).collect();
                format!("({})", plain.into_iter().chain(others).collect::<Vec<_>>().join(" | "))
            }
            Expr::Repeat { item, least, most } => {
                format!("({}){}", self.within(item), times(*least, *most))
            }
            Expr::Text(_) | Expr::Set(_) => {
                panic!("expected what leads to recursion, not {expr:?}")
            }
        }
    }

    /// A terminal as a part of a rule. Where it may be empty it is one that is not, or nothing.
    fn part(&mut self, expr: &Expr) -> String {
        let nothing = empty(expr, &self.kinds);
        let name = format!("P{}", self.terminals);
        self.terminals += 1;
        let written = terminal(expr);
        match nothing {
            Empty::MayNot => {
                self.line(&name, &written);
                name
            }
            Empty::May => {
                self.line(&name, &format!("({written}) & /(?s:.+)/"));
                format!("{name}?")
            }
        }
    }
}

fn terminal_name(rule: usize) -> String {
    format!("R{rule}")
}

/// An expression as that of a terminal.
fn terminal(expr: &Expr) -> String {
    let all = |items: &[Expr], with: &str| {
        let items: Vec<String> = items.iter().map(terminal).collect();
        format!("({})", items.join(with))
    };
    match expr {
        Expr::Text(text) if text.is_empty() => NOTHING.to_owned(),
        Expr::Text(text) => format!("/{}/", text.chars().map(escaped).collect::<String>()),
        Expr::Set(set) => {
            let ranges = set.ranges.iter();
            let ranges: String =
                ranges.map(|&(a, b)| format!("{}-{}", escaped(a), escaped(b))).collect();
            match set.sense {
                Sense::These => format!("/[{ranges}]/"),
                Sense::AllOthers if ranges.is_empty() => "/(?s:.)/".to_owned(),
                Sense::AllOthers => format!("/[^{ranges}]/"),
            }
        }
        Expr::Rule(rule) => terminal_name(*rule),
        Expr::Sequence(items) if items.is_empty() => NOTHING.to_owned(),
        Expr::Sequence(items) => all(items, " "),
        Expr::Choice(ways) => all(ways, " | "),
        Expr::Repeat { item, least, most } => {
            format!("({}){}", terminal(item), times(*least, *most))
        }
    }
}

/// The empty text.
const NOTHING: &str = "\"\"";

/// A character as part of a regular expression, whatever it means there.
fn escaped(character: char) -> String {
    if character.is_ascii_alphanumeric() {
        character.to_string()
    } else {
        format!("\\x{{{:X}}}", u32::from(character))
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, Some(1)) => "?".to_owned(),
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}
