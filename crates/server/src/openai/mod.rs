//! OpenAI's API: chat completions, responses, completions, models.

pub(crate) mod asked;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod format;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod refused;
pub(crate) mod responses;
mod shaping;
mod speaker;
pub(crate) mod usage;

use crate::app::{App, now};
use crate::error::BadRequest;
use crate::fields::Fields;
use serde::Serialize;

/// What every answer and every chunk of one request says.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: &'static str,
}

/// What made the answer: same fingerprint and same seed, same bytes.
pub(crate) const FINGERPRINT: &str = concat!("slipstream-", env!("CARGO_PKG_VERSION"));

impl Head {
    /// For an answer of the kind `object` whose id begins with `prefix`.
    pub(crate) fn new(app: &App, prefix: &str, object: &'static str, model: String) -> Head {
        Head {
            id: format!("{prefix}{}", app.ids.id()),
            object,
            created: now(),
            model,
            system_fingerprint: FINGERPRINT,
        }
    }
}

/// What we tell besides what OpenAI does.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Extra {
    /// The seed of choice 0; choice `i` has this plus `i`.
    pub(crate) seed: u64,
}

/// Whether and how an answer is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    Stream(Counts),
}

/// Whether a stream ends with its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    Omit,
    Include,
}

impl Delivery {
    /// Of `stream` and `stream_options`.
    pub(crate) fn take(fields: &mut Fields) -> Result<Delivery, BadRequest> {
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let Some(mut options) = fields.object("stream_options")? else {
            return Ok(if stream { Delivery::Stream(Counts::Omit) } else { Delivery::Whole });
        };
        if !stream {
            let problem = "is for streams; set `stream` to true, or leave it out";
            return Err(BadRequest::new("stream_options", problem));
        }
        let usage = options.boolean("include_usage")?.unwrap_or(false);
        // Padding against readers of encrypted traffic: there is none here to switch off.
        options.boolean("include_obfuscation")?;
        // vLLM's: usage with every chunk is more than its load generators need.
        options.boolean("continuous_usage_stats")?;
        options.end()?;
        Ok(Delivery::Stream(if usage { Counts::Include } else { Counts::Omit }))
    }
}
