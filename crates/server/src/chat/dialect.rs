//! How a family of models writes tool calls and reasoning, as data: one value a format. What reads
//! answers by these values is [`super::split`]; what writes by them is `grammar` and `untold`.

use model::chat::ChatTemplate;
use model::tokenizer::{Specials, Tokenizer};

/// How tool calls are written.
#[derive(Debug)]
pub struct ToolFormat {
    /// The format's name, for operators who choose one.
    pub name: &'static str,
    /// What stands in front of a call or of a list of calls.
    pub(super) open: &'static str,
    /// What stands behind a call.
    pub(super) close: Option<&'static str>,
    /// What may follow `open`.
    pub(super) shapes: &'static [Shape],
    /// Whether an answer may begin with a call that has no `open`.
    pub(super) bare: Bare,
    /// What may stand between an object and the next one, instead of `open`.
    pub(super) separator: Option<&'static str>,
    /// Further markers that may stand between a name and its arguments.
    pub(super) named: Option<NamedMarks>,
    /// How the model is told to write a call.
    pub(super) layout: Layout,
    /// Which ids the template takes.
    pub(super) ids: IdRule,
    /// A chat template that contains one of these, or a vocabulary that has one of them for a token,
    /// is for models of this format.
    hints: &'static [&'static str],
}

/// What stands behind [`ToolFormat::open`]. The keys of an object are `name` and `arguments` or
/// `parameters`, in any order, perhaps among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{"name": …, "arguments": {…}}`
    Object,
    /// `[{…}, {…}]`
    List,
    /// `name{…}`, perhaps with [`NamedMarks`] between.
    Named,
}

/// Where calls without an opening marker are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// Nowhere.
    Never,
    /// At the start of an answer (behind its reasoning), and only with arguments: other JSON is
    /// what the user asked for.
    Leading,
}

/// `name[CALL_ID]…[ARGS]{…}`; each of the two may be missing.
#[derive(Debug)]
pub(super) struct NamedMarks {
    pub(super) id: &'static str,
    pub(super) arguments: &'static str,
}

/// The ids of calls that a template takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdRule {
    /// All.
    Any,
    /// Nine letters and digits.
    Nine,
}

/// Calls as text: `begin` call `between` call … `end`, a call being `before` name `middle`
/// arguments `after`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) begin: &'static str,
    pub(super) before: &'static str,
    pub(super) middle: &'static str,
    pub(super) after: &'static str,
    pub(super) between: &'static str,
    pub(super) end: &'static str,
}

/// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3, and many that
/// were tuned like them.
pub static HERMES: ToolFormat = ToolFormat {
    name: "hermes",
    open: "<tool_call>",
    close: Some("</tool_call>"),
    shapes: &[Shape::Object],
    bare: Bare::Never,
    separator: None,
    named: None,
    layout: Layout {
        begin: "",
        before: "<tool_call>\n{\"name\": \"",
        middle: "\", \"arguments\": ",
        after: "}\n</tool_call>",
        between: "\n",
        end: "",
    },
    ids: IdRule::Any,
    hints: &["<tool_call>"],
};

/// `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` in front, several separated
/// by `;`: Llama 3.1 and later.
pub static LLAMA3: ToolFormat = ToolFormat {
    name: "llama3",
    open: "<|python_tag|>",
    close: None,
    shapes: &[Shape::Object],
    bare: Bare::Leading,
    separator: Some(";"),
    named: None,
    layout: Layout {
        begin: "",
        before: "{\"name\": \"",
        middle: "\", \"parameters\": ",
        after: "}",
        between: "; ",
        end: "",
    },
    ids: IdRule::Any,
    hints: &["<|python_tag|>", "Environment: ipython"],
};

/// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`: Mistral up to 2024 (tokenizers v2, v3 and v7).
pub static MISTRAL: ToolFormat = ToolFormat {
    name: "mistral",
    open: "[TOOL_CALLS]",
    close: None,
    shapes: &[Shape::List, Shape::Object, Shape::Named],
    bare: Bare::Never,
    separator: None,
    named: Some(NamedMarks { id: "[CALL_ID]", arguments: "[ARGS]" }),
    layout: Layout {
        begin: "[TOOL_CALLS][",
        before: "{\"name\": \"",
        middle: "\", \"arguments\": ",
        after: "}",
        between: ", ",
        end: "]",
    },
    ids: IdRule::Nine,
    hints: &["[TOOL_CALLS]"],
};

/// `[TOOL_CALLS]name[ARGS]{…}`: Mistral since 2025 (tokenizers v11 and v13). Reads what [`MISTRAL`]
/// reads.
pub static MISTRAL_ARGS: ToolFormat = ToolFormat {
    name: "mistral-args",
    open: "[TOOL_CALLS]",
    close: None,
    shapes: &[Shape::List, Shape::Object, Shape::Named],
    bare: Bare::Never,
    separator: None,
    named: Some(NamedMarks { id: "[CALL_ID]", arguments: "[ARGS]" }),
    layout: Layout {
        begin: "",
        before: "[TOOL_CALLS]",
        middle: "[ARGS]",
        after: "",
        between: "",
        end: "",
    },
    ids: IdRule::Nine,
    hints: &["[ARGS]"],
};

/// Every format. Where several fit a template the first is meant.
pub static TOOL_FORMATS: [&ToolFormat; 4] = [&MISTRAL_ARGS, &MISTRAL, &HERMES, &LLAMA3];

/// The markers around what a model thinks before it answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// The format's name, for operators who choose one.
    pub name: &'static str,
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// `<think>…</think>`: Qwen 3, DeepSeek R1 and its distillates, and many others.
pub static THINK: Reasoning = Reasoning { name: "think", open: "<think>", close: "</think>" };

/// `[THINK]…[/THINK]`: Magistral.
pub static MISTRAL_THINK: Reasoning =
    Reasoning { name: "mistral-think", open: "[THINK]", close: "[/THINK]" };

/// Every kind of reasoning.
pub static REASONINGS: [&Reasoning; 2] = [&THINK, &MISTRAL_THINK];

/// Who tells the model about tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPrompt {
    /// The chat template.
    Template,
    /// Nobody: the template has no tools, so the messages have to speak of them.
    Messages,
}

/// How one model speaks.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// How it calls tools.
    pub tools: &'static ToolFormat,
    /// Who tells it about them.
    pub prompt: ToolPrompt,
    /// How it reasons; `None` when it does not.
    pub reasoning: Option<&'static Reasoning>,
}

/// A format that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not known; use one of {}", known.join(", "))]
pub struct UnknownFormat {
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

impl Dialect {
    /// What the template mentions, else what the vocabulary has a token for; where neither says
    /// anything, tools are called as [`HERMES`] does and nothing is reasoning.
    pub fn detect(template: &ChatTemplate, tokenizer: &Tokenizer) -> Dialect {
        let has_token = |text: &str| tokenizer.encode(text, Specials::Parse).len() == 1;
        let signs: [&dyn Fn(&str) -> bool; 2] = [&|text| template.mentions(text), &has_token];
        let tools = signs.iter().find_map(|sign| {
            TOOL_FORMATS.into_iter().find(|format| format.hints.iter().any(|hint| sign(hint)))
        });
        let reasoning = signs.iter().find_map(|sign| {
            REASONINGS.into_iter().find(|kind| sign(kind.open) || sign(kind.close))
        });
        let prompt =
            if template.mentions("tools") { ToolPrompt::Template } else { ToolPrompt::Messages };
        Dialect { tools: tools.unwrap_or(&HERMES), prompt, reasoning }
    }

    /// The same with tool calls in the format called `name`.
    ///
    /// # Errors
    /// A name that no format has.
    pub fn with_tools(self, name: &str) -> Result<Dialect, UnknownFormat> {
        let found = TOOL_FORMATS.into_iter().find(|format| format.name == name);
        let known = || TOOL_FORMATS.iter().map(|format| format.name).collect();
        let tools = found.ok_or_else(|| UnknownFormat { name: name.into(), known: known() })?;
        Ok(Dialect { tools, ..self })
    }

    /// The same with reasoning of the kind called `name`, or with none for `none`.
    ///
    /// # Errors
    /// A name that no kind has.
    pub fn with_reasoning(self, name: &str) -> Result<Dialect, UnknownFormat> {
        const NONE: &str = "none";
        if name == NONE {
            return Ok(Dialect { reasoning: None, ..self });
        }
        let found = REASONINGS.into_iter().find(|kind| kind.name == name);
        let known = || REASONINGS.iter().map(|kind| kind.name).chain([NONE]).collect();
        let kind = found.ok_or_else(|| UnknownFormat { name: name.into(), known: known() })?;
        Ok(Dialect { reasoning: Some(kind), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_words_of_ascii() {
        // The splitter holds back whitespace apart from markers, and compares bytes.
        let tools = TOOL_FORMATS.iter().flat_map(|format| {
            let named = format.named.iter().flat_map(|marks| [marks.id, marks.arguments]);
            named.chain([format.open]).chain(format.close)
        });
        for marker in tools.chain(REASONINGS.iter().flat_map(|kind| [kind.open, kind.close])) {
            assert!(marker.bytes().all(|byte| byte.is_ascii_graphic()), "{marker}");
            assert!(!marker.contains(['"', '{', '}']), "{marker}");
        }
    }

    #[test]
    fn formats_are_chosen_by_name() {
        let dialect =
            Dialect { tools: &HERMES, prompt: ToolPrompt::Template, reasoning: Some(&THINK) };
        for format in TOOL_FORMATS {
            let chosen = dialect.with_tools(format.name).expect("a name of the list");
            assert_eq!(chosen.tools.name, format.name);
        }
        let kind = dialect.with_reasoning("mistral-think").expect("a name of the list");
        assert_eq!(kind.reasoning, Some(&MISTRAL_THINK));
        assert_eq!(dialect.with_reasoning("none").expect("a name").reasoning, None);
        let error = dialect.with_tools("xml").unwrap_err().to_string();
        let known = "mistral-args, mistral, hermes, llama3";
        assert_eq!(error, format!("`xml` is not known; use one of {known}"));
        assert!(dialect.with_reasoning("xml").unwrap_err().to_string().ends_with(", none"));
    }
}
