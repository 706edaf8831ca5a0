//! Requests that are refused: which field is at fault, and what to do about it.

use serde::de::DeserializeOwned;

/// A request that the client must change (HTTP 400).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {problem}")]
pub struct BadRequest {
    /// The field at fault, as a path into the body: `messages[2].content[0].type`. Empty when the
    /// body as a whole is at fault.
    pub param: String,
    /// A sentence without its subject, the remedy included: "is empty; send at least one message".
    pub problem: String,
}

impl BadRequest {
    /// The field at `param` and what is wrong with it.
    pub fn new(param: impl Into<String>, problem: impl Into<String>) -> BadRequest {
        BadRequest { param: param.into(), problem: problem.into() }
    }
}

/// Reads a request's body. A body may be read more than once, each time for the fields that one
/// part of the server knows: fields that `T` does not name are passed over.
///
/// # Errors
/// A body that is not JSON, or a field that is missing or of the wrong type, by its path.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, BadRequest> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // `.` is the document itself, `?` a place whose name was not read.
        let param = error.path().to_string();
        let param = param.trim_end_matches(['.', '?']);
        BadRequest::new(param, error.into_inner().to_string())
    })?;
    json.end().map_err(|error| BadRequest::new("", error.to_string()))?;
    Ok(value)
}
