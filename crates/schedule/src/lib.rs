//! What runs next and what becomes of it: requests, plans, and the one commit function. Pure:
//! no device, no clock, no text.

mod request;

pub use request::{FinishReason, Limits, Request, RequestError, Sampling, Speculation, Stops};
