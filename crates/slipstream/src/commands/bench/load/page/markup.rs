//! Elements of a page. Text and attributes are escaped here and nowhere else, so what a file or a
//! command line says cannot become markup; elements close themselves.

use std::fmt::{self, Display, Write};

/// An element of HTML or SVG.
#[derive(Clone, Debug)]
pub(super) struct Element {
    tag: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Node>,
}

#[derive(Clone, Debug)]
enum Node {
    Element(Element),
    Text(String),
}

impl Element {
    pub(super) fn new(tag: &'static str) -> Element {
        Element { tag, attributes: Vec::new(), children: Vec::new() }
    }

    /// With an attribute more.
    pub(super) fn with(mut self, name: &'static str, value: impl Display) -> Element {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// With a text behind what it has.
    pub(super) fn text(mut self, text: impl Display) -> Element {
        self.children.push(Node::Text(text.to_string()));
        self
    }

    /// With an element behind what it has.
    pub(super) fn child(mut self, child: Element) -> Element {
        self.children.push(Node::Element(child));
        self
    }

    /// With elements behind what it has.
    pub(super) fn children(mut self, children: impl IntoIterator<Item = Element>) -> Element {
        self.children.extend(children.into_iter().map(Node::Element));
        self
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}", self.tag)?;
        for (name, value) in &self.attributes {
            write!(f, " {name}=\"{}\"", Escaped(value))?;
        }
        if VOID.contains(&self.tag) {
            return f.write_str(" />");
        }
        f.write_char('>')?;
        for child in &self.children {
            match child {
                Node::Element(element) => element.fmt(f)?,
                Node::Text(text) => Escaped(text).fmt(f)?,
            }
        }
        write!(f, "</{}>", self.tag)
    }
}

/// Elements of HTML that have no end tag.
const VOID: &[&str] = &["meta"];

/// A text whose characters mean only themselves.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_stays_text() {
        let evil = "</p><script a=\"b\">&amp;";
        let element = Element::new("p").with("title", evil).text(evil);
        let escaped = "&lt;/p&gt;&lt;script a=&quot;b&quot;&gt;&amp;amp;";
        assert_eq!(element.to_string(), format!("<p title=\"{escaped}\">{escaped}</p>"));
    }

    #[test]
    fn elements_nest_in_order() {
        let list = Element::new("ul").children(["a", "b"].map(|t| Element::new("li").text(t)));
        let page = Element::new("div").text("x").child(list).child(Element::new("meta"));
        assert_eq!(page.to_string(), "<div>x<ul><li>a</li><li>b</li></ul><meta /></div>");
    }
}
