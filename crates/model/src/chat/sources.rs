//! Where a checkpoint keeps its chat templates.

use crate::checkpoint::gguf::Metadata;
use crate::error::LoadError;
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A template and where it comes from.
#[derive(Debug, PartialEq)]
pub(super) struct Source {
    /// `default`, or `tool_use` for conversations with tools.
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) path: PathBuf,
    pub(super) field: &'static str,
}

/// The templates of a Hugging Face folder: none, or `default` and perhaps `tool_use`.
pub(super) fn in_folder(folder: &Path) -> Result<Vec<Source>, LoadError> {
    let file = |path: &str, name| -> Result<Option<Source>, LoadError> {
        let path = folder.join(path);
        let text = read(&path)?;
        Ok(text.map(|text| Source { name, text, path, field: "chat_template" }))
    };
    if let Some(default) = file("chat_template.jinja", "default")? {
        let tools = file("additional_chat_templates/tool_use.jinja", "tool_use")?;
        return Ok([default].into_iter().chain(tools).collect());
    }
    for name in ["tokenizer_config.json", "chat_template.json"] {
        let path = folder.join(name);
        let Some(text) = read(&path)? else { continue };
        let json: Value = serde_json::from_str(&text)
            .map_err(|error| LoadError::new(&path, "file", format!("is not JSON: {error}")))?;
        match json.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(template) => return in_json(path, template),
        }
    }
    Ok(Vec::new())
}

/// `chat_template`: a string, or a list of `{"name": …, "template": …}`.
fn in_json(path: PathBuf, template: &Value) -> Result<Vec<Source>, LoadError> {
    const FIELD: &str = "chat_template";
    let source =
        |name, text: &str| Source { name, text: text.into(), path: path.clone(), field: FIELD };
    if let Some(text) = template.as_str() {
        return Ok(vec![source("default", text)]);
    }
    let named = |name: &'static str| {
        let list = template.as_array()?;
        let entry =
            list.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
        Some(source(name, entry.get("template")?.as_str()?))
    };
    let default = named("default").ok_or_else(|| {
        let problem = "must be a template, or a list of named templates with one called `default`";
        LoadError::new(&path, FIELD, problem)
    })?;
    Ok([default].into_iter().chain(named("tool_use")).collect())
}

/// The templates of a GGUF file.
pub(super) fn in_gguf(metadata: &Metadata) -> Result<Vec<Source>, LoadError> {
    let keys =
        [("default", "tokenizer.chat_template"), ("tool_use", "tokenizer.chat_template.tool_use")];
    let mut sources = Vec::new();
    for (name, field) in keys {
        match metadata.string(field)? {
            Some(text) => sources.push(Source {
                name,
                text: text.into(),
                path: metadata.path().into(),
                field,
            }),
            None => break,
        }
    }
    Ok(sources)
}

/// A text file; `None` when it does not exist.
fn read(path: &Path) -> Result<Option<String>, LoadError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LoadError::new(path, "file", error.to_string())),
    }
}
