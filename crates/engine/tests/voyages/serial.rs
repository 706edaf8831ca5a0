//! What a request must end with: its serial, uncached, undrafted run, by the plainest code.

use engine::{FinishReason, PromptToken, Request};
use kernels::choose::LogProbs;
use model::tokenizer::Detokenizer;

/// What a client gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Serial {
    /// When asked for.
    pub(crate) prompt: Vec<PromptToken>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    /// One a token, when asked for.
    pub(crate) logprobs: Vec<LogProbs>,
    pub(crate) reason: Option<FinishReason>,
}

/// Cuts what a target says, token after token, where `request` ends; `prompt` is what it thinks of the
/// prompt. `end` says whether its
/// constraint ends it after these tokens, and how.
pub(crate) fn cut<'p>(
    said: impl Iterator<Item = (u32, LogProbs)>,
    request: &Request,
    prompt: Vec<PromptToken>,
    context: usize,
    piece: impl Fn(u32) -> &'p [u8],
    end: impl Fn(&[u32]) -> Option<FinishReason>,
) -> Serial {
    let left = context - request.prompt.len();
    let cap = request.limits.max_tokens.map_or(left, |max| max.min(left));
    let reason = if cap == 0 { Some(FinishReason::Length) } else { end(&[]) };
    let (mut serial, mut bytes) = (Serial { prompt, reason, ..Serial::default() }, Vec::new());
    if serial.reason.is_some() {
        return serial;
    }
    for (token, logprobs) in said {
        if request.stops.ids.contains(&token) {
            serial.reason = Some(FinishReason::Stop);
            break;
        }
        serial.tokens.push(token);
        serial.logprobs.extend(request.logprobs.map(|_| logprobs));
        let before = bytes.len();
        bytes.extend_from_slice(piece(token));
        let strings = request.stops.strings.iter();
        let found = strings.filter_map(|stop| find(&bytes, stop.as_bytes(), before));
        let long_enough = serial.tokens.len() >= request.limits.min_tokens;
        if let Some(at) = found.min().filter(|_| long_enough) {
            bytes.truncate(at);
            serial.reason = Some(FinishReason::Stop);
            break;
        }
        serial.reason = match end(&serial.tokens) {
            Some(FinishReason::Stop) => Some(FinishReason::Stop),
            _ if serial.tokens.len() == cap => Some(FinishReason::Length),
            other => other,
        };
        if serial.reason.is_some() {
            break;
        }
    }
    serial.text = text(&bytes);
    serial
}

/// The whole characters of `bytes`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut text = String::new();
    Detokenizer::new().push(bytes, &mut text);
    text
}

/// Where `what` first is that does not end within the first `before` bytes.
fn find(bytes: &[u8], what: &[u8], before: usize) -> Option<usize> {
    let mut places = bytes.windows(what.len()).enumerate();
    places.find(|(at, window)| at + what.len() > before && *window == what).map(|(at, _)| at)
}
