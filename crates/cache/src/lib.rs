//! KV memory as accounts: pages that are leased, rows that are taken. Pure: no device, no clock.
//! It does not hold any keys or values; those live in the device's pools at the same page ids.

mod page;
mod row;

pub use page::{Lease, Pages};
pub use row::{Row, Rows};
