//! The text side of chats: answers taken apart, requests checked, prompts rendered.

mod answers;
mod common;
mod cuts;
mod forced;
mod mangled;
mod requests;
mod templates;
