//! KV memory as accounts: which pages are free, leased or cached, which rows are taken, and a
//! radix tree over token ids that finds the cached pages of a prefix. Pure: no device, no clock.
//! It does not hold any keys or values; those live in the device's pools at the same page ids.
//!
//! A page belongs to exactly one of three: the free list, one request's [`Lease`], or the tree.
//! Pages of the tree are never written again; leases that use them pin them.

mod page;
mod prefix;
mod radix;
mod row;

pub use page::Account;
pub use prefix::{Lease, Match, Need, PrefixCache};
pub use row::{Row, Rows};
