//! `POST /tokenize` and `POST /detokenize`.

use crate::app::{App, Chat};
use crate::error::BadRequest;
use crate::fields::Fields;
use crate::http::body::JsonBody;
use crate::http::error::{ApiError, json_ok};
use crate::openai::chat::conversation;
use axum::extract::State;
use axum::response::Response;
use model::tokenizer::Specials;
use serde_json::{Value, json};
use std::sync::Arc;

/// The ids of a text, or of a conversation as its prompt would be.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let tokens = app.aside(move |app| read(app, &body)).await?;
    Ok(json_ok(&tokens))
}

fn read(app: &App, body: &[u8]) -> Result<Value, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.served(fields.text("model")?)?;
    let tokenizer = &app.model.tokenizer;
    let with_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let ids = match fields.text("prompt")? {
        Some(text) if fields.boolean("add_special_tokens")?.unwrap_or(true) => {
            fields.end()?;
            tokenizer.encode_prompt(&text)
        }
        Some(text) => {
            fields.end()?;
            tokenizer.encode(&text, Specials::Parse)
        }
        None if fields.has("messages") => chat(app, fields)?,
        None => {
            let problem = "is missing; send a string, or `messages`";
            return Err(BadRequest::new("prompt", problem).into());
        }
    };
    let strings: Option<Vec<String>> =
        with_strings.then(|| ids.iter().map(|&id| tokenizer.name(id)).collect());
    Ok(json!({
        "count": ids.len(),
        "max_model_len": app.engine.info().context,
        "tokens": ids,
        "token_strs": strings,
    }))
}

fn chat(app: &App, mut fields: Fields) -> Result<Vec<u32>, ApiError> {
    let Some(Chat { template, dialect }) = &app.model.chat else {
        let problem = "the model has no chat template; send `prompt`";
        return Err(BadRequest::new("messages", problem).into());
    };
    let prepared = conversation(&mut fields)?.prepare(dialect)?;
    fields.end()?;
    let ids = template.encode(&app.model.tokenizer, &prepared.messages, &prepared.options);
    Ok(ids.map_err(|error| BadRequest::new("messages", error.to_string()))?)
}

/// The text of ids.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let text = app
        .aside(move |app| {
            let mut fields = Fields::parse(&body)?;
            app.served(fields.text("model")?)?;
            let tokenizer = &app.model.tokenizer;
            let missing = || BadRequest::new("tokens", "is missing; send an array of token ids");
            let ids = fields.ids("tokens", tokenizer.len())?.ok_or_else(missing)?;
            fields.end()?;
            Ok(tokenizer.decode_prompt(&ids))
        })
        .await?;
    Ok(json_ok(&json!({ "prompt": text })))
}
