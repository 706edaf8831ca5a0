//! An engine on its own thread, over a scripted target: what callers see of requests, limits,
//! deadlines and failures, and that planning never waits for the device. What decides is gates and
//! a clock moved by hand, never how fast the machine is.

mod blocking;
mod deadlines;
mod failure;
mod requests;
mod script;
