//! Jinja as transformers sets it up, and its bounds: instructions are counted, output is limited.
//! What a template keeps in variables is limited only by the instructions that made it. Two things
//! stay Rust's: `%` does not format strings (the `format` filter does), and `~` joins `true` and
//! `none` in lower case.

use super::clock;
use super::python::{self, Characters, JsonStyle, KeyOrder};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use std::io;

/// An environment whose templates may run `fuel` instructions each time.
pub(super) fn new(fuel: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
    environment.set_fuel(Some(fuel));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match value.kind() {
        ValueKind::None
        | ValueKind::Bool
        | ValueKind::Number
        | ValueKind::Seq
        | ValueKind::Iterable
        | ValueKind::Map => out.write_str(&python::str(value)?).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: Value| python::str(&value));
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        clock::strftime_now(&format)
            .map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem))
    });
    environment
}

/// `json.dumps` with transformers' defaults; unlike Jinja's own filter it does not escape HTML.
fn tojson(value: Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let separators: Option<Vec<String>> = arguments.get("separators")?;
    let ensure_ascii: Option<bool> = arguments.get("ensure_ascii")?;
    let sort_keys: Option<bool> = arguments.get("sort_keys")?;
    arguments.assert_all_used()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            let problem = "tojson: separators must be two strings";
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        characters: match ensure_ascii {
            Some(true) => Characters::Ascii,
            Some(false) | None => Characters::All,
        },
        keys: match sort_keys {
            Some(true) => KeyOrder::Sorted,
            Some(false) | None => KeyOrder::AsGiven,
        },
    };
    python::json(&value, &style)
}

/// The template without transformers' `{% generation %}` tags, which mark what a model wrote for
/// training and print nothing. Blocks that are always taken stand in their place, so that the
/// whitespace around them is handled the same way.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, behind) = tag.split_at(close + 2);
        let inner = &tag[2..tag.len() - 2];
        let word = inner.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        if replacement == word {
            out.push_str(tag);
        } else {
            out.push_str(&tag.replacen(word, replacement, 1));
        }
        rest = behind;
    }
    out + rest
}

/// An error with its causes, on one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Collects what a template prints, up to a limit.
pub(super) struct BoundedOutput {
    bytes: Vec<u8>,
    limit: usize,
}

impl BoundedOutput {
    pub(super) fn new(limit: usize) -> BoundedOutput {
        BoundedOutput { bytes: Vec::new(), limit }
    }

    pub(super) fn into_text(self) -> String {
        String::from_utf8(self.bytes).expect("templates print text")
    }
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            let problem = format!("the template printed more than {} bytes", self.limit);
            return Err(io::Error::other(problem));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, String> {
        let environment = new(1_000_000);
        let source = without_generation_tags(source);
        let template = environment.template_from_str(&source).map_err(|e| describe(&e))?;
        let mut output = BoundedOutput::new(1000);
        let context = minijinja::context! { html => "<a href='x'>&</a>", f => 1e-7 };
        template.render_captured_to(context, &mut output).map_err(|e| describe(&e))?;
        Ok(output.into_text())
    }

    #[test]
    fn tojson_is_pythons() {
        let ok = |source: &str| render(source).unwrap();
        assert_eq!(ok("{{ html|tojson }}"), r#""<a href='x'>&</a>""#);
        assert_eq!(
            ok("{{ {'b': [1, true, none], 'a': 'é'}|tojson }}"),
            r#"{"b": [1, true, null], "a": "é"}"#
        );
        assert_eq!(ok("{{ 'é😀'|tojson(ensure_ascii=true) }}"), r#""\u00e9\ud83d\ude00""#);
        assert_eq!(
            ok("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}"),
            r#"{"a":2,"b":1}"#
        );
        assert_eq!(
            ok("{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
        );
        assert_eq!(ok("{{ f|tojson }}"), "1e-07");
        assert!(render("{{ nothing|tojson }}").unwrap_err().contains("not JSON serializable"));
    }

    #[test]
    fn values_print_as_in_python() {
        assert_eq!(
            render("{{ true }} {{ none }} {{ [1, 'a', 2.5] }} {{ {'k': false} }}|{{ missing }}|")
                .unwrap(),
            "True None [1, 'a', 2.5] {'k': False}||"
        );
        assert_eq!(render("{{ 'x' + (true|string) }}").unwrap(), "xTrue");
        assert_eq!(render("{{ ' a b '.strip().split(' ')[-1].upper() }}").unwrap(), "B");
    }

    #[test]
    fn generation_tags_keep_their_whitespace_control() {
        assert_eq!(
            render(
                "a {%- generation -%} b {%+ endgeneration %}\nc{% generation %}d{% endgeneration %}"
            )
            .unwrap(),
            "ab cd"
        );
        assert_eq!(
            without_generation_tags("{% if generation %}{{ '{%' }}"),
            "{% if generation %}{{ '{%' }}"
        );
    }

    #[test]
    fn loops_output_and_recursion_are_bounded() {
        let nested =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert!(render(nested).unwrap_err().contains("fuel"));
        let long = "{% for a in range(2000) %}x{% endfor %}";
        assert!(render(long).unwrap_err().contains("more than 1000 bytes"));
        let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
        assert!(render(deep).unwrap_err().contains("recursion"));
    }
}
