//! The engine on tiny models.

mod absorb;
mod common;
mod context;
mod drafter;
mod lossless;
mod prefix;
mod shaping;
mod simulated;
mod speculation;
