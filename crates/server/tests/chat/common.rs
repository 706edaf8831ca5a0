//! Answers read by the rules of a format, and the committed templates.

use model::chat::ChatTemplate;
use model::checkpoint::gguf::{Metadata, Value};
use model::tokenizer::Tokenizer;
use server::chat::dialect::{Reasoning, ToolFormat};
use server::chat::split::{Allowed, CallRules, Count, Rules, Start};
use server::chat::{CallIds, Delta, Reply, Splitter};
use std::path::{Path, PathBuf};

/// Rules for every call of `format` and no reasoning.
pub(crate) fn calls(format: &'static ToolFormat) -> Rules {
    let calls = CallRules { format, allowed: Allowed::Any, count: Count::Several };
    Rules { reasoning: None, start: Start::Answer, calls: Some(calls) }
}

/// Rules for reasoning and no calls.
pub(crate) fn reasoning(kind: &'static Reasoning, start: Start) -> Rules {
    Rules { reasoning: Some(kind), start, calls: None }
}

/// The deltas of an answer that comes in `pieces`.
pub(crate) fn deltas<'p>(
    rules: &Rules,
    pieces: impl IntoIterator<Item = &'p str>,
) -> Vec<Vec<Delta>> {
    let mut splitter = Splitter::new(rules.clone(), CallIds::new("chatcmpl-1", 0));
    let mut all: Vec<_> = pieces.into_iter().map(|piece| splitter.push(piece)).collect();
    all.push(splitter.finish());
    all
}

/// The answer as a whole. The deltas must name each call's index in order.
pub(crate) fn reply<'p>(rules: &Rules, pieces: impl IntoIterator<Item = &'p str>) -> Reply {
    let mut reply = Reply::default();
    for delta in deltas(rules, pieces).into_iter().flatten() {
        match &delta {
            Delta::Content(text) | Delta::Reasoning(text) => assert!(!text.is_empty()),
            Delta::ToolCall { index, .. } => assert_eq!(*index, reply.calls.len()),
            Delta::Arguments { index, text } => {
                assert_eq!(*index, reply.calls.len() - 1);
                assert!(!text.is_empty());
            }
        }
        reply.add(delta);
    }
    reply
}

/// The answer as a whole, which must be the same however the text is cut: whole, in two at every
/// position, character by character.
pub(crate) fn read(rules: &Rules, text: &str) -> Reply {
    let whole = reply(rules, [text]);
    for (at, _) in text.char_indices() {
        let (first, second) = text.split_at(at);
        assert_eq!(reply(rules, [first, second]), whole, "{first:?} | {second:?}");
    }
    assert_eq!(reply(rules, text.split_inclusive(|_| true)), whole, "{text:?}");
    whole
}

/// Names and arguments of the calls.
pub(crate) fn made(reply: &Reply) -> Vec<(&str, &str)> {
    reply.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

/// A path below the repository's `fixtures/`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

/// A tokenizer whose control tokens are `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_folder(&fixture("tokenizers/llama-bpe")).expect("a tokenizer")
}

/// A committed template.
pub(crate) fn template(name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(fixture(&format!("chat/{name}.jinja"))).expect(name);
    compile(&source)
}

/// A template of the tests' own.
pub(crate) fn compile(source: &str) -> ChatTemplate {
    let keys = [("tokenizer.chat_template".to_owned(), Value::String(source.to_owned()))];
    let metadata = Metadata::new(Path::new("model.gguf"), keys.into());
    ChatTemplate::from_gguf(&metadata, &tokenizer()).expect("compiles").expect("a template")
}
