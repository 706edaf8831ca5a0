//! The scheduler at sea: whole runs against a scripted device that lags one step behind.

mod cases;
mod device;
mod plans;
mod random;
