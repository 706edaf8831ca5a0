//! The text side of chats: what of a request reaches the chat template, and what of an answer's text
//! is content, reasoning, or a tool call. No connection, no clock, no engine.
//!
//! A request takes this way: [`read`](crate::error::read) makes [`ChatFields`] of a body,
//! [`ChatFields::prepare`] checks them against the [`Dialect`] of the model and yields messages and
//! options for the template, the [`Constraint`] of the answer, and the [`Splitter`] that takes the
//! answer apart while it comes. Every refusal is a [`BadRequest`](crate::error::BadRequest) with the
//! path of the field.

pub mod dialect;
pub mod fields;
mod grammar;
mod ids;
mod messages;
mod prepare;
pub mod split;
mod tools;
mod untold;

pub use dialect::Dialect;
pub use fields::ChatFields;
pub use grammar::ProseWithCalls;
pub use ids::CallIds;
pub use prepare::Prepared;
pub use split::{Delta, Reply, Splitter};
pub use tools::Constraint;
