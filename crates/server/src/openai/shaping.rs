//! The fields that shape logits: penalties and `logit_bias`.

use crate::error::BadRequest;
use crate::fields::{Fields, describe};
use engine::Shaping;

/// Takes them. Token ids are below `vocabulary`.
///
/// # Errors
/// The first that is not what it may be.
pub(crate) fn take(fields: &mut Fields, vocabulary: usize) -> Result<Shaping, BadRequest> {
    let mut penalty = |name| fields.number(name, "a number", |_| true);
    let presence = penalty("presence_penalty")?;
    let frequency = penalty("frequency_penalty")?;
    let repetition = penalty("repetition_penalty")?;
    let shaping = Shaping {
        presence_penalty: presence.unwrap_or(0.0),
        frequency_penalty: frequency.unwrap_or(0.0),
        repetition_penalty: repetition.unwrap_or(1.0),
        logit_bias: biases(fields)?,
    };
    let out_of_range =
        |error: engine::RequestError| BadRequest::new(fields.path(error.field), error.problem);
    shaping.check(vocabulary).map_err(out_of_range)?;
    Ok(shaping)
}

/// `logit_bias`: an object from token ids, which JSON writes as strings, to numbers.
fn biases(fields: &mut Fields) -> Result<Vec<(u32, f32)>, BadRequest> {
    let path = fields.path("logit_bias");
    let Some(own) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let bias = |name: &str, value: &serde_json::Value| {
        let token =
            name.parse::<u32>().map_err(|_| format!("has \"{name}\", which is no token"))?;
        let amount = value.as_f64().ok_or_else(|| format!("is {} for {token}", describe(value)))?;
        Ok((token, amount as f32))
    };
    let wanted = "give an object from token ids to numbers";
    let refused = |problem: String| BadRequest::new(&*path, format!("{problem}; {wanted}"));
    own.named().map(|(name, value)| bias(name, value).map_err(refused)).collect()
}
