//! The engine on tiny models.

mod absorb;
mod common;
mod context;
mod drafter;
#[path = "../kit/tiny.rs"]
mod kit;
mod lossless;
mod prefix;
mod prompts;
mod seen;
mod shaping;
mod simulated;
mod speculation;
